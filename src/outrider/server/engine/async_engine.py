"""The engine behind the server: one thread owns the step loop, an event loop submits and listens.

The two meet in a few fields under one lock (what has come, what is cancelled) and in `call_soon_threadsafe`
(what a step told). Nothing that a client does, or leaves undone, makes the engine's thread wait.
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
from outrider.policy.auto import AutoController
from outrider.server.engine.capacity import Capacity
from outrider.server.engine.scheduler import Scheduler
from outrider.server.engine.stats import CountingController, EngineStats, Totals
from outrider.server.engine.stream import Stream

__all__ = ["Draining", "EngineFailed", "EngineStats", "QueueFull", "ServerEngine", "Stream"]

logger = logging.getLogger(__name__)

CURVE_SECONDS = 0.25  # between looks at the cost curve


class QueueFull(OutriderError):  # noqa: N818
    """The queue is full (HTTP 429).

    retry_after: seconds after which there is likely to be room, 1 to 60.
    """

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too many requests are waiting; try again in {retry_after:.0f} s")
        self.retry_after = retry_after


class Draining(OutriderError):  # noqa: N818
    """No request is taken any more: the server is stopping, or its engine has failed (HTTP 503)."""


class EngineFailed(OutriderError):  # noqa: N818
    """The engine itself failed while a request ran; it was not the request's fault (HTTP 500)."""


class ServerEngine:
    """Runs requests of many clients through one pipeline, in a thread of its own.

    pipeline:     target and drafter; the engine alone may use them from `start` on.
    max_waiting:  most samples that wait for one of the pipeline's `max_num_seqs` places.
    memory_limit: bytes for weights, caches and buffers together; None for most of what is available.
    prefix_bytes: of them for the prefix caches; 0 turns these off, None leaves it to `memory.share_out`.

    A request runs once all that it may come to hold (prompt and max_tokens, in every model) is reserved.
    Raises InsufficientMemoryError when a sequence does not fit, and ConfigError for a negative number.
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
        self._controller = pipeline.drafting.controller
        counting = CountingController(self._controller, self._totals)
        self._pipeline = replace(
            pipeline,
            drafting=replace(pipeline.drafting, controller=counting),
            context=self._capacity.context,
        )
        self._slots, self._max_waiting = pipeline.config.max_num_seqs, max_waiting
        self._wake = threading.Condition()
        # Under the lock:
        self._open: dict[str, Stream] = {}  # every unfinished sample
        self._arrived: deque[Request] = deque()
        self._cancelled: deque[Stream] = deque()
        self._taking = True  # requests
        self._stopping = False
        self._failure: BaseException | None = None
        self._counts = (0, 0)  # running, waiting in the scheduler
        # The engine's thread:
        self._prompt_tokens: dict[str, int] = {}
        self._pace = DrainRate()
        self._curve_due = 0.0
        self._thread = threading.Thread(target=self._work, name="outrider-engine", daemon=True)

    # --- The event loop's side -------------------------------------------------------------------

    def start(self) -> None:
        """Start the engine's thread. Requests submitted before wait for it. Call once."""
        self._thread.start()

    def submit(self, requests: Sequence[Request]) -> Stream:
        """Queue the samples of one request, all or none. Call from a running event loop's thread.

        Raises Full when the queue has no room for them, Draining when none are taken any more, PromptError
        and ConfigError when they could never run here: a prompt too long for `context`, ids outside the
        vocabulary, more samples than the queue holds, an id in use.
        """
        for request in requests:
            self._check(request)
        ids = [request.request_id for request in requests]
        with self._wake:
            if self._failure is not None:
                raise Draining("the engine has failed; the server must be started again")
            if not self._taking:
                raise Draining("the server is stopping")
            if not ids or len(set(ids)) < len(ids) or any(i in self._open for i in ids):
                raise ConfigError("every sample needs a request id that is not in use")
            most = self._slots + self._max_waiting
            if len(ids) > most:
                raise ConfigError(f"{len(ids)} samples are too many: this server holds at most {most}")
            if (over := len(self._open) + len(ids) - most) > 0:
                raise QueueFull(self._pace.wait(over))
            stream = Stream(ids, self._cancel)
            self._open.update(dict.fromkeys(ids, stream))
            self._arrived.extend(requests)
            self._wake.notify_all()
        return stream

    async def drain(self, seconds: float) -> None:
        """Take no more requests, let those there are run for at most `seconds`, abort what is left then, and
        end the thread. Cancelled, it aborts them at once."""
        with self._wake:
            self._taking = False
            self._wake.notify_all()
        try:
            if self._thread.is_alive():
                await asyncio.to_thread(self._thread.join, max(0.0, seconds))
        finally:
            self._halt()
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        """Abort everything and end the thread, which takes until its pass is over."""
        self._halt()
        if self._thread.is_alive():
            self._thread.join()
        self._end_all()

    def _halt(self) -> None:
        """Tell the thread to end."""
        with self._wake:
            self._taking, self._stopping = False, True
            self._wake.notify_all()

    @property
    def context(self) -> int:
        """Most positions of a sequence: the pipeline's, or fewer where memory is short."""
        return self._pipeline.context

    @property
    def healthy(self) -> bool:
        """False after the engine itself failed: nothing runs any more, and nothing will."""
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
        """Raise PromptError or ConfigError when a request can never run here."""
        pipeline = self._pipeline
        check_prompt(request.prompt, pipeline.engine.vocab_size, pipeline.context)
        size = pipeline.vocab_size
        Sampler(request.params, size, request.eos_ids, request.seed, bad_words=request.bad_words)

    def _cancel(self, stream: Stream) -> None:
        with self._wake:
            self._cancelled.append(stream)
            self._wake.notify_all()

    # --- The engine's side -----------------------------------------------------------------------

    def _work(self) -> None:
        try:
            runner = self._pipeline.runner()
            scheduler = Scheduler(
                runner, self._slots, self._capacity.budget, self._capacity.need, time.perf_counter
            )
            try:
                self._note(scheduler)
                while self._collect(scheduler):
                    began = time.perf_counter()
                    events = scheduler.step()
                    self._tell(events, scheduler, time.perf_counter() - began)
            finally:
                runner.close()
            self._end_all()
        except BaseException as error:
            logger.exception("the engine failed")
            with self._wake:
                self._failure, self._taking = error, False
            self._end_all(EngineFailed(f"the engine failed: {type(error).__name__}: {error}"))

    def _collect(self, scheduler: Scheduler) -> bool:
        """Take what has come, waiting for it when there is nothing else to do. False: it is time to end."""
        with self._wake:
            while not (self._arrived or self._cancelled or scheduler.unfinished or self._stopping):
                if not self._taking:
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
        self._note(scheduler)
        return True

    def _note(self, scheduler: Scheduler) -> None:
        self._counts = (scheduler.running, scheduler.waiting)
        if isinstance(self._controller, AutoController):
            self._totals.reckon(self._controller.report.total())
            if (now := time.monotonic()) >= self._curve_due:
                self._curve_due = now + CURVE_SECONDS
                self._totals.curve(*self._controller.pass_seconds())

    def _tell(self, events: Sequence[Event], scheduler: Scheduler, seconds: float) -> None:
        """Count a step's events and hand them to their streams."""
        self._totals.step(seconds)
        self._totals.add(events, self._prompt_tokens)
        told: defaultdict[Stream, list[Event]] = defaultdict(list)
        with self._wake:
            for event in events:
                told[self._open[event.request_id]].append(event)
                if isinstance(event, FinishEvent):
                    del self._open[event.request_id]
                    self._pace.ended(time.monotonic())
            if not self._open:
                self._pace.idle()
            self._note(scheduler)
        for event in events:
            if isinstance(event, FinishEvent):
                self._prompt_tokens.pop(event.request_id, None)
        for stream, batch in told.items():
            if not _hand_over(stream, batch):
                self._cancel(stream)

    def _end_all(self, error: Exception | None = None) -> None:
        """End every sample that is still open: with an error, or else as aborted."""
        with self._wake:
            left, self._open = self._open, {}
            self._arrived.clear()
            self._cancelled.clear()
            self._counts = (0, 0)
        for request_id, stream in left.items():
            event = FinishEvent(request_id, "error" if error else "abort", None, "", RequestMetrics(), error)
            self._totals.add([event], self._prompt_tokens)
            _hand_over(stream, [event])


def _hand_over(stream: Stream, events: Iterable[Event]) -> bool:
    """Whether a stream's event loop still takes events."""
    try:
        stream.loop.call_soon_threadsafe(stream.push, events)
    except RuntimeError:  # the event loop is closed
        return False
    return True


class DrainRate:
    """How long it takes for a place to become free: a running mean of the time between two ends."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._mean = 1.0

    def ended(self, now: float) -> None:
        """A sample ended, at `now` seconds."""
        if self._last is not None:
            self._mean += 0.2 * (now - self._last - self._mean)
        self._last = now

    def idle(self) -> None:
        """Nothing runs: what passes until the next end is not waiting."""
        self._last = None

    def wait(self, places: int) -> float:
        """Seconds until so many places are likely to be free, 1 to 60."""
        return min(60.0, max(1.0, self._mean * places))
