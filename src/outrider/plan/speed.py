"""What speculation gives: the speed-up as a function of acceptance, from what passes cost.

With drafts of k tokens, each accepted with probability a if the ones before it are, a step emits
(1 - a^(k+1)) / (1 - a) tokens (Leviathan et al. 2023) and takes T(k + 1) + k * t, where t is the draft
model's time for a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np

How: TypeAlias = Literal["measured", "predicted"]

LENGTHS = range(1, 17)  # draft tokens of a step
ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
ACCURACY = 1e-4  # of a break-even acceptance


class PassCosts(Protocol):
    def at(self, n: int) -> float:
        """Seconds of a pass over n tokens."""


@dataclass(frozen=True, slots=True)
class Curve:
    """T(n) of a model.

    seconds: of a pass, by its number of tokens.
    how:     measured: when the model was loaded here once. predicted: from something else.
    when:    of the measurement, seconds since the epoch; None for one of now.
    basis:   what it was predicted from, in words.
    spread:  by how much a measurement right after it differed, as a share; None where nothing tells.
    """

    seconds: Mapping[int, float]
    how: How
    when: float | None
    basis: str = "some of its layers"
    spread: float | None = None

    def at(self, n: int) -> float:
        """Seconds of a pass over n tokens; between and beyond the known widths along straight lines."""
        widths = sorted(self.seconds)
        if n <= widths[-1]:
            return float(np.interp(n, widths, [self.seconds[w] for w in widths]))
        return self.seconds[widths[-1]] * n / widths[-1]


def reading(curve: Curve) -> float:
    """Seconds to read one token of a prompt, which is read in wide passes: by the widest that is known."""
    widest = max(curve.seconds)
    return curve.seconds[widest] / widest


@dataclass(frozen=True, slots=True)
class Expected:
    """The best of what one acceptance probability allows: drafts of `length` tokens (0: none pays)."""

    acceptance: float
    length: int
    speedup: float


def emitted(acceptance: float, length: int) -> float:
    """Mean tokens of a step with a chain of `length` draft tokens."""
    return sum(acceptance**i for i in range(length + 1))


def speedup(target: PassCosts, draft_seconds: float, acceptance: float, length: int) -> float:
    """Plain seconds / speculative seconds for the same tokens, with chains of `length` tokens.

    draft_seconds: to draft one token; 0 for a lookup.
    """
    step = target.at(length + 1) + length * draft_seconds
    return emitted(acceptance, length) * target.at(1) / step


def best(target: PassCosts, draft_seconds: float, acceptance: float) -> Expected:
    """The length that gives most; 0, which is plain decoding, where none gives more than 1."""
    found = Expected(acceptance, 0, 1.0)
    for length in LENGTHS:
        gain = speedup(target, draft_seconds, acceptance, length)
        if gain > found.speedup:
            found = Expected(acceptance, length, gain)
    return found


def best_chain(target: PassCosts, draft_seconds: float, reached: Sequence[float]) -> tuple[int, float]:
    """(length, speed-up) of the chains that give most; (0, 1.0), plain decoding, where none gives more.

    reached: by length, the probability that all of so many draft tokens are accepted.
    """
    best_length, highest, tokens = 0, 1.0, 1.0
    for length, share in enumerate(reached, start=1):
        tokens += share
        gain = tokens * target.at(1) / (target.at(length + 1) + length * draft_seconds)
        if gain > highest:
            best_length, highest = length, gain
    return best_length, highest


def break_even(target: PassCosts, draft_seconds: float, length: int) -> float | None:
    """The acceptance from which chains of `length` tokens gain; None where even 1 is not enough."""
    if speedup(target, draft_seconds, 1.0, length) < 1.0:
        return None
    low, high = 0.0, 1.0
    while high - low > ACCURACY:
        middle = (low + high) / 2
        if speedup(target, draft_seconds, middle, length) >= 1.0:
            high = middle
        else:
            low = middle
    return high


def table(
    target: PassCosts, draft_seconds: float, acceptances: Sequence[float] = ACCEPTANCES
) -> list[Expected]:
    return [best(target, draft_seconds, acceptance) for acceptance in acceptances]
