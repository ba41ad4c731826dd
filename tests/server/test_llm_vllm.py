"""`LLM(engine="vllm")` with the double's package in the place of vLLM."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tests.support.fake_vllm
from outrider import LLM, SamplingParams
from outrider.engines.vllm import installed, self_check
from outrider.engines.vllm.engine import VllmEngine
from outrider.engines.vllm.process import VllmError
from outrider.errors import ConfigError, OutriderError, PromptError
from outrider.metrics import Vector
from tests.support.fake_vllm.vllm.server import SIZE, probabilities
from tests.support.models import tiny_gguf, tiny_hf

DOUBLE = str(Path(tests.support.fake_vllm.__file__).parent)
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
INSPECTED = functools.cache(installed._run)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_hf(tmp_path_factory.mktemp("hf") / "model")


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", DOUBLE)
        patch.setenv("OUTRIDER_CACHE", str(tmp_path_factory.getbasetemp() / "vllm-cache"))
        patch.delenv("OUTRIDER_VLLM_PYTHON", raising=False)
        patch.setattr(self_check, "PROMPTS", self_check.PROMPTS[::3])
        patch.setattr(installed, "_run", INSPECTED)
        yield patch


def opened(folder: Path, speculative: Any = None, **more: Any) -> LLM:
    return LLM(folder, engine="vllm", speculative_config=speculative, **more)


@pytest.fixture(scope="module")
def llm(folder: Path, patched: pytest.MonkeyPatch) -> Iterator[LLM]:
    with opened(folder, NGRAM, tensor_parallel_size=2) as made:
        yield made


def counted(llm: LLM) -> dict[str, Any]:
    """By name: a number, or those by position."""
    return {m.name: m.values if isinstance(m, Vector) else m.value for m in llm.get_metrics()}  # type: ignore[attr-defined]


def test_drafts_are_counted_by_the_server_and_without_those_of_its_check(
    folder: Path, patched: pytest.MonkeyPatch
) -> None:
    with opened(folder, NGRAM) as llm:
        engine = llm._pipeline.engine
        assert isinstance(engine, VllmEngine)
        assert engine.before is not None
        assert engine.before.num_drafts > 0
        drafts = "vllm:spec_decode_num_drafts"
        first = counted(llm)
        assert first[drafts] == first["vllm:generation_tokens"] == 0
        llm.generate([[1, 2, 3], [4, 5]], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
        now = counted(llm)
        assert now["vllm:generation_tokens"] == 12
        assert now[drafts] == 6
        assert now["vllm:spec_decode_num_draft_tokens"] == 12
        assert now["vllm:spec_decode_num_accepted_tokens"] == 6
        assert now["vllm:spec_decode_num_accepted_tokens_per_pos"] == [6]
        assert not any("earlier_outputs" in name for name in now), "nobody knows"
        with pytest.MonkeyPatch.context() as silent:
            silent.setattr(VllmEngine, "counts", lambda _: None)
            assert list(counted(llm)) == ["vllm:generation_tokens"]
        engine.launch.child.stop()
        with pytest.raises(OutriderError, match=r"cannot be asked for its metrics: .*cannot be reached"):
            llm.get_metrics()


def test_it_can_be_opened_and_asked_where_a_loop_runs(folder: Path, patched: pytest.MonkeyPatch) -> None:
    """As in a notebook."""

    async def cell() -> dict[str, Any]:
        with opened(folder, NGRAM) as llm:
            llm.generate([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
            return counted(llm)

    assert asyncio.run(cell())["vllm:spec_decode_num_drafts"] == 3


def greedy(prompt: list[int], count: int) -> list[int]:
    """The double's likeliest tokens after a prompt."""
    found, last = [], prompt[-1]
    for _ in range(count):
        last = max(range(SIZE), key=probabilities(last).__getitem__)
        found.append(last)
    return found


def test_texts_are_made_of_the_server_s_tokens(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    one, other = llm.generate([[1, 2, 3], [4, 5]], params)
    for output, prompt in ((one, [1, 2, 3]), (other, [4, 5])):
        (sample,) = output.outputs
        assert list(sample.token_ids) == greedy(prompt, 6)
        assert sample.finish_reason == "length"
        assert sample.text == llm.get_tokenizer().decode(greedy(prompt, 6))
        assert sample.metrics.num_tokens == 6
        assert sample.metrics.first_token is not None


def test_ends_are_found_as_in_every_engine(llm: LLM) -> None:
    """At a stop token, and at the model's own end (0, which the double writes second after 1)."""
    third = greedy([1], 3)[2]
    stopped = SamplingParams(temperature=0, max_tokens=9, stop_token_ids=[third], ignore_eos=True)
    (output,) = llm.generate([[1]], stopped)
    sample = output.outputs[0]
    assert (sample.finish_reason, sample.stop_reason) == ("stop", third)
    assert list(sample.token_ids) == greedy([1], 3)
    (output,) = llm.generate([[1]], SamplingParams(temperature=0, max_tokens=9))
    assert greedy([1], 2)[1] == 0
    assert list(output.outputs[0].token_ids) == greedy([1], 2)
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", None)


def test_samples_have_seeds_of_their_own(llm: LLM) -> None:
    params = SamplingParams(temperature=1, seed=5, n=3, max_tokens=8, ignore_eos=True)
    first, again = (llm.generate([[7]], params)[0].outputs for _ in range(2))
    assert [list(s.token_ids) for s in first] == [list(s.token_ids) for s in again]
    assert len({tuple(s.token_ids) for s in first}) > 1


def test_a_stream_can_be_left_and_cancelled(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    parts = llm.stream([1, 2], params)
    assert next(parts)
    parts.close()
    seen = 0

    def cancelled() -> bool:
        nonlocal seen
        seen += 1
        return seen > 1

    last = [chunk for chunks in llm.stream([1, 2], params, cancelled=cancelled) for chunk in chunks][-1]
    assert last.output is not None
    assert last.output.outputs[0].finish_reason in ("abort", "length")


def test_the_command_is_of_the_folder_and_the_context(llm: LLM, folder: Path) -> None:
    engine = llm._pipeline.engine
    assert isinstance(engine, VllmEngine)
    assert f"serve {folder} " in engine.launch.line
    assert "--max-model-len 256" in engine.launch.line
    assert "--tensor-parallel-size 2" in engine.launch.line
    assert engine.outcome.state == "passed"


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"logprobs": 1}, "logprobs is refused"),
        ({"prompt_logprobs": 1}, "prompt_logprobs is refused"),
        ({"logits_processors": [lambda ids, logits: logits]}, "do not reach another process"),
    ],
)
def test_what_is_not_handed_through_is_refused(llm: LLM, params: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        llm.generate([[1]], SamplingParams(temperature=0, **params))
    with pytest.raises(PromptError, match="token id 400"):
        llm.generate([[400]], SamplingParams(temperature=0))


def test_what_vllm_gets_of_the_parameters(llm: LLM) -> None:
    engine = llm._pipeline.engine
    assert isinstance(engine, VllmEngine)
    from outrider.engines.vllm.fields import completion_fields

    params = SamplingParams(
        temperature=0.5,
        top_k=7,
        logit_bias={3: 1.5},
        bad_words=["x"],
        choice=["a", "b"],
        min_tokens=2,
        seed=-2,
    )
    (request,) = llm._runs([[1, 2]], [params])[0].requests
    known = engine.launcher.version.request_fields
    found = completion_fields(request, "m", 16, known)
    assert found["prompt"] == [1, 2]
    assert (found["temperature"], found["top_k"], found["min_tokens"]) == (0.5, 7, 2)
    assert found["logit_bias"] == {"3": 1.5}
    assert found["bad_words"] == ["x"]
    assert found["structured_outputs"] == {"choice": ["a", "b"]}
    assert 0 <= found["seed"] < 2**63
    with pytest.raises(ConfigError, match="have no structured_outputs"):
        completion_fields(request, "m", 16, known - {"structured_outputs"})
    with pytest.raises(ConfigError, match="cannot return token ids"):
        completion_fields(request, "m", 16, known - {"return_token_ids"})


def test_sampling_that_is_broken_is_refused(folder: Path, patched: pytest.MonkeyPatch) -> None:
    with patched.context() as patch:
        patch.setenv("FAKE_VLLM", "wrong")
        with opened(folder, NGRAM) as llm:
            with pytest.raises(ConfigError, match="temperature above 0 is refused: vLLM"):
                llm.generate([[1]], SamplingParams(temperature=0.3))
            assert llm.generate([[1]], SamplingParams(temperature=0))[0].outputs[0].token_ids
        with pytest.raises(VllmError, match="sampling is broken"):
            opened(folder, NGRAM, self_check="strict")


def test_a_server_that_is_gone_is_an_error(folder: Path, patched: pytest.MonkeyPatch) -> None:
    with opened(folder) as llm:
        engine = llm._pipeline.engine
        assert isinstance(engine, VllmEngine)
        port = engine.launch.child.port
        engine.launch.child.stop()
        with pytest.raises(OutriderError, match="cannot be reached"):
            llm.generate([[1]], SamplingParams(temperature=0))
    with socket.socket() as made:
        assert made.connect_ex(("127.0.0.1", port))
    with pytest.raises(ConfigError, match="this LLM is closed"):
        llm.generate([[1]])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"self_check": "maybe"}, "self_check must be one of refuse, strict, off"),
        ({"tensor_paralel_size": 2}, "did you mean 'tensor_parallel_size'"),
        ({"weights_cache": True}, "packs no weights"),
        ({"speculative_config": {"method": "eagle9"}}, "'eagle9' is refused"),
    ],
)
def test_refusals_come_before_the_launch(
    folder: Path, patched: pytest.MonkeyPatch, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        LLM(folder, engine="vllm", **arguments)


def test_a_gguf_file_is_refused(tmp_path: Path, patched: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="use engine='native' for GGUF"):
        LLM(tiny_gguf(tmp_path / "m.gguf", seed=1), engine="vllm")
