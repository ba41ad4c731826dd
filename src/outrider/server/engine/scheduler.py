"""Who runs and who waits: first come, first served, as far as slots and memory go. One thread, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from outrider.decoding.events import Event, FinishEvent
from outrider.decoding.metrics import RequestMetrics
from outrider.decoding.request import Request
from outrider.engines.runner import Runner
from outrider.memory import Budget


class Scheduler:
    """Lets requests into a runner while there is a slot and memory for all that each may come to hold.

    slots:  most requests in the runner, at least 1.
    budget: bytes that requests may reserve together.
    need:   bytes that a request may come to hold.
    clock:  seconds, for metrics only.
    """

    def __init__(
        self,
        runner: Runner,
        slots: int,
        budget: Budget,
        need: Callable[[Request], int],
        clock: Callable[[], float],
    ) -> None:
        self._runner, self._slots, self._budget, self._need, self._clock = runner, slots, budget, need, clock
        self._waiting: deque[Request] = deque()
        self._running: set[str] = set()
        self._arrived: dict[str, float] = {}  # when, until it is told that the request has ended
        self._outbox: list[Event] = []

    @property
    def running(self) -> int:
        """Requests in the runner."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot or for memory."""
        return len(self._waiting)

    @property
    def unfinished(self) -> bool:
        """Whether `step` has more to do or to tell."""
        return bool(self._running or self._waiting or self._outbox or self._runner.unfinished)

    def add(self, request: Request) -> None:
        """Put a request at the end of the queue."""
        self._waiting.append(request)
        self._arrived[request.request_id] = self._clock()

    def cancel(self, request_id: str) -> None:
        """End a request now; its FinishEvent comes with the next step. An unknown id is ignored."""
        for request in self._waiting:
            if request.request_id == request_id:
                self._waiting.remove(request)
                self._outbox.append(FinishEvent(request_id, "abort", None, "", RequestMetrics()))
                return
        self._runner.abort(request_id)
        self._leave(request_id)

    def step(self) -> list[Event]:
        """Let in whom there is room for, then one step of the runner. An engine's exception goes through."""
        self._admit()
        events, self._outbox = self._outbox, []
        if self._runner.unfinished:
            events += self._runner.step()
        for event in events:
            if isinstance(event, FinishEvent):
                event.metrics.arrived = self._arrived.pop(event.request_id)  # the time in the queue counts
                self._leave(event.request_id)
        return events

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._slots:
            request = self._waiting[0]
            if not self._budget.reserve(request.request_id, self._need(request)):
                return  # nobody overtakes: a large request would wait for ever
            self._waiting.popleft()
            self._running.add(request.request_id)
            try:
                self._runner.add(request)
            except Exception as error:  # what the check at the door could not see
                end = FinishEvent(request.request_id, "error", None, "", RequestMetrics(), error)
                self._outbox.append(end)

    def _leave(self, request_id: str) -> None:
        """A request holds nothing any more."""
        self._running.discard(request_id)
        self._budget.release(request_id)
