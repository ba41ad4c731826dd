"""How much time may go into finding out what is not known: probes, and when they are due."""

from __future__ import annotations

from outrider.policy.tuning import DEFAULT, Tuning


class ExplorationBudget:
    """Seconds for probes: at most `exploration_share` of any `exploration_window`, and `exploration_refill`
    of the time in the long run (see `Tuning.max_probe_seconds`)."""

    def __init__(self, tuning: Tuning = DEFAULT) -> None:
        self._tuning = tuning
        self.seconds = tuning.exploration_reserve
        self.spent = 0.0

    def pass_time(self, seconds: float) -> None:
        tuning = self._tuning
        self.seconds = min(tuning.exploration_reserve, self.seconds + tuning.exploration_refill * seconds)

    def take(self, seconds: float) -> bool:
        """Take the price of a probe, the most that it can lose; False when there is not enough."""
        if seconds > self._tuning.max_probe_seconds:
            return False
        if self.seconds < min(seconds, self._tuning.exploration_reserve):
            return False
        self.seconds -= seconds
        self.spent += seconds
        return True

    def give_back(self, seconds: float) -> None:
        """A probe has lost that much less than its price."""
        self.seconds = min(self._tuning.exploration_reserve, self.seconds + seconds)
        self.spent -= seconds


class ProbeSchedule:
    """When one drafter that is off may be probed in one request: after waits that double."""

    __slots__ = ("_first", "_last", "_wait", "_waited")

    def __init__(self, tuning: Tuning = DEFAULT) -> None:
        self._first, self._last = tuning.probe_first_wait, tuning.probe_last_wait
        self._wait, self._waited = self._first, 0

    def begin_step(self) -> None:
        self._waited += 1

    @property
    def due(self) -> bool:
        return self._waited >= self._wait

    def used(self) -> None:
        """The drafter is on in this step."""
        self._waited, self._wait = 0, self._first

    def probed(self) -> None:
        self._waited, self._wait = 0, min(self._last, 2 * self._wait)
