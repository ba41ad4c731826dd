"""The server's engine, as its event loop uses it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from outrider import memory
from outrider.config.engine import parse_engine
from outrider.decoding.context import TokenContext
from outrider.decoding.events import Event, TokenEvent
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import FloatArray
from outrider.drafters.prediction import PredictionDrafter
from outrider.engines.base import ForwardItem
from outrider.engines.step import CachedStepEngine
from outrider.errors import ConfigError, InsufficientMemoryError, PromptError
from outrider.pipeline import Pipeline
from outrider.server.engine.async_engine import Draining, EngineFailed, QueueFull, ServerEngine, Stream
from outrider.server.engine.capacity import Capacity, before_loading
from tests.server.engine_support import (
    SECONDS,
    alone,
    ends,
    read,
    reasons,
    request,
    serve,
    tokens,
    toy_pipeline,
)
from tests.support.models import Dims, tiny_gguf
from tests.support.toy_model import ToyModel


class Gated(ToyModel):
    """Runs while it is open, else as many passes as are allowed; fails on demand; looks before each."""

    def __init__(self) -> None:
        super().__init__(320, 256)
        self._open, self._allowed = True, threading.Semaphore(0)
        self.error: BaseException | None = None
        self.look: Callable[[], object] = lambda: None

    def close(self) -> None:
        self._open = False

    def allow(self, passes: int) -> None:
        self._allowed.release(passes)

    def open(self) -> None:
        self._open = True
        self._allowed.release()  # of the one that waits

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        if not self._open:
            assert self._allowed.acquire(timeout=SECONDS)
        self.look()
        if self.error is not None:
            raise self.error
        return super().forward(items)


@pytest.fixture
def pipeline(target_file: Path) -> Pipeline:
    return toy_pipeline(target_file)


def gated(target_file: Path, speculative: str | None = None) -> tuple[Pipeline, Gated]:
    model = Gated()
    engine = CachedStepEngine(model)
    return replace(toy_pipeline(target_file, speculative), engine=engine), model


def test_samples_of_a_request_come_through_one_stream(pipeline: Pipeline) -> None:
    asked = [request("a"), request("b", [4]), request("c", [5])]

    async def client(engine: ServerEngine) -> list[Event]:
        stream = engine.submit(asked)
        events = await read(stream)
        assert stream.finished
        assert await stream.batch() == []
        stream.cancel()  # too late, and no matter
        return events

    events = serve(ServerEngine(pipeline), client)
    for sample in asked:
        assert tokens(events, sample.request_id) == alone(pipeline, sample) != []
    assert reasons(events) == dict.fromkeys("abc", "length")
    assert [type(event).__name__ for event in events if event.request_id == "b"][-1] == "FinishEvent"


def test_streams_are_apart_and_may_be_read_in_batches(pipeline: Pipeline) -> None:
    async def client(engine: ServerEngine) -> tuple[list[Event], list[Event]]:
        first, second = engine.submit([request("a")]), engine.submit([request("b", [9])])
        batches = []
        while batch := await second.batch():
            batches += batch
        return await read(first), batches

    first, second = serve(ServerEngine(pipeline), client)
    assert tokens(first, "a") == alone(pipeline, request("a"))
    assert tokens(second, "b") == alone(pipeline, request("b", [9]))
    assert {e.request_id for e in first} == {"a"}
    assert {e.request_id for e in second} == {"b"}


def test_what_can_never_run_is_refused_at_the_door(pipeline: Pipeline) -> None:
    async def client(engine: ServerEngine) -> None:
        with pytest.raises(PromptError, match="256 tokens; a context of 256 has room for 255"):
            engine.submit([request("a", [1] * 256)])
        with pytest.raises(PromptError, match="token id 320; the vocabulary ends at 319"):
            engine.submit([request("a"), request("b", [1, 320])])
        with pytest.raises(PromptError, match="token id -1"):
            engine.submit([request("a", [-1])])
        with pytest.raises(ConfigError, match="logit_bias has the id 320"):
            engine.submit([request("a", logit_bias={320: 1.0})])
        with pytest.raises(ConfigError, match="not in use"):
            engine.submit([request("a"), request("a")])
        with pytest.raises(ConfigError, match="not in use"):
            engine.submit([])
        with pytest.raises(ConfigError, match="holds at most 5"):
            engine.submit([request(str(i)) for i in range(6)])
        stream = engine.submit([request("a")])
        with pytest.raises(ConfigError, match="not in use"):
            engine.submit([request("a")])
        assert reasons(await read(stream)) == {"a": "length"}
        assert reasons(await read(engine.submit([request("a")]))) == {"a": "length"}  # free again
        assert dict(engine.stats.finished) == {"length": 2, "stop": 0, "abort": 0, "error": 0}

    serve(ServerEngine(pipeline, max_waiting=3), client)


def test_a_full_queue_reports_when_to_try_again(target_file: Path) -> None:
    pipeline, model = gated(target_file)

    async def client(engine: ServerEngine) -> None:
        model.close()
        first = engine.submit([request("a"), request("b")])
        second = engine.submit([request("c")])
        with pytest.raises(QueueFull) as full:
            engine.submit([request("d"), request("e")])
        assert 1 <= full.value.retry_after <= 60
        assert "try again in" in str(full.value)
        third = engine.submit([request("d")])
        with pytest.raises(QueueFull):
            engine.submit([request("e")])
        model.open()
        for stream in (first, second, third):
            assert set(reasons(await read(stream)).values()) == {"length"}
        assert reasons(await read(engine.submit([request("e")]))) == {"e": "length"}
        assert (engine.stats.running, engine.stats.waiting) == (0, 0)

    serve(ServerEngine(pipeline, max_waiting=2), client)


def limit_for(pipeline: Pipeline, asked: Request) -> int:
    """The memory limit that leaves exactly the cache memory that a request can need, with a prediction as
    long as its positions."""
    plenty = 10**10
    room, most = pipeline.context - len(asked.prompt), asked.params.max_tokens
    asked = replace(asked, prediction=(1,) * (len(asked.prompt) + (room if most is None else most)))
    engine = ServerEngine(pipeline, memory_limit=plenty, prefix_bytes=0)
    stats = engine.stats
    return plenty - stats.cache_limit - stats.lookup_limit + need(pipeline, asked, plenty)


def need(pipeline: Pipeline, asked: Request, limit: int) -> int:
    """Bytes of cache memory that a request can need in an engine with a memory limit."""
    return Capacity(pipeline, limit, 0).need(asked)


def test_a_prediction_counts_as_text(target_file: Path) -> None:
    pipeline = toy_pipeline(target_file)
    plain, predicted = (
        request("a", max_tokens=20),
        replace(request("a", max_tokens=20), prediction=(1,) * 50),
    )
    assert need(pipeline, predicted, 10**10) - need(pipeline, plain, 10**10) == 50 * memory.TEXT_BYTES
    drafter = PredictionDrafter()
    drafter.begin(replace(plain, prediction=tuple(range(20_000))))
    drafter.lookup(ProposeJob("a", TokenContext(plain.prompt), 4, Sampler(plain.params, 30_000)), 4)
    assert drafter.nbytes < 20_000 * memory.TEXT_BYTES, "of different tokens, which take most"


def test_a_request_waits_for_memory(target_file: Path) -> None:
    pipeline, model = gated(target_file, "ngram")
    limit = limit_for(pipeline, request("a", max_tokens=None))

    def predicting(name: str, size: int) -> Request:
        return replace(request(name, max_tokens=size), prediction=(1,) * size)

    needs = {size: need(pipeline, predicting("a", size), limit) for size in (200, 20)}
    engine = ServerEngine(pipeline, memory_limit=limit, prefix_bytes=0)
    used: list[int] = []
    places: list[int] = []
    model.look = lambda: used.append(engine.stats.cache_bytes)

    async def client(engine: ServerEngine) -> None:
        for size, bytes_needed in needs.items():  # there are two places each time
            asked = [predicting(name, size) for name in "abc"]
            used.clear()
            model.close()
            streams = [engine.submit([sample]) for sample in asked]
            model.open()
            found = [await read(stream) for stream in streams]
            places.append(round(max(used) / bytes_needed))
            assert max(used) <= engine.stats.cache_limit
            for sample, events in zip(asked, found, strict=True):
                assert tokens(events, sample.request_id) == alone(pipeline, sample)
        assert engine.stats.cache_bytes == 0

    serve(engine, client)
    assert places == [1, 2]


def test_a_context_that_does_not_fit_is_cut_unless_it_was_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tiny_gguf(tmp_path / "target.gguf", dims=Dims(context=8192))
    pipeline = toy_pipeline(path)
    limit = limit_for(pipeline, request("a", [1] * 5000, max_tokens=5))
    engine = ServerEngine(pipeline, memory_limit=limit, prefix_bytes=0)
    assert 5005 <= engine.context < 5005 + 16
    assert "memory is short: a context of 50" in caplog.text
    assert need(pipeline, request("a", max_tokens=None), limit) <= engine.stats.cache_limit

    async def client(engine: ServerEngine) -> None:
        with pytest.raises(PromptError, match=r"6000 tokens; a context of 50.. has room"):
            engine.submit([request("a", [1] * 6000)])

    serve(engine, client)
    asked_for = toy_pipeline(path, max_model_len=8192)
    with pytest.raises(InsufficientMemoryError, match="one sequence of 8192 tokens"):
        ServerEngine(asked_for, memory_limit=limit, prefix_bytes=0)
    assert ServerEngine(pipeline, memory_limit=10**9).context == 8192


def test_recent_outputs_have_a_share_of_the_memory(target_file: Path) -> None:
    sharing, not_sharing = (
        toy_pipeline(target_file, {"method": method, "num_speculative_tokens": 5})
        for method in ("suffix", "ngram")
    )

    async def client(engine: ServerEngine) -> None:
        await read(engine.submit([request("a")]))
        assert engine.stats.lookup_bytes == 0, "a request without a namespace shares nothing"
        for name in "bcd":
            await read(engine.submit([request(name, namespace="key")]))
        assert 0 < engine.stats.lookup_bytes <= engine.stats.lookup_limit

    plenty = ServerEngine(sharing, memory_limit=10**10, prefix_bytes=0)
    serve(plenty, client)
    none = ServerEngine(not_sharing, memory_limit=10**10, prefix_bytes=0)
    assert none.stats.lookup_limit == 0 < plenty.stats.lookup_limit
    assert plenty.stats.cache_limit == none.stats.cache_limit - plenty.stats.lookup_limit
    exact = limit_for(sharing, request("a", max_tokens=None))
    short = ServerEngine(sharing, memory_limit=exact, prefix_bytes=0)
    assert (short.stats.lookup_limit, short.stats.lookup_bytes) == (0, 0), "and what was kept is dropped"


def test_too_little_memory_is_reported_at_the_start(pipeline: Pipeline) -> None:
    with pytest.raises(InsufficientMemoryError, match="one sequence of 256 tokens"):
        ServerEngine(pipeline, memory_limit=10**6)
    with pytest.raises(ConfigError, match="max_waiting"):
        ServerEngine(pipeline, max_waiting=-1)


def test_a_cancelled_request_frees_its_place_with_the_next_step(target_file: Path) -> None:
    pipeline, model = gated(target_file)

    async def client(engine: ServerEngine) -> None:
        long = [engine.submit([request(name, max_tokens=200)]) for name in "ab"]
        waiting, next_one = engine.submit([request("c")]), engine.submit([request("d")])
        await long[0].batch()
        model.close()
        long[0].cancel()
        long[0].cancel()
        waiting.cancel()
        model.allow(2)  # the pass under way, and the one that tells
        for name, stream in (("c", waiting), ("a", long[0])):
            assert reasons(await read(stream)) == {name: "abort"}
        assert (engine.stats.running, engine.stats.waiting) == (2, 0)
        model.open()
        assert reasons(await read(next_one)) == {"d": "length"}
        assert not long[1].finished
        async with long[1]:
            pass
        assert reasons(await read(long[1])) == {"b": "abort"}
        assert engine.stats.running == 0

    serve(ServerEngine(pipeline), client)


def test_an_unread_stream_delays_no_other(pipeline: Pipeline) -> None:
    async def client(engine: ServerEngine) -> None:
        unread = engine.submit([request("a", max_tokens=200)])
        for turn in range(5):
            assert await read(engine.submit([request(f"b{turn}")]))
        while not unread.finished:
            await asyncio.sleep(0.01)
        assert tokens(await unread.batch(), "a") == alone(pipeline, request("a", max_tokens=200))

    serve(ServerEngine(pipeline), client)


def test_an_event_loop_that_is_gone_frees_its_places(pipeline: Pipeline) -> None:
    engine = ServerEngine(pipeline, max_waiting=0)

    async def vanish() -> None:
        engine.submit([request("a", max_tokens=200), request("b", max_tokens=200)])

    asyncio.run(vanish())

    async def client(engine: ServerEngine) -> None:
        while True:  # the places of the vanished
            try:
                stream = engine.submit([request("c")])
                break
            except QueueFull:
                await asyncio.sleep(0.01)
        assert reasons(await read(stream)) == {"c": "length"}
        assert engine.stats.finished["abort"] == 2

    serve(engine, client)


@pytest.mark.parametrize("patience", [SECONDS, 0.0])
def test_draining_lets_run_what_runs_as_long_as_there_is_patience(target_file: Path, patience: float) -> None:
    pipeline, model = gated(target_file)
    asked = [request("a", max_tokens=200), request("b", max_tokens=200), request("c", [4])]

    async def client(engine: ServerEngine) -> None:
        streams = [engine.submit([sample]) for sample in asked]
        await streams[0].batch()
        model.close()
        draining = asyncio.ensure_future(engine.drain(patience))
        await asyncio.sleep(0.05)
        with pytest.raises(Draining):
            engine.submit([request("d")])
        model.open()
        await draining
        expected = "length" if patience else "abort"
        for sample, stream in zip(asked, streams, strict=True):
            events = await read(stream)
            assert reasons(events) == {sample.request_id: expected}
        assert not any(thread.name == "outrider-engine" for thread in threading.enumerate())
        assert engine.healthy
        await engine.drain(1.0)  # again, to no effect

    serve(ServerEngine(pipeline), client)


def test_draining_that_is_cancelled_ends_all_at_once(target_file: Path) -> None:
    pipeline, model = gated(target_file)

    async def client(engine: ServerEngine) -> None:
        stream = engine.submit([request("a", max_tokens=200)])
        await stream.batch()
        model.close()
        draining = asyncio.ensure_future(engine.drain(SECONDS))
        await asyncio.sleep(0.01)
        draining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await draining
        model.open()
        assert reasons(await read(stream)) == {"a": "abort"}

    serve(ServerEngine(pipeline), client)


def stopping(engine: ServerEngine) -> bool:
    """Whether an engine that runs "a" accepts no more requests."""
    try:
        engine.submit([request("a")])
    except Draining:
        return True
    except ConfigError:  # the id is in use
        return False
    raise AssertionError("a ended")


def test_stop_ends_all_at_once(target_file: Path) -> None:
    pipeline, model = gated(target_file)

    async def client(engine: ServerEngine) -> None:
        model.close()
        streams = [engine.submit([request(name, max_tokens=200)]) for name in "abcd"]
        model.allow(3)
        await streams[0].batch()
        stop = asyncio.create_task(asyncio.to_thread(engine.stop))
        while not stopping(engine):
            await asyncio.sleep(0.001)
        model.open()
        await stop
        assert engine.stats.output_tokens <= 2 * 4, "of two samples, three passes and the one under way"
        for stream in streams:
            (end,) = ends(await read(stream)).values()
            assert end.finish_reason == "abort"
        with pytest.raises(Draining, match="stopping"):
            engine.submit([request("e")])

    serve(ServerEngine(pipeline), client)


def test_an_engine_that_never_started_can_be_stopped(pipeline: Pipeline) -> None:
    async def client() -> None:
        engine = ServerEngine(pipeline)
        stream = engine.submit([request("a")])
        await engine.drain(1.0)
        assert reasons(await read(stream)) == {"a": "abort"}

    asyncio.run(client())


def healthy(engine: ServerEngine) -> bool:
    return engine.healthy


@pytest.mark.parametrize("error", [RuntimeError("the target broke"), SystemExit(3), MemoryError()])
def test_a_broken_engine_ends_all_requests_with_an_error(
    target_file: Path, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline, model = gated(target_file)

    async def client(engine: ServerEngine) -> None:
        streams: list[Stream] = [engine.submit([request(name, max_tokens=200)]) for name in "abc"]
        await streams[0].batch()
        assert healthy(engine)
        model.error = error
        for stream in streams:
            (end,) = ends(await read(stream)).values()
            assert end.finish_reason == "error"
            assert isinstance(end.error, EngineFailed)
            assert type(error).__name__ in str(end.error)
        assert not healthy(engine)
        with pytest.raises(Draining, match="failed"):
            engine.submit([request("d")])
        assert (engine.stats.running, engine.stats.waiting) == (0, 0)
        assert engine.stats.finished["error"] == 3
        await engine.drain(SECONDS)

    serve(ServerEngine(pipeline), client)
    assert "the engine failed" in caplog.text


def test_totals_count_what_was_done(pipeline: Pipeline) -> None:
    async def client(engine: ServerEngine) -> None:
        stream = engine.submit([request("a", [7, 8] * 20, max_tokens=100)])
        await stream.batch()
        assert engine.stats.running == 1
        assert engine.stats.target_passes > 0  # while it runs
        events = await read(stream)
        metrics, stats = ends(events)["a"].metrics, engine.stats
        assert stats.drafts == metrics.drafts
        assert stats.drafts.num_drafts > 0
        assert stats.by_drafter == metrics.by_drafter
        assert sum(stats.accepted_per_pos) == metrics.drafts.num_accepted_tokens
        assert (stats.prompt_tokens, stats.output_tokens) == (40, 100)
        assert sum(stats.by_kind.values()) == 100
        assert stats.by_kind.get("accepted", 0) == metrics.drafts.num_accepted_tokens
        assert 0 < stats.verify_seconds + stats.other_seconds < stats.step_seconds
        assert stats.steps >= metrics.num_passes == stats.target_passes
        assert stats.speculation == metrics.speculation != ""

    serve(ServerEngine(pipeline), client)


def test_memory_is_divided_before_a_weight_is_loaded(pipeline: Pipeline) -> None:
    """For one sequence at least, however many may run at a time."""
    config = parse_engine("target.gguf", "ngram", max_num_seqs=8)
    before_loading(10**7)(config, 256, [pipeline.source])
    before_loading(None)(config, 256, [pipeline.source])
    with pytest.raises(InsufficientMemoryError, match="one sequence of 256 tokens"):
        before_loading(10**6)(config, 256, [pipeline.source])


def test_requests_share_prefixes_within_their_namespace(pipeline: Pipeline) -> None:
    async def client(engine: ServerEngine) -> list[int]:
        hits = []
        for number, namespace in enumerate(("a", "a", "b", None, "b")):
            asked = request(f"r{number}", [7] * 40, namespace=namespace)
            events = await read(engine.submit([asked]))
            assert tokens(events, asked.request_id) == alone(pipeline, asked)
            hits.append(engine.stats.prefix_hit_tokens)
        reported = request("p", [7] * 40, namespace="a", prompt_logprobs=1)
        events = await read(engine.submit([reported]))
        (first,) = [e for e in events if isinstance(e, TokenEvent) and e.prompt_logprobs is not None]
        assert first.prompt_logprobs is not None
        assert len(first.prompt_logprobs) == 39
        return [*hits, engine.stats.prefix_hit_tokens]

    assert serve(ServerEngine(pipeline), client) == [0, 36, 36, 36, 72, 72]
