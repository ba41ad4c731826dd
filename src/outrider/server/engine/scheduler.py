"""Which requests run and which wait: first come, first served, within the slots and the memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from outrider.decoding.events import Event, FinishEvent
from outrider.decoding.metrics import RequestMetrics
from outrider.decoding.request import Request
from outrider.engines.runner import Runner
from outrider.memory import Budget


class Scheduler:
    """Admits requests to a runner while there is a slot, and memory for the most that each can need. Not
    thread-safe.

    slots:  most requests in the runner, at least 1.
    budget: cache memory that running requests may reserve together.
    need:   bytes of cache memory that a request can need.
    clock:  seconds; used for metrics only.
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
        self._arrived: dict[str, float] = {}  # arrival times of unfinished requests
        self._pending_events: list[Event] = []

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
        """Whether `step` has more to do, or events to return."""
        return bool(self._running or self._waiting or self._pending_events or self._runner.unfinished)

    def add(self, request: Request) -> None:
        """Put a request at the end of the queue."""
        self._waiting.append(request)
        self._arrived[request.request_id] = self._clock()

    def cancel(self, request_id: str) -> None:
        """Abort a request; the next step returns its FinishEvent. An unknown id is ignored."""
        for request in self._waiting:
            if request.request_id == request_id:
                self._waiting.remove(request)
                self._pending_events.append(FinishEvent(request_id, "abort", None, "", RequestMetrics()))
                return
        self._runner.abort(request_id)
        self._leave(request_id)

    def step(self) -> list[Event]:
        """Admit the requests that fit, then run one step of the runner. Exceptions of the engine
        propagate."""
        self._admit()
        events, self._pending_events = self._pending_events, []
        if self._runner.unfinished:
            events += self._runner.step()
        for event in events:
            if isinstance(event, FinishEvent):
                # So that the metrics include the time in the queue.
                event.metrics.arrived = self._arrived.pop(event.request_id)
                self._leave(event.request_id)
        return events

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._slots:
            request = self._waiting[0]
            if not self._budget.reserve(request.request_id, self._need(request)):
                return  # no overtaking: a large request could wait for ever
            self._waiting.popleft()
            self._running.add(request.request_id)
            try:
                self._runner.add(request)
            except Exception as error:  # what the check at submission cannot find
                end = FinishEvent(request.request_id, "error", None, "", RequestMetrics(), error)
                self._pending_events.append(end)

    def _leave(self, request_id: str) -> None:
        """Free the slot and the memory of a request."""
        self._running.discard(request_id)
        self._budget.release(request_id)
