"""benchmarks/replay.py: a target that replays its text, and a clock that only passes advance."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from outrider.bench import workloads
from outrider.config.speculative import DraftModelConfig, NgramConfig
from outrider.decoding.events import TokenEvent
from outrider.decoding.loop import StepLoop
from outrider.decoding.request import Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import top_probability
from outrider.decoding.verifiers.coupled import CoupledVerifier
from outrider.drafters.ngram import NgramDrafter
from outrider.engines.step import CachedStepEngine
from outrider.errors import OutriderError
from outrider.policy.fixed import FixedController
from tests.native.support import item
from tests.support.benchmarks import script
from tests.support.models import VOCAB_SIZE, tiny_gguf
from tests.support.toy_model import ToyModel

COSTS = {1: 10.0, 2: 11.0, 4: 12.0, 8: 20.0}


@pytest.fixture(scope="module")
def replay() -> Any:
    return script("replay")


def test_a_prefix_of_the_text_gets_its_next_token(replay: Any) -> None:
    model = replay.Replay(50, COSTS, clock := replay.Clock())
    model.text = [7, 8, 9, 10, 11]
    cache = model.new_cache(10)
    rows = model.forward([item(cache, [7, 8, 9, 20, 9], [-1, 0, 1, 1, 3])])[0]
    assert rows.argmax(1).tolist() == [8, 9, 10, 0, 0], "token 0 after a wrong token"
    assert cache.length == 5
    assert clock() == pytest.approx(model.costs.seconds(5))
    cache.keep(2, [2])
    assert cache.length == 3
    model.certain = {4: 0.25}
    rows = model.forward([item(cache, [10, 11], [-1, 0])])[0]
    assert rows[:1].argmax(1).tolist() == [11]
    assert [top_probability(row) for row in rows] == pytest.approx([0.25, 1.0])


def test_a_text_comes_again_whatever_is_drafted_and_sooner_where_that_is_right(replay: Any) -> None:
    text = [1, 2, 3, 4] * 12
    seconds = []
    for length in (0, 4):
        model = replay.Replay(50, COSTS, clock := replay.Clock())
        model.text = text
        loop = StepLoop(
            CachedStepEngine(model),
            NgramDrafter(3, 1),
            CoupledVerifier(),
            FixedController(length),
            clock=clock,
        )
        request = Request("a", tuple(text[:8]), SamplingParams(temperature=0.0, max_tokens=40), seed=0)
        events = [e for e in loop.generate([request]) if isinstance(e, TokenEvent)]
        assert [event.token_id for event in events] == text[8:]
        seconds.append(clock())
    assert seconds[1] < 0.5 * seconds[0]


def test_a_draft_prefill_in_the_first_step_is_charged(replay: Any, tmp_path: Path) -> None:
    path = str(tiny_gguf(tmp_path / "model.gguf"))
    text = replay.Text("edit", "a", 0.0, 0, "", list(range(10, 50)), list(range(60, 68)), [1.0] * 8)
    plain = len(text.output) * replay.curve(replay.COSTS["target"]).seconds(1)
    lost, prefill = [], []
    for milliseconds in (100.0, 200.0):
        costs = {1: 1.0, 8: 1.0, 40: milliseconds}
        stage = replay.Stage(
            path,
            {"draft": DraftModelConfig(path, 2)},
            lambda source, threads, clock, costs=costs: replay.Timed(ToyModel(VOCAB_SIZE), costs, clock),
        )
        lost.append(plain / stage.speedup("draft", text))
        prefill.append(replay.curve(costs).seconds(len(text.prompt)))
    assert lost[1] - lost[0] == pytest.approx(prefill[1] - prefill[0])


def test_the_controller_does_not_know_where_a_text_ends_by_itself(
    replay: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tiny_gguf(tmp_path / "model.gguf"))
    allowed: list[int | None] = []

    def note(self: StepLoop, request: Request) -> None:
        allowed.append(request.params.max_tokens)
        add(self, request)

    add = StepLoop.add
    monkeypatch.setattr(StepLoop, "add", note)
    stage = replay.Stage(path, {"ngram": NgramConfig(num_speculative_tokens=2)}, most=48)
    end = min(stage._ends)
    for output in ([60, 61, 62], [60, 61, end], [60] * 47 + [end], [60] * 99 + [end]):
        text = replay.Text("edit", "a", 0.0, 0, "", list(range(10, 50)), output, [1.0] * len(output))
        stage.speedup("ngram", text)
    assert allowed == [3, 48, 48, 100]


def test_other_prompts_are_put_before_each(replay: Any) -> None:
    plain, long = replay.items_of("edit", 0), replay.items_of("edit", 5)
    assert plain == workloads.load("edit")
    assert [item.id for item in long] == [f"{short.id} behind 5" for short in plain]
    every = [item.prompt for name in workloads.BUILT_IN for item in workloads.load(name)]
    for i, short in enumerate(plain):
        assert long[i].prompt.endswith(short.prompt)
        assert sum(prompt in long[i].prompt for prompt in every) == 6


def test_texts_are_reused_while_their_prompts_are_unchanged(replay: Any, tmp_path: Path) -> None:
    options = {"workloads": ["edit", "chat"], "temps": [0.0, 0.7], "limit": 2, "seeds": 2}
    args = argparse.Namespace(**options, n=16, behind=0)
    texts = [
        replay.Text(name, item.id, t, more + i, item.prompt, [1], [2], [0.5])
        for name in ("edit", "chat")
        for t, seeds in ((0.7, 2), (0.0, 1))
        for more in range(0, seeds * replay.SEED_STRIDE, replay.SEED_STRIDE)
        for i, item in enumerate(workloads.load(name)[:3])
    ]
    place = tmp_path / "texts.json"
    place.write_text(json.dumps([asdict(text) for text in texts]), "utf-8")
    found = replay.texts_of(place, str(tmp_path / "none.gguf"), args)  # no model is needed
    drawn = ((0.0, 0), (0.0, 1), (0.7, 0), (0.7, 1), (0.7, 1000), (0.7, 1001))
    names = [(name, *text) for name in args.workloads for text in drawn]
    assert [(text.workload, text.temperature, text.seed) for text in found] == names
    args.seeds = 3  # the file has two of each
    with pytest.raises(OutriderError, match=r"none\.gguf"):
        replay.texts_of(place, str(tmp_path / "none.gguf"), args)
    args.seeds = 2

    older = [{k: v for k, v in asdict(text).items() if k != "asked"} for text in texts]
    for unusable in ([asdict(replace(text, asked="other words")) for text in texts], older):
        place.write_text(json.dumps(unusable), "utf-8")
        with pytest.raises(OutriderError, match=r"none\.gguf"):  # which would have to write them
            replay.texts_of(place, str(tmp_path / "none.gguf"), args)


@pytest.mark.parametrize("option", ["--limit", "--seeds", "-n"])
@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5"])
def test_there_is_something_to_replay(
    replay: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    monkeypatch.setattr("sys.argv", ["replay.py", f"{option}={value}" if option != "-n" else f"-n{value}"])
    with pytest.raises(SystemExit):
        replay.arguments()
    assert capsys.readouterr().err.endswith(f"{option}: {value!r} is not a whole number of at least 1\n")
