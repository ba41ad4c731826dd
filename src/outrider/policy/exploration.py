"""How much time may go into finding things out."""

from __future__ import annotations

WINDOW = 10.0  # seconds over which the share holds
SHARE = 0.01
REFILL = 0.004  # of the time that passes
RESERVE = 0.04  # seconds that may be saved up
DEAREST = WINDOW * (SHARE - REFILL)  # seconds of a single probe; spent ahead and paid back


class ExplorationBudget:
    """Seconds for probes: at most SHARE of any WINDOW, and REFILL of the time in the long run.

    What is taken within a window is at most what was saved before it, plus the refill, plus what one probe
    overdraws: RESERVE + REFILL * WINDOW + (DEAREST - RESERVE) = SHARE * WINDOW.
    """

    def __init__(self) -> None:
        self.seconds = RESERVE
        self.spent = 0.0

    def pass_time(self, seconds: float) -> None:
        self.seconds = min(RESERVE, self.seconds + REFILL * seconds)

    def take(self, seconds: float) -> bool:
        """Take the price of a probe, the most that it can lose; False when there is not enough."""
        if seconds > DEAREST or self.seconds < min(seconds, RESERVE):
            return False
        self.seconds -= seconds
        self.spent += seconds
        return True

    def give_back(self, seconds: float) -> None:
        """A probe has lost that much less than its price."""
        self.seconds = min(RESERVE, self.seconds + seconds)
        self.spent -= seconds
