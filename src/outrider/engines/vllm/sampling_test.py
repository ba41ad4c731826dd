"""Whether tokens that a server wrote are draws from its own target's distribution. Pure arithmetic.

The target's probabilities at each position come from a second request that scores the finished text as a
prompt, so that speculation has no part in them. Without filters a token is drawn from exactly these, or at a
lower temperature from their powers. Then, for any set S of tokens that only depends on the text before, the
sum of 1{token in S} - P(S) over positions is a martingale, with a variance of the sum of P(S) (1 - P(S)): its
z is about standard normal for a right sampler, however long the text and whatever it says. Two sets are
looked at: the likeliest token alone, and the likeliest K.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MOST_Z = 5.0  # a few tests, both sides: false alarms of about one in a million starts
LEAST_VARIANCE = 4.0  # of a sum, for its z to be near normal
# Of greedy text: log-probability below the likeliest's (in nats) at which a token was not the greatest.
# Passes of other widths round differently, and near ties flip with them; e^-1 is no near tie.
MOST_GAP = 1.0
MOST_GAPS = 2


@dataclass(frozen=True, slots=True)
class Position:
    """What the target says of one written token. logprob: of the token, at temperature 1. likeliest:
    log-probabilities of its K likeliest tokens, falling. inside: whether the token is one of them.
    temperature: at which it was written, 0 to 1."""

    logprob: float
    likeliest: tuple[float, ...]
    inside: bool
    temperature: float = 1.0

    @property
    def is_first(self) -> bool:
        return self.logprob >= self.likeliest[0]

    @property
    def gap(self) -> float:
        return self.likeliest[0] - self.logprob

    def chances(self) -> tuple[float, float]:
        """The probabilities at its temperature of the likeliest token, and of the likeliest K together. What
        the others add up to at a lower temperature is bounded by the least of the K."""
        power = 1 / self.temperature
        powers = [math.exp(power * logprob) for logprob in self.likeliest]
        rest = max(0.0, 1.0 - math.fsum(map(math.exp, self.likeliest)))
        rest *= math.exp((power - 1) * self.likeliest[-1])
        inside = math.fsum(powers)
        return powers[0] / (inside + rest), inside / (inside + rest)


def sampling_problem(positions: Sequence[Position]) -> str | None:
    """What is wrong with tokens that were drawn above temperature 0, in a few words; None for nothing."""
    if not positions:
        return None
    chances = [p.chances() for p in positions]
    first = [(p.is_first, c[0]) for p, c in zip(positions, chances, strict=True)]
    inside = [(p.inside, c[1]) for p, c in zip(positions, chances, strict=True)]
    likeliest = f"one of the likeliest {len(positions[0].likeliest)}"
    for what, seen in (("the likeliest token", first), (likeliest, inside)):
        z = deviation(seen)
        if z is not None and abs(z) > MOST_Z:
            share = sum(hit for hit, _ in seen) / len(seen)
            expected = math.fsum(p for _, p in seen) / len(seen)
            return (
                f"{share:.0%} of {len(seen)} tokens are {what}, where the target's own probabilities say "
                f"{expected:.0%}"
            )
    return None


def deviation(seen: Sequence[tuple[bool, float]]) -> float | None:
    """By how many standard deviations hits differ from their probabilities. None where too little can vary
    for a normal distribution, unless what was impossible has happened."""
    chances = [min(max(p, 0.0), 1.0) for _, p in seen]
    variance = math.fsum(p * (1 - p) for p in chances)
    excess = math.fsum(hit - p for (hit, _), p in zip(seen, chances, strict=True))
    if variance < LEAST_VARIANCE:
        return None if abs(excess) <= MOST_Z * math.sqrt(LEAST_VARIANCE) else math.copysign(math.inf, excess)
    return excess / math.sqrt(variance)


def greedy_problem(positions: Sequence[Position]) -> str | None:
    """What is wrong with tokens that were written at temperature 0; None for nothing."""
    far = [p.gap for p in positions if p.gap > MOST_GAP]
    if len(far) <= MOST_GAPS:
        return None
    return f"{len(far)} of {len(positions)} tokens are far from the likeliest (by up to {max(far):.1f} nats)"
