"""The asynchronous engine: one thread owns the step loop, an event loop submits requests and reads events.

They share a few fields under one lock (requests that arrived, streams that were cancelled), and events go to
the event loop by `call_soon_threadsafe`. No client can make the engine's thread wait.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from outrider.decoding.events import Event, FinishEvent
from outrider.decoding.metrics import RequestMetrics
from outrider.decoding.request import Request, check_prompt
from outrider.decoding.sampling.sampler import Sampler
from outrider.errors import ConfigError, OutriderError
from outrider.pipeline import Pipeline
from outrider.server.engine.capacity import Capacity
from outrider.server.engine.scheduler import Scheduler
from outrider.server.engine.stats import CountingController, EngineStats, Totals
from outrider.server.engine.stream import Stream

__all__ = ["Draining", "EngineFailed", "EngineStats", "QueueFull", "ServerEngine", "Stream"]

logger = logging.getLogger(__name__)

CURVE_SECONDS = 0.25  # between readings of the cost curve


class QueueFull(OutriderError):  # noqa: N818
    """The queue is full (HTTP 429).

    retry_after: estimated seconds until the queue has room, 1 to 60.
    """

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too many requests are waiting; try again in {retry_after:.0f} s")
        self.retry_after = retry_after


class Draining(OutriderError):  # noqa: N818
    """No more requests are accepted: the server is stopping, or its engine has failed (HTTP 503)."""


class EngineFailed(OutriderError):  # noqa: N818
    """The engine failed while a request ran; the request is not the cause (HTTP 500)."""


class ServerEngine:
    """Runs requests of many clients through one pipeline, in a thread of its own.

    pipeline:     target and drafter; after `start` only the engine may use them.
    max_waiting:  most samples in the queue, in addition to the `max_num_seqs` that run.
    memory_limit: bytes for weights, caches and buffers together; None for most of the available memory.
    prefix_bytes: bytes of these for the prefix caches; 0 turns them off, None lets `memory.share_out` decide.

    A request starts when the cache memory that it can need (for prompt and max_tokens, in every model) is
    reserved. Raises InsufficientMemoryError when a sequence does not fit, and ConfigError for a negative
    number.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        max_waiting: int = 64,
        memory_limit: int | None = None,
        prefix_bytes: int | None = None,
    ) -> None:
        for name, value in (("max_waiting", max_waiting), ("prefix_bytes", prefix_bytes or 0)):
            if value < 0:
                raise ConfigError(f"{name} must be at least 0, not {value}")
        self._capacity = Capacity(pipeline, memory_limit, prefix_bytes)
        self._totals = Totals()
        self._controller = CountingController(pipeline.drafting.controller, self._totals)
        self._pipeline = replace(
            pipeline,
            drafting=replace(pipeline.drafting, controller=self._controller),
            context=self._capacity.context,
        )
        self._slots, self._max_waiting = pipeline.config.max_num_seqs, max_waiting
        self._wake = threading.Condition()
        # Under the lock:
        self._open: dict[str, Stream] = {}  # every unfinished sample
        self._arrived: deque[Request] = deque()
        self._cancelled: deque[Stream] = deque()
        self._accepting = True
        self._stopping = False
        self._failure: BaseException | None = None
        self._counts = (0, 0)  # running and waiting requests of the scheduler
        # The engine's thread:
        self._prompt_tokens: dict[str, int] = {}
        self._drain_rate = DrainRate()
        self._curve_due = 0.0
        self._thread = threading.Thread(target=self._work, name="outrider-engine", daemon=True)

    # --- Called in the event loop -------------------------------------------------------------------

    def start(self) -> None:
        """Start the engine's thread. Requests may be submitted before. Call once."""
        self._thread.start()

    def submit(self, requests: Sequence[Request]) -> Stream:
        """Queue the samples of one request, all or none. Call from a running event loop's thread.

        Raises QueueFull when the queue has no room for them, Draining when no more requests are accepted,
        PromptError and ConfigError when they can never run here: a prompt too long for `context`, ids outside
        the vocabulary, more samples than the queue can hold, a request id in use.
        """
        for request in requests:
            self._check(request)
        ids = [request.request_id for request in requests]
        with self._wake:
            if self._failure is not None:
                raise Draining("the engine has failed; the server must be started again")
            if not self._accepting:
                raise Draining("the server is stopping")
            if not ids or len(set(ids)) < len(ids) or any(i in self._open for i in ids):
                raise ConfigError("every sample needs a request id that is not in use")
            most = self._slots + self._max_waiting
            if len(ids) > most:
                raise ConfigError(f"{len(ids)} samples are too many: this server holds at most {most}")
            if (over := len(self._open) + len(ids) - most) > 0:
                raise QueueFull(self._drain_rate.wait(over))
            stream = Stream(ids, self._cancel)
            self._open.update(dict.fromkeys(ids, stream))
            self._arrived.extend(requests)
            self._wake.notify_all()
        return stream

    async def drain(self, seconds: float) -> None:
        """Accept no more requests, let the others run for at most `seconds`, then abort them and end the
        thread. Cancelling this coroutine aborts them at once."""
        with self._wake:
            self._accepting = False
            self._wake.notify_all()
        try:
            if self._thread.is_alive():
                await asyncio.to_thread(self._thread.join, max(0.0, seconds))
        finally:
            self._halt()
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        """Abort all requests and end the thread; waits for its current step."""
        self._halt()
        if self._thread.is_alive():
            self._thread.join()
        self._end_all()

    def _halt(self) -> None:
        """Make the thread end after its current step."""
        with self._wake:
            self._accepting, self._stopping = False, True
            self._wake.notify_all()

    @property
    def context(self) -> int:
        """Most positions of a sequence: the pipeline's, or fewer when memory is short."""
        return self._pipeline.context

    @property
    def healthy(self) -> bool:
        """False after the engine failed: no request can run any more."""
        return self._failure is None

    @property
    def stats(self) -> EngineStats:
        """A snapshot, from any thread."""
        with self._wake:
            running, waiting = self._counts
            waiting += len(self._arrived)
        return self._totals.snapshot(
            running=running,
            waiting=waiting,
            max_running=self._slots,
            max_waiting=self._max_waiting,
            **self._capacity.stats(),
        )

    def _check(self, request: Request) -> None:
        """Raise PromptError or ConfigError for a request that can never run here."""
        pipeline = self._pipeline
        check_prompt(request.prompt, pipeline.engine.vocab_size, pipeline.context)
        size = pipeline.vocab_size
        Sampler(request.params, size, request.eos_ids, request.seed, bad_words=request.bad_words)

    def _cancel(self, stream: Stream) -> None:
        with self._wake:
            self._cancelled.append(stream)
            self._wake.notify_all()

    # --- The engine's thread ---------------------------------------------------------------------

    def _work(self) -> None:
        try:
            runner = self._pipeline.runner(awaited=True)
            scheduler = Scheduler(
                runner, self._slots, self._capacity.budget, self._capacity.need, time.perf_counter
            )
            try:
                self._update_stats(scheduler)
                while self._collect(scheduler):
                    began = time.perf_counter()
                    events = scheduler.step()
                    self._deliver(events, scheduler, time.perf_counter() - began)
            finally:
                runner.close()
            self._end_all()
        except BaseException as error:
            logger.exception("the engine failed")
            with self._wake:
                self._failure, self._accepting = error, False
            self._end_all(EngineFailed(f"the engine failed: {type(error).__name__}: {error}"))

    def _collect(self, scheduler: Scheduler) -> bool:
        """Hand new requests and cancellations to the scheduler; wait for some when it has nothing to do.
        False: the thread must end."""
        with self._wake:
            while not (self._arrived or self._cancelled or scheduler.unfinished or self._stopping):
                if not self._accepting:
                    return False
                self._wake.wait()
            if self._stopping:
                return False
            arrived, self._arrived = self._arrived, deque()
            cancelled = [i for s in self._cancelled for i in s.request_ids if self._open.get(i) is s]
            self._cancelled.clear()
        for request in arrived:
            self._prompt_tokens[request.request_id] = len(request.prompt)
            scheduler.add(request)
        for request_id in cancelled:
            scheduler.cancel(request_id)
        self._update_stats(scheduler)
        return True

    def _update_stats(self, scheduler: Scheduler) -> None:
        self._counts = (scheduler.running, scheduler.waiting)
        if (account := self._controller.account()) is not None:
            self._totals.reckon(account)
        if (now := time.monotonic()) >= self._curve_due:
            self._curve_due = now + CURVE_SECONDS
            if (curve := self._controller.pass_seconds()) is not None:
                self._totals.curve(*curve)

    def _deliver(self, events: Sequence[Event], scheduler: Scheduler, seconds: float) -> None:
        """Count a step's events and push them to their streams."""
        self._totals.step(seconds)
        self._totals.add(events, self._prompt_tokens)
        batches: defaultdict[Stream, list[Event]] = defaultdict(list)
        with self._wake:
            for event in events:
                batches[self._open[event.request_id]].append(event)
                if isinstance(event, FinishEvent):
                    del self._open[event.request_id]
                    self._drain_rate.ended(time.monotonic())
            if not self._open:
                self._drain_rate.idle()
            self._update_stats(scheduler)
        for event in events:
            if isinstance(event, FinishEvent):
                self._prompt_tokens.pop(event.request_id, None)
        for stream, batch in batches.items():
            if not _push(stream, batch):
                self._cancel(stream)

    def _end_all(self, error: Exception | None = None) -> None:
        """End all unfinished samples: with the error, or without one as aborted."""
        with self._wake:
            left, self._open = self._open, {}
            self._arrived.clear()
            self._cancelled.clear()
            self._counts = (0, 0)
        for request_id, stream in left.items():
            event = FinishEvent(request_id, "error" if error else "abort", None, "", RequestMetrics(), error)
            self._totals.add([event], self._prompt_tokens)
            _push(stream, [event])


def _push(stream: Stream, events: Iterable[Event]) -> bool:
    """Push events to a stream in its event loop. False when that loop is closed."""
    try:
        stream.loop.call_soon_threadsafe(stream.push, events)
    except RuntimeError:
        return False
    return True


class DrainRate:
    """Estimates when samples will have ended: a moving average of the seconds between two ends."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._mean = 1.0

    def ended(self, now: float) -> None:
        """A sample ended. now: seconds of a monotonic clock."""
        if self._last is not None:
            self._mean += 0.2 * (now - self._last - self._mean)
        self._last = now

    def idle(self) -> None:
        """Nothing runs, so the time until the next end must not count."""
        self._last = None

    def wait(self, samples: int) -> float:
        """Estimated seconds until so many samples have ended, 1 to 60."""
        return min(60.0, max(1.0, self._mean * samples))
