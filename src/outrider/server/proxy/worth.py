"""What speculation is worth: a speed-up measured in pairs, and what follows from it. Pure arithmetic.

A pair is the same request, once with speculation and once without, one right after the other. The interval of
the mean log ratio is an asymptotic confidence sequence (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2021,
theorem 2.2): it holds at all numbers of pairs at once, so it may be looked at after every pair, and acted
upon as soon as it says something. An ordinary interval looked at as often would accuse speculation sooner or
later, whatever it is worth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

ALPHA = 0.05  # probability that the interval ever misses the mean
LEAST_PAIRS = 20  # before anything is said; the variance is estimated from them
MOST_PAIRS = 2000  # then the count begins anew: texts and load have changed
_TIGHT_AT = 50  # number of pairs for which the interval is made tightest
_LEAST_DEVIATION = 0.02  # of a log ratio: clocks and chunks are no finer
# Footnote of the theorem: the parameter that makes the interval tightest at _TIGHT_AT pairs.
_RHO2 = (-2 * math.log(ALPHA) + math.log(-2 * math.log(ALPHA)) + 1) / _TIGHT_AT

State: TypeAlias = Literal["too few pairs", "faster", "slower", "undecided"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """The speed-up over plain decoding. low, high: of its interval; all None before LEAST_PAIRS pairs."""

    pairs: int
    speedup: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def state(self) -> State:
        if self.low is None or self.high is None:
            return "too few pairs"
        if self.high < 1:
            return "slower"
        return "faster" if self.low > 1 else "undecided"


def half_width(pairs: int, deviation: float) -> float:
    """Half the width of the confidence sequence of a mean. deviation: of one value."""
    scale = pairs * _RHO2 + 1
    return deviation * math.sqrt(2 * scale / (pairs**2 * _RHO2) * math.log(math.sqrt(scale) / ALPHA))


@dataclass(slots=True)
class SpeedUp:
    """The pairs so far, as running sums (Welford 1962)."""

    pairs: int = 0
    _mean: float = 0.0
    _squares: float = field(default=0.0, repr=False)

    def add(self, plain_seconds: float, speculative_seconds: float) -> None:
        """A pair: seconds for each token. Values that are not positive and finite are no pair."""
        if not (0 < plain_seconds < math.inf and 0 < speculative_seconds < math.inf):
            return
        if self.pairs >= MOST_PAIRS:
            self.reset()
        ratio = math.log(plain_seconds / speculative_seconds)
        self.pairs += 1
        change = ratio - self._mean
        self._mean += change / self.pairs
        self._squares += change * (ratio - self._mean)

    def reset(self) -> None:
        """Forget all pairs, as after a change of what is measured."""
        self.pairs, self._mean, self._squares = 0, 0.0, 0.0

    def estimate(self) -> Estimate:
        if self.pairs < LEAST_PAIRS:
            return Estimate(self.pairs)
        deviation = max(math.sqrt(self._squares / (self.pairs - 1)), _LEAST_DEVIATION)
        half = half_width(self.pairs, deviation)
        mean = self._mean
        return Estimate(self.pairs, math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def fewer(draft_tokens: int | None) -> int:
    """The draft length to try after one that does not pay: half of it, and 0, which is no speculation, after
    1 or where the length is the draft's own."""
    return 0 if draft_tokens is None else draft_tokens // 2


def recommendation(found: Estimate, draft_tokens: int | None, acceptance: float | None) -> str:
    """What a measured speed-up says to do, in one sentence. acceptance: accepted / drafted, if known."""
    if draft_tokens == 0:
        return "speculation is off"
    accepted = "" if acceptance is None else f"; {acceptance:.0%} of draft tokens are accepted"
    if found.speedup is None:
        return f"{found.pairs} of {LEAST_PAIRS} pairs that a statement needs are measured{accepted}"
    measured = f"{found.speedup:.2f} times plain decoding ({found.low:.2f} to {found.high:.2f}){accepted}"
    if found.state == "slower":
        less = fewer(draft_tokens)
        what = f"use {less} draft tokens" if less else "turn speculation off"
        return f"{what}: its speed is {measured}"
    if found.state == "faster":
        return f"keep speculation: its speed is {measured}"
    return f"keep measuring: its speed is {measured}, which may be none"


def alike(loads: Sequence[float]) -> bool:
    """Whether two servers, each looked at before and after, ran about as many requests: a pair of a busy and
    an idle server compares their loads. At most a quarter apart, and so equal below four."""
    most, least = max(loads), min(loads)
    return most - least <= most // 4
