"""Hidden states reach the drafter: each position's are those of a single pass over the whole text, however
the passes were cut, whatever was drafted, and wherever the prompt came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outrider.decoding.loop import StepLoop
from outrider.decoding.request import Request
from outrider.decoding.types import Draft, FloatArray, TargetScores, Verdict
from outrider.decoding.verifiers.coupled import CoupledVerifier
from outrider.drafters.auto import AutoDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.engines.base import EngineCaps, ForwardItem, HiddenStateModel, SeqHandle
from outrider.engines.prefix import PrefixCache
from outrider.engines.step import CachedStepEngine
from outrider.errors import ConfigError
from outrider.policy.auto import AutoController
from outrider.policy.cost_model import CostModel
from outrider.policy.fixed import FixedController
from outrider.policy.planner import Planner
from tests.conformance.drafters import SCRIPTS
from tests.conformance.engines import ENGINES, Models, on_engines
from tests.conformance.harness import (
    PARAMS,
    PROMPTS,
    Output,
    answers,
    make_drafter,
    requests,
    run,
    visible,
)
from tests.support.hidden_drafter import HiddenRecorder, hidden_of
from tests.support.toy_model import ToyModel

MADE: dict[str, Models] = {name: make() for name, make in ENGINES.items()}
DRAFTERS = ["tree", "ngram", "suffix", "draft_model", *SCRIPTS]
PLENTY = 10**8


def target(name: str) -> HiddenStateModel:
    model = MADE[name].target
    if not isinstance(model, HiddenStateModel) or not model.caps.hidden_states:
        pytest.skip("gives no hidden states")
    return model


def taps_of(model: HiddenStateModel) -> list[tuple[int, ...]]:
    last = model.num_layers
    return [(0,), (last,), (0, 1, last)]


def compare(model: HiddenStateModel, recorder: HiddenRecorder, prompts: dict[str, list[int]]) -> int:
    """Compare what was recorded of each text (prompt and output). Returns the number of positions."""
    compared = 0
    for name, text in prompts.items():
        # Nodes accepted beyond the text's end belong to no text; the last token was never computed.
        mine = recorder.recorded[name][: len(text)]
        assert len(mine) >= len(text) - 1
        np.testing.assert_array_equal(np.stack(mine), hidden_of(model, text, recorder.taps)[: len(mine)])
        compared += len(mine)
    return compared


def texts(outputs: dict[str, Output]) -> dict[str, list[int]]:
    return {str(i): [*prompt, *outputs[str(i)].tokens] for i, prompt in enumerate(PROMPTS)}


@pytest.mark.grid(4)
@pytest.mark.parametrize(("name", "drafter", "chunk"), on_engines(DRAFTERS, ["16", "3"]))
def test_every_positions_hidden_states_are_those_of_one_pass(name: str, drafter: str, chunk: str) -> None:
    model, models = target(name), MADE[name]
    batch = requests(PARAMS["temperature"])
    plain = run(models.engine(), None, batch)
    for taps in taps_of(model):
        recorder = HiddenRecorder(make_drafter(drafter, models, answers(plain)), taps)
        outputs = run(models.engine(), recorder, requests(PARAMS["temperature"]), prefill_chunk=int(chunk))
        assert visible(outputs) == visible(plain), "hidden states change no text"
        compare(model, recorder, texts(outputs))
        if drafter in ("tree", "always_right"):
            assert recorder.accepted > 10


class Mixing(FixedController):
    """Lets a few prompt tokens share every pass that decodes."""

    def prefill_budget(self, decoding: int, joining: int = 0) -> int:
        return 3 if decoding else 5


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("prompt_logprobs", [None, 2])
def test_hidden_states_of_prompts_in_mixed_batches(name: str, prompt_logprobs: int | None) -> None:
    model, models = target(name), MADE[name]
    plain = run(models.engine(), None, requests(PARAMS["temperature"]))
    recorder = HiddenRecorder(make_drafter("tree", models, answers(plain)), taps_of(model)[-1])
    loop = StepLoop(
        models.engine(),
        recorder,
        CoupledVerifier(),
        Mixing(4),
        clock=lambda: 0.0,
        max_num_seqs=3,
        max_context=64,
    )
    found: dict[str, list[int]] = {str(i): list(prompt) for i, prompt in enumerate(PROMPTS)}
    batch = [
        replace(r, params=replace(r.params, prompt_logprobs=prompt_logprobs))
        for r in requests(PARAMS["temperature"])
    ]
    for event in loop.generate(batch):
        if hasattr(event, "token_id"):
            found[event.request_id].append(event.token_id)
    assert found == texts(plain)
    assert max(len(starts) for starts in recorder.starts.values()) > 5, "prompts came in pieces"
    compare(model, recorder, found)


class Tapped(SuffixDrafter):
    """A lookup drafter that records hidden states as well."""

    def __init__(self, name: str, taps: tuple[int, ...]) -> None:
        super().__init__()
        self.name = name
        self.record = HiddenRecorder(SuffixDrafter(), taps)
        self.taps = taps

    def begin(self, request: Request) -> None:
        super().begin(request)
        self.record.begin(request)

    def prefilled(self, request_id: str, start: int, hidden: FloatArray) -> None:
        self.record.prefilled(request_id, start, hidden)

    def observe(self, request_id: str, draft: Draft, verdict: Verdict, scores: TargetScores) -> None:
        self.record.observe(request_id, draft, verdict, scores)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("width", [1, 3])
def test_under_auto_each_drafter_gets_the_hidden_states_of_its_own_layers(name: str, width: int) -> None:
    model, models = target(name), MADE[name]
    last = model.num_layers
    planner = Planner(CostModel({1: 0.05, 16: 0.06}))
    parts = [Tapped("all", (0, 1, last)), Tapped("one", (last,)), SuffixDrafter()]
    for part in parts:
        planner.add_lookup(part.name)
    drafter = AutoDrafter(planner, parts, clock=lambda: 0.0)
    assert drafter.taps == (0, 1, last)
    loop = StepLoop(
        models.engine(),
        drafter,
        CoupledVerifier(),
        AutoController(planner),
        clock=lambda: 0.0,
        max_num_seqs=width,
        max_context=64,
    )
    found: dict[str, list[int]] = {str(i): list(prompt) for i, prompt in enumerate(PROMPTS)}
    for event in loop.generate(requests(PARAMS["temperature"])):
        if hasattr(event, "token_id"):
            found[event.request_id].append(event.token_id)
    assert found == texts(run(models.engine(), None, requests(PARAMS["temperature"])))
    for part in parts[:2]:
        assert isinstance(part, Tapped)
        assert compare(model, part.record, found) > 0


# --- The prefix cache -----------------------------------------------------------------------------


def decode(
    engine: CachedStepEngine, prompt: Sequence[int], taps: tuple[int, ...], drafts: Sequence[Sequence[int]]
) -> tuple[list[FloatArray], list[int], SeqHandle]:
    """Prefill by 7 and follow drafts, half of which are kept. Returns the hidden states of all positions in
    the cache, the text, and the sequence (open)."""
    seq = engine.open(prompt, 120, "a", taps)
    rows: list[FloatArray] = []
    text = list(prompt)

    def collect() -> None:
        for start, states in seq.hidden.take_prompt() if seq.hidden is not None else ():
            assert start == len(rows)
            rows.extend(states)

    collect()
    while len(seq.pending):
        engine.prefill(seq, 7)
        collect()
    for tokens in drafts:
        (scores,) = engine.score([(seq, Draft.chain(tokens, "t"))])
        kept = len(tokens) // 2
        if scores.hidden is not None:
            rows.extend(scores.hidden[: kept + 1])
        token = int(scores.logits[kept].argmax())
        engine.commit(seq, Verdict(tuple(range(kept)), token, "recovered"))
        text += [*tokens[:kept], token]
    return rows, text, seq


def sharing(name: str, max_bytes: int = PLENTY) -> tuple[CachedStepEngine, PrefixCache, int]:
    model = target(name)
    engine = CachedStepEngine(model)
    return engine, engine.share_prefixes(max_bytes), getattr(model, "share_unit", 0)


@pytest.mark.parametrize("name", ENGINES)
def test_a_prefix_from_the_cache_comes_with_its_hidden_states(name: str) -> None:
    engine, prefixes, unit = sharing(name)
    model, taps = target(name), taps_of(target(name))[-1]
    prompt = [(7 * i) % 31 for i in range(2 * unit + 3)]
    drafts = [[5, 6, 7, 8], [9, 10], [], [11, 12, 13]] * 6
    rows, text, seq = decode(engine, prompt, taps, drafts)
    np.testing.assert_array_equal(np.stack(rows), hidden_of(model, text, taps)[: len(rows)])
    engine.close(seq)
    # The next turn of the conversation: prompt and output of the first, and more.
    again, longer, seq = decode(engine, [*text, 1, 2, 3], taps, [[4, 5]])
    assert seq.cached == len(text[:-1]) // unit * unit > len(prompt), "prompt and output were found"
    np.testing.assert_array_equal(np.stack(again), hidden_of(model, longer, taps)[: len(again)])
    engine.close(seq)
    counted = len(prefixes) * model.hidden_size * len(taps) * 4 * unit
    assert prefixes.nbytes > counted, "hidden states count in addition to keys and values"


@pytest.mark.parametrize("name", ENGINES)
def test_a_prefix_without_hidden_states_is_computed_again_and_kept_with_them(name: str) -> None:
    engine, prefixes, unit = sharing(name)
    model, taps = target(name), taps_of(target(name))[-1]
    prompt = [(5 * i) % 29 for i in range(3 * unit + 1)]
    _, text, seq = decode(engine, prompt, (), [[]])
    engine.close(seq)
    bare = prefixes.nbytes
    rows, text, seq = decode(engine, prompt, taps, [[]])
    assert seq.cached == 0
    np.testing.assert_array_equal(np.stack(rows), hidden_of(model, text, taps)[: len(rows)])
    engine.close(seq)
    assert prefixes.nbytes == bare + 3 * unit * model.hidden_size * len(taps) * 4
    rows, text, seq = decode(engine, prompt, taps, [[]])
    assert seq.cached == 3 * unit
    np.testing.assert_array_equal(np.stack(rows), hidden_of(model, text, taps)[: len(rows)])
    engine.close(seq)
    _, _, seq = decode(engine, prompt, (), [[]])
    assert seq.cached == 3 * unit, "who wants none takes the blocks all the same"
    engine.close(seq)
    prefixes.clear()
    assert prefixes.nbytes == 0


@pytest.mark.parametrize("name", ENGINES)
def test_other_layers_are_not_taken_for_these(name: str) -> None:
    engine, _, unit = sharing(name)
    model = target(name)
    prompt = [3] * (2 * unit + 1)
    for taps in [(0,), (1,), (0,)]:
        rows, text, seq = decode(engine, prompt, taps, [[]])
        assert seq.cached == 0
        np.testing.assert_array_equal(np.stack(rows), hidden_of(model, text, taps)[: len(rows)])
        engine.close(seq)


@pytest.mark.parametrize("name", ENGINES)
def test_little_room_for_prefixes_changes_no_hidden_states(name: str) -> None:
    engine, prefixes, unit = sharing(name)
    model, taps = target(name), taps_of(target(name))[-1]
    random = np.random.default_rng(3)
    _, _, probe = decode(engine, [1] * (unit + 1), taps, [])
    block = prefixes.nbytes
    engine.close(probe)
    for blocks in (0, 1, 2, 5):
        prefixes.clear()
        prefixes.shrink(blocks * block)
        for _ in range(6):
            prompt = random.integers(0, 2, random.integers(1, 60)).tolist()
            wanted = taps if random.random() < 0.7 else ()
            rows, text, seq = decode(engine, prompt, wanted, [[1, 1, 0], [0, 1]] * int(random.integers(1, 6)))
            if wanted:
                assert len(rows) == seq.committed
                np.testing.assert_array_equal(np.stack(rows), hidden_of(model, text, taps)[: len(rows)])
            engine.close(seq)
            assert prefixes.nbytes <= blocks * block


def test_several_sequences_share_one_prefix_while_they_run() -> None:
    """Samples of one prompt: the second takes what the first has computed since it was opened."""
    engine, _, unit = sharing("toy")
    model, taps = target("toy"), (0, 2)
    prompt = list(range(1, 4 * unit + 2))
    first, second = (engine.open(prompt, 60, "a", taps) for _ in range(2))
    engine.prefill(second, unit // 2)
    engine.prefill(first, 100)
    engine.prefill(second, 100)
    assert second.cached == 4 * unit - unit // 2
    for seq in (first, second):
        assert seq.hidden is not None
        pieces = seq.hidden.take_prompt()
        assert [start for start, _ in pieces] == np.cumsum([0, *(len(p) for _, p in pieces)])[:-1].tolist()
        found = np.concatenate([piece for _, piece in pieces])
        np.testing.assert_array_equal(found, hidden_of(model, prompt, taps)[:-1])
        engine.close(seq)


# --- Broken twins, refusals, and no cost without taps -----------------------------------------


class OffByOne(CachedStepEngine):
    """Gives each node the hidden states of the one before."""

    def score(self, *arguments: Any) -> list[TargetScores]:
        return [
            s if s.hidden is None else TargetScores(s.logits, np.roll(s.hidden, 1, axis=0))
            for s in super().score(*arguments)
        ]


class ForgetsTheOffset(PrefixCache):
    """Takes the hidden states of a block's beginning for those of its end."""

    def take(self, cache: Any, tokens: Any, namespace: Any, hidden: Any = None) -> int:
        held = cache.length
        taken = super().take(cache, tokens, namespace, hidden)
        if taken and hidden is not None and held % 4:
            start, rows = hidden._prompt.pop()
            hidden._prompt.append((start, np.roll(rows, 1, axis=0)))
        return taken


def test_another_nodes_hidden_states_are_noticed() -> None:
    models = MADE["toy"]
    plain = run(models.engine(), None, requests(PARAMS["temperature"]))
    recorder = HiddenRecorder(make_drafter("always_right", models, answers(plain)), (2,))
    outputs = run(OffByOne(models.target), recorder, requests(PARAMS["temperature"]))
    with pytest.raises(AssertionError, match="Mismatched elements"):
        compare(target("toy"), recorder, texts(outputs))


def test_a_prefix_at_the_wrong_offset_is_noticed() -> None:
    engine, _, unit = sharing("toy")
    engine.prefixes = ForgetsTheOffset(MADE["toy"].target, PLENTY)
    prompt = list(range(1, 4 * unit + 2))
    first, second = (engine.open(prompt, 60, "a", (2,)) for _ in range(2))
    engine.prefill(second, unit // 2)
    engine.prefill(first, 100)
    engine.prefill(second, 100)
    assert second.hidden is not None
    found = np.concatenate([piece for _, piece in second.hidden.take_prompt()])
    assert (found != hidden_of(target("toy"), prompt, (2,))[:-1]).any()


def test_what_the_engine_cannot_give_is_refused_when_the_loop_is_built() -> None:
    model = ToyModel(48, 128)
    model.caps = EngineCaps(tree_attention=True, exact_bits=True)
    recorder = HiddenRecorder(make_drafter("ngram", MADE["toy"], {}), (1,))
    with pytest.raises(ConfigError, match="recorder needs hidden_states"):
        StepLoop(CachedStepEngine(model), recorder, CoupledVerifier(), FixedController(1), clock=lambda: 0.0)
    for taps in [(3,), (-1,), (1, 1), (2, 0)]:
        with pytest.raises(ValueError, match="ascending layer indices from 0 to 2"):
            CachedStepEngine(ToyModel(48, 128)).open([1, 2], 9, None, taps)


def test_sequences_of_one_pass_want_the_same_layers() -> None:
    engine = CachedStepEngine(ToyModel(48, 128))
    first, second, third = (engine.open([1], 9, None, taps) for taps in ((0,), (1,), ()))
    with pytest.raises(ValueError, match="same layers"):
        engine.score([(first, Draft.empty()), (second, Draft.empty())])
    scores = engine.score([(first, Draft.empty()), (third, Draft.empty())])
    assert scores[0].hidden is not None
    assert scores[1].hidden is None


def test_a_bug_in_prefilled_ends_its_request_only() -> None:
    class Fails(HiddenRecorder):
        def prefilled(self, request_id: str, start: int, hidden: FloatArray) -> None:
            if request_id == "2" and start:
                raise ZeroDivisionError("a bug in prefilled")
            super().prefilled(request_id, start, hidden)

    models = MADE["toy"]
    plain = run(models.engine(), None, requests(PARAMS["temperature"]))
    recorder = Fails(make_drafter("ngram", models, answers(plain)), (1,))
    outputs = run(models.engine(), recorder, requests(PARAMS["temperature"]), prefill_chunk=8)
    end = outputs["2"].end
    assert end is not None
    assert isinstance(end.error, ZeroDivisionError)
    assert {k: v for k, v in visible(outputs).items() if k != "2"} == {
        k: v for k, v in visible(plain).items() if k != "2"
    }


class NeverTapped(ToyModel):
    """Notices whoever asks for hidden states."""

    def forward_hidden(self, items: Sequence[ForwardItem], taps: Sequence[int]) -> Any:
        pytest.fail("no drafter needs hidden states")


@pytest.mark.parametrize("make", [lambda m: None, lambda m: make_drafter("ngram", m, {})])
def test_nothing_is_computed_or_stored_without_taps(make: Callable[[Models], Any]) -> None:
    models = Models(NeverTapped(48, 128), ToyModel(48, 128))
    seen: list[SeqHandle] = []

    class Watched(CachedStepEngine):
        def open(self, *arguments: Any) -> SeqHandle:
            seen.append(super().open(*arguments))
            return seen[-1]

    batch: list[Request] = requests(PARAMS["greedy"])
    assert all(output.end is not None for output in run(Watched(models.target), make(models), batch).values())
    assert len(seen) == len(batch)
    assert all(seq.hidden is None for seq in seen)
