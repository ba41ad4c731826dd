"""Engines by name, and a whole engine with its own loop under the same API."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider import LLM, SamplingParams, pipeline
from outrider.cli.main import main
from outrider.config.engine import EngineConfig
from outrider.errors import ConfigError, PromptError
from outrider.outputs import Chunk, RequestOutput
from tests.conftest import load_toy
from tests.support.whole_engine import backend

pytestmark = pytest.mark.usefixtures("toy_engine")

PROMPTS = ["the quick brown fox", "def function(self, name):", "jumps over"]


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a whole engine."""
    monkeypatch.setitem(pipeline.ENGINES, "one-by-one", backend(load_toy))
    return "one-by-one"


def texts(outputs: list[RequestOutput]) -> list[object]:
    return [
        (sample.text, sample.token_ids, sample.finish_reason, sample.stop_reason, sample.seed)
        for output in outputs
        for sample in output.outputs
    ]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, max_tokens=30, seed=3),
        SamplingParams(temperature=0.8, max_tokens=30, seed=11, n=2, top_p=0.9),
        SamplingParams(temperature=0.9, max_tokens=60, seed=5, stop=["e"], min_tokens=3),
    ],
)
def test_a_whole_engine_gives_the_same_texts(target_file: Path, whole: str, params: SamplingParams) -> None:
    wanted = LLM(target_file, engine="native", speculative_config="none").generate(PROMPTS, params)
    assert texts(LLM(target_file, engine=whole).generate(PROMPTS, params)) == texts(wanted)


def test_a_whole_engine_streams_and_is_cancelled(target_file: Path, whole: str) -> None:
    llm = LLM(target_file, engine=whole)
    steps: list[list[Chunk]] = []
    params = SamplingParams(max_tokens=50, ignore_eos=True)
    for chunks in llm.stream("the quick", params, cancelled=lambda: len(steps) >= 3):
        steps.append(chunks)
    output = steps[-1][-1].output
    assert output is not None
    sample = output.outputs[0]
    assert (sample.finish_reason, len(sample.token_ids)) == ("abort", 3)
    assert llm.generate("the quick", SamplingParams(max_tokens=2, ignore_eos=True))[0].outputs[0].token_ids


def test_a_whole_engine_refuses_what_it_cannot_do_before_it_loads(
    target_file: Path, whole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(pipeline.ENGINES, whole, backend(lambda *_: pytest.fail("loaded")))
    with pytest.raises(ConfigError, match="does not speculate"):
        LLM(target_file, engine=whole, speculative_config="ngram")
    with pytest.raises(ConfigError, match="'one-by-one' runs its own loop"):
        pipeline.build(EngineConfig(str(target_file), engine=whole))
    with pytest.raises(ConfigError, match="'one-by-one' runs its own loop"):
        pipeline.load_target(EngineConfig(str(target_file), engine=whole))


def test_a_whole_engine_takes_the_same_prompts(target_file: Path, whole: str) -> None:
    llm = LLM(target_file, engine=whole, max_model_len=16)
    with pytest.raises(PromptError, match="16 tokens; a context of 16 has room for 15"):
        llm.generate({"prompt_token_ids": [5] * 16})
    with pytest.raises(PromptError, match="prompt 2: the prompt has the token id 320"):
        llm.generate([[5], [320]])
    (output,) = llm.generate({"prompt_token_ids": [5] * 15}, SamplingParams(max_tokens=9, ignore_eos=True))
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (1, "length")


def test_an_unknown_engine_is_refused_by_name(target_file: Path) -> None:
    for name, hint in (("nativ", r" \(did you mean 'native'\?\)"), ("lmdeploy", "")):
        known = "'auto' or 'native' or 'torch'"
        with pytest.raises(ConfigError, match=f"engine '{name}' is unknown; use {known}{hint}$"):
            LLM(target_file, engine=name)
    with pytest.raises(ConfigError, match="engine"):
        EngineConfig("m", engine="")


@pytest.mark.parametrize("command", ["run -p x", "bench", "bench --cost-curve", "verify", "serve --port 0"])
def test_the_commands_pass_the_engine_on(
    command: str, target_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "-m", str(target_file), "--engine", "nativ"]) == 2
    assert "engine 'nativ' is unknown; use 'auto' or 'native'" in capsys.readouterr().err
