"""The events of one submission, from the engine's thread to an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

from outrider.decoding.events import Event, FinishEvent


class Stream:
    """An async iterator over the events of the samples that were submitted together, in order.

    It ends after the FinishEvent of the last sample. At most one task may read it. Unread events are kept (a
    sample has at most max_tokens + 1), so a slow reader never makes the engine wait. Leaving `async with`
    cancels.

    request_ids: of the samples, in the order of submission.
    """

    def __init__(self, request_ids: Sequence[str], cancel: Callable[[Stream], None]) -> None:
        self.request_ids = tuple(request_ids)
        self.loop = asyncio.get_running_loop()
        self._cancel = cancel
        self._running = set(request_ids)
        self._events: deque[Event] = deque()
        self._has_events = asyncio.Event()

    @property
    def finished(self) -> bool:
        """Whether all samples have ended. Their last events may still be unread."""
        return not self._running

    def push(self, events: Iterable[Event]) -> None:
        """Add events. Called by the engine, in the event loop's thread."""
        for event in events:
            self._events.append(event)
            if isinstance(event, FinishEvent):
                self._running.discard(event.request_id)
        self._has_events.set()

    def cancel(self) -> None:
        """Abort the unfinished samples at the engine's next step. May be called at any time, repeatedly, and
        from any thread."""
        if self._running:
            self._cancel(self)

    async def batch(self) -> list[Event]:
        """All unread events; waits for at least one. [] at the end of the stream."""
        while not self._events:
            if self.finished:
                return []
            self._has_events.clear()
            await self._has_events.wait()
        events = list(self._events)
        self._events.clear()
        return events

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self.finished:
                raise StopAsyncIteration
            self._has_events.clear()
            await self._has_events.wait()
        return self._events.popleft()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
