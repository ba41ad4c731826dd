"""The events of one submitted request, on their way from the engine's thread to an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

from outrider.decoding.events import Event, FinishEvent


class Stream:
    """An async iterator of the events of a request's samples, in the order in which they came.

    It ends after the FinishEvent of the last sample. One task may read it, or none: what is unread is kept
    (a request has at most max_tokens events) and never holds the engine up. Leaving `async with` cancels.

    request_ids: the samples', in the order submitted.
    """

    def __init__(self, request_ids: Sequence[str], cancel: Callable[[Stream], None]) -> None:
        self.request_ids = tuple(request_ids)
        self.loop = asyncio.get_running_loop()
        self._cancel = cancel
        self._running = set(request_ids)
        self._events: deque[Event] = deque()
        self._news = asyncio.Event()

    @property
    def finished(self) -> bool:
        """Whether every sample has ended; its events may still be unread."""
        return not self._running

    def push(self, events: Iterable[Event]) -> None:
        """Add events; for the engine, in the event loop's thread."""
        for event in events:
            self._events.append(event)
            if isinstance(event, FinishEvent):
                self._running.discard(event.request_id)
        self._news.set()

    def cancel(self) -> None:
        """End what still runs, at the engine's next step, with the finish reason "abort". May be called
        at any time, more than once, and from any thread."""
        if self._running:
            self._cancel(self)

    async def batch(self) -> list[Event]:
        """All events that have come and were not read, at least one; [] when the stream has ended."""
        while not self._events:
            if self.finished:
                return []
            self._news.clear()
            await self._news.wait()
        events = list(self._events)
        self._events.clear()
        return events

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self.finished:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._events.popleft()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
