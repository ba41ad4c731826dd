"""AsyncLLM, on toy models: outputs of each kind, abort, cancellation, shutdown, identity with LLM."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

from outrider import (
    LLM,
    AsyncEngineArgs,
    AsyncLLM,
    AsyncLLMEngine,
    EngineArgs,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    pipeline,
)
from outrider.decoding.types import FloatArray
from outrider.engines.base import ForwardItem, LanguageModel
from outrider.errors import ConfigError, PromptError
from outrider.models.source import ModelSource
from outrider.server.engine.async_engine import EngineFailed
from tests.conftest import toy_target
from tests.server.http_support import load_slow
from tests.support.toy_model import ToyModel

T = TypeVar("T")

PROMPTS = ["the quick brown fox", "def function(self, name):", "jumps over", "the lazy dog"]
NGRAM = {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1}
SEEDED: dict[str, Any] = {"temperature": 0.8, "max_tokens": 30, "seed": 11, "ignore_eos": True}
LONG: dict[str, Any] = {"temperature": 0.0, "max_tokens": 200, "ignore_eos": True}

pytestmark = pytest.mark.usefixtures("toy_engine")


def run(task: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns. Fails after 60 seconds."""

    async def limited() -> T:
        async with asyncio.timeout(60):
            return await task

    return asyncio.run(limited())


async def collect(outputs: AsyncIterator[RequestOutput]) -> list[RequestOutput]:
    return [output async for output in outputs]


# Both come after `toy_engine`, which they ask for: it would put its own models in their place.
@pytest.fixture
def slow(toy_engine: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 ms a pass."""
    monkeypatch.setattr(pipeline, "load_native", load_slow)


class PacedToy(ToyModel):
    """Each pass waits until the event loop has gone around some times, so that what came before has been
    taken, however busy the machine is."""

    loop: asyncio.AbstractEventLoop | None = None

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        if self.loop is not None and self.loop.is_running():
            around = threading.Event()
            self.loop.call_soon_threadsafe(self._again, self.loop, 5, around)
            around.wait(20)
        return super().forward(items)

    @classmethod
    def _again(cls, loop: asyncio.AbstractEventLoop, rounds: int, around: threading.Event) -> None:
        if rounds:
            loop.call_soon(cls._again, loop, rounds - 1, around)
        else:
            around.set()


@pytest.fixture
def paced(toy_engine: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(source: ModelSource, threads: int | None) -> LanguageModel:
        return toy_target(source, PacedToy)

    monkeypatch.setattr(PacedToy, "loop", None)
    monkeypatch.setattr(pipeline, "load_native", load)


def idle(engine: AsyncLLM) -> bool:
    assert engine._engine is not None
    stats = engine._engine.stats
    return not (stats.running or stats.waiting)


async def until_idle(engine: AsyncLLM) -> None:
    async with asyncio.timeout(10):
        while not idle(engine):
            await asyncio.sleep(0.005)


def test_vllms_streaming_example(target_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The script of vLLM's guide to streaming with AsyncLLM, in short."""

    async def main() -> None:
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(target_file), enforce_eager=True))
        params = SamplingParams(
            max_tokens=20, temperature=0.8, top_p=0.95, seed=42, output_kind=RequestOutputKind.DELTA
        )
        try:
            for number, prompt in enumerate(PROMPTS):
                async for output in engine.generate(
                    request_id=f"stream-{number}", prompt=prompt, sampling_params=params
                ):
                    for completion in output.outputs:
                        print(completion.text, end="", flush=True)
                    if output.finished:
                        print(f"|{output.outputs[0].finish_reason}", end="\n\n")
                        break
        finally:
            engine.shutdown()

    run(main())
    printed = capsys.readouterr().out
    params = SamplingParams(max_tokens=20, temperature=0.8, top_p=0.95, seed=42)
    texts = [o.outputs[0] for o in LLM(target_file).generate(PROMPTS, params)]
    assert printed == "".join(f"{sample.text}|{sample.finish_reason}\n\n" for sample in texts)


@pytest.mark.parametrize("speculative", ["none", NGRAM])
def test_many_tasks_get_the_texts_that_llm_writes(target_file: Path, speculative: Any) -> None:
    params = SamplingParams(**SEEDED, logprobs=1)
    expected = LLM(target_file, speculative_config="none").generate(PROMPTS, params)

    async def main() -> list[RequestOutput]:
        async with AsyncLLM(target_file, speculative_config=speculative, max_num_seqs=2) as engine:
            tasks = [collect(engine.generate(prompt, params, str(n))) for n, prompt in enumerate(PROMPTS)]
            return [outputs[-1] for outputs in await asyncio.gather(*tasks)]

    for mine, theirs in zip(run(main()), expected, strict=True):
        assert mine.finished
        assert (mine.prompt, mine.prompt_token_ids) == (theirs.prompt, theirs.prompt_token_ids)
        one, other = mine.outputs[0], theirs.outputs[0]
        assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, "length")
        assert one.logprobs == other.logprobs
        assert one.metrics.num_tokens == 30


@pytest.mark.usefixtures("paced")  # a fast engine's events come several at a time
def test_each_kind_of_output(target_file: Path) -> None:
    async def main() -> dict[RequestOutputKind, list[RequestOutput]]:
        PacedToy.loop = asyncio.get_running_loop()
        async with AsyncLLM(target_file, speculative_config=NGRAM) as engine:
            return {
                kind: await collect(
                    engine.generate(PROMPTS[0], SamplingParams(**SEEDED, n=2, logprobs=0, output_kind=kind))
                )
                for kind in RequestOutputKind
            }

    found = run(main())
    (final,) = found[RequestOutputKind.FINAL_ONLY]
    assert [s.index for s in final.outputs] == [0, 1]
    for outputs in found.values():
        assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]
        assert len({o.request_id for o in outputs}) == 1
    growing = found[RequestOutputKind.CUMULATIVE]
    assert len(growing) > 2
    for sample in final.outputs:
        texts = [o.outputs[sample.index].text for o in growing]
        assert texts[-1] == sample.text
        assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
        lengths = [len(o.outputs[sample.index].token_ids) for o in growing]
        assert lengths == sorted(lengths), "an output does not grow after it was given"
        deltas = [s for o in found[RequestOutputKind.DELTA] for s in o.outputs if s.index == sample.index]
        assert "".join(s.text for s in deltas) == sample.text
        assert [t for s in deltas for t in s.token_ids] == sample.token_ids
        assert [entry for s in deltas for entry in s.logprobs or ()] == sample.logprobs
        assert [s.finish_reason for s in deltas] == [None] * (len(deltas) - 1) + ["length"]
        assert deltas[-1].cumulative_logprob == sample.cumulative_logprob


@pytest.mark.usefixtures("slow")
def test_abort_ends_one_request(target_file: Path) -> None:
    async def main() -> None:
        async with AsyncLLM(target_file, speculative_config="none") as engine:
            other = asyncio.create_task(collect(engine.generate(PROMPTS[1], SamplingParams(**SEEDED), "b")))
            seen = []
            async for output in engine.generate(PROMPTS[0], SamplingParams(**LONG), request_id="a"):
                seen.append(output)
                if len(seen) == 3:
                    await engine.abort("a")
                    await engine.abort(["a", "nobody"])
            last = seen[-1]
            assert last.finished
            assert last.outputs[0].finish_reason == "abort"
            assert 3 <= len(last.outputs[0].token_ids) < 100
            assert (await other)[-1].outputs[0].finish_reason == "length"
            await until_idle(engine)
            (again,) = await collect(  # the id is free again
                engine.generate(PROMPTS[0], SamplingParams(max_tokens=1), request_id="a")
            )
            assert again.finished

    run(main())


@pytest.mark.usefixtures("slow")
def test_a_cancelled_task_aborts_its_request(target_file: Path) -> None:
    async def main() -> None:
        async with AsyncLLM(target_file, speculative_config="none") as engine:
            started = asyncio.Event()

            async def reader() -> None:
                async for _ in engine.generate(PROMPTS[0], SamplingParams(**LONG), "a"):
                    started.set()

            task = asyncio.create_task(reader())
            await started.wait()
            assert not idle(engine)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until_idle(engine)
            assert engine._engine is not None
            assert engine._engine.stats.finished["abort"] == 1

    run(main())


@pytest.mark.usefixtures("slow")
def test_an_iterator_that_is_left_aborts_its_request(target_file: Path) -> None:
    async def main() -> None:
        async with AsyncLLM(target_file, speculative_config="none") as engine:
            async for _ in engine.generate(PROMPTS[0], SamplingParams(**LONG), "a"):
                break
            await until_idle(engine)
            async with contextlib.aclosing(engine.generate(PROMPTS[0], SamplingParams(**LONG))) as outputs:
                await anext(outputs)
            await until_idle(engine)
            assert engine._engine is not None
            assert engine._engine.stats.finished["abort"] == 2

    run(main())


def test_an_abort_before_the_engine_has_the_request(target_file: Path) -> None:
    async def main() -> None:
        async with AsyncLLM(target_file) as engine:
            made = threading.Event()
            make = engine._maker.make

            def late(*arguments: Any) -> Any:
                assert made.wait(30)
                return make(*arguments)

            engine._maker.make = late  # type: ignore[method-assign, assignment]
            task = asyncio.create_task(collect(engine.generate(PROMPTS[0], SamplingParams(**LONG), "a")))
            await asyncio.sleep(0)
            await engine.abort("a")
            made.set()
            (output,) = await task
            assert output.finished
            assert (output.outputs[0].finish_reason, output.outputs[0].token_ids) == ("abort", [])

    run(main())


def test_bad_requests_harm_no_other(target_file: Path) -> None:
    async def main() -> None:
        async with AsyncLLM(target_file) as engine:
            for prompt, arguments, error, words in (
                ("", {}, PromptError, "empty"),
                ([999], {}, PromptError, "999"),
                ([5] * 300, {}, PromptError, "256"),
                ("a", {"sampling_params": {"n": 2}}, ConfigError, "SamplingParams"),
                ("a", {"lora_request": "x"}, ConfigError, "adapters"),
                ("a", {"sampling_parms": None}, ConfigError, "did you mean 'sampling_params'"),
                ("a", {"sampling_params": SamplingParams(regex="(")}, ConfigError, "regex"),
            ):
                with pytest.raises(error, match=words):
                    await collect(engine.generate(prompt, **arguments))
            outputs = await collect(engine.generate("a", SamplingParams(max_tokens=2), lora_request=None))
            assert outputs[-1].finished
            assert not engine._running

    run(main())


@pytest.mark.usefixtures("slow")
def test_an_id_in_use_is_refused(target_file: Path) -> None:
    async def main() -> None:
        async with AsyncLLM(target_file) as engine:
            first = engine.generate(PROMPTS[0], SamplingParams(**LONG), "a")
            await anext(first)
            with pytest.raises(ConfigError, match="'a' is that of a running request"):
                await collect(engine.generate(PROMPTS[1], SamplingParams(**LONG), "a"))
            assert (await anext(first)).request_id == "a"
            await first.aclose()

    run(main())


def test_parameters_that_change_later_do_not_reach_a_request(target_file: Path) -> None:
    async def main() -> int:
        async with AsyncLLM(target_file) as engine:
            params = SamplingParams(**{**SEEDED, "max_tokens": 9})
            outputs = engine.generate(PROMPTS[0], params)
            last = await anext(outputs)
            params.max_tokens = 2
            async for output in outputs:
                last = output
            return len(last.outputs[0].token_ids)

    assert run(main()) == 9


def test_seeds_of_the_engine_repeat(target_file: Path) -> None:
    async def main() -> list[list[int]]:
        async with AsyncLLM(target_file, seed=3) as engine:
            params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
            return [(await collect(engine.generate("a", params)))[-1].outputs[0].token_ids for _ in range(2)]

    expected = LLM(target_file, seed=3).generate(
        ["a", "a"], SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    )
    assert run(main()) == [o.outputs[0].token_ids for o in expected]


@pytest.mark.usefixtures("slow")
def test_shutdown_ends_what_runs(target_file: Path) -> None:
    async def main() -> None:
        engine = AsyncLLMEngine.from_engine_args(EngineArgs(str(target_file)), usage_context=None)
        await engine.check_health()
        assert engine.is_running
        outputs = engine.generate(PROMPTS[0], SamplingParams(**LONG))
        await anext(outputs)
        await asyncio.to_thread(engine.shutdown)
        engine.shutdown()
        last = (await collect(outputs))[-1]
        assert (last.finished, last.outputs[0].finish_reason) == (True, "abort")
        assert engine.errored
        assert engine.is_stopped
        with pytest.raises(ConfigError, match="shut down"):
            await collect(engine.generate("a"))
        with pytest.raises(ConfigError, match="shut down"):
            await engine.check_health()
        assert len(engine.get_tokenizer()) == 320

    run(main())


def test_an_engine_that_nobody_shuts_down_ends_with_its_owner(target_file: Path) -> None:
    engine = AsyncLLM(target_file)
    assert engine._engine is not None
    thread = engine._engine._thread
    assert thread.is_alive()
    del engine
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_an_engine_that_fails_says_so(target_file: Path) -> None:
    async def main() -> None:
        async with AsyncLLM(target_file) as engine:
            assert engine._engine is not None
            target = engine._engine._pipeline.engine

            def score(*_: object) -> None:
                raise RuntimeError("broken")

            target.score = score  # type: ignore[method-assign, assignment]
            with pytest.raises(EngineFailed, match="broken"):
                await collect(engine.generate("a", SamplingParams(**LONG)))
            with pytest.raises(EngineFailed):
                await engine.check_health()
            assert engine.errored

    run(main())


def test_one_engine_serves_several_event_loops(target_file: Path) -> None:
    engine = AsyncLLM(target_file)
    try:
        texts = {
            run(collect(engine.generate("the fox", SamplingParams(**SEEDED))))[-1].outputs[0].text
            for _ in range(2)
        }
        assert len(texts) == 1
    finally:
        engine.shutdown()


def test_arguments_are_those_of_llm(target_file: Path) -> None:
    with pytest.raises(ConfigError, match="use 'max_model_len'"):
        AsyncLLM(target_file, n_ctx=64)
    with pytest.raises(ConfigError, match="AsyncEngineArgs"):
        AsyncLLM.from_engine_args({"model": "x"})  # type: ignore[arg-type]
    engine = AsyncLLM(target_file, max_model_len=24)
    try:
        params = SamplingParams(temperature=0, max_tokens=500, ignore_eos=True)
        params.output_kind = RequestOutputKind.FINAL_ONLY
        (output,) = run(collect(engine.generate("the fox", params)))
        assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 24
    finally:
        engine.shutdown()
