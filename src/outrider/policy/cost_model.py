"""What a pass over n tokens costs: T(n), from a measurement at the start and every step since.

The curve is log T(n) = base(n) + level + shape(n). The level is how fast the machine is just now, and moves
quickly (other load comes and goes, the context grows); the shape is what the model and the kernels make of
n, and moves slowly. A Kalman filter (Kalman 1960) gives each step's surprise to the two as their variances
say; after steps at one width only, it knows that it cannot tell them apart.

It runs in every step, after a pass has emptied the processor's caches, so the curve is in C++
(csrc/policy/cost_curve.h).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.policy._estimates import GUESSED_SLOPE, REPEATS, WIDEST, CostCurve

__all__ = ["GUESSED_SLOPE", "REPEATS", "WIDEST", "CostCurve", "CostModel", "LongerContext", "bucket_of"]

FIRST_BUCKET = 512  # tokens of context; each further bucket reaches twice as far


def bucket_of(context: int) -> int:
    """Which range of context lengths: 0 up to FIRST_BUCKET tokens, 1 up to twice that, and so on."""
    return max(0, (max(1, context) - 1).bit_length() - (FIRST_BUCKET - 1).bit_length())


@dataclass(frozen=True, slots=True)
class LongerContext:
    """What passes take in a longer context.

    context: tokens in the cache before those of the pass.
    seconds: of a pass, by its tokens; any widths.
    windows: of the layers' attention: (positions, None where it goes over all; how many layers have it).
    """

    context: int
    seconds: Mapping[int, float]
    windows: tuple[tuple[int | None, int], ...] = ((None, 1),)

    def positions(self, context: int) -> float:
        """That a layer's attention goes over in a context, in the mean of the layers."""
        seen = layers = 0
        for window, count in self.windows:
            seen += count * (context if window is None else min(context, window))
            layers += count
        return seen / layers


class CostModel:
    """A `CostCurve` for each range of context lengths; a new range begins as the nearest known one.

    measured: seconds of a pass by its tokens, after `context` others; None for a guess.
    longer:   the same in a longer context; None where the context is not known to matter.
    """

    def __init__(
        self,
        measured: Mapping[int, float] | None = None,
        context: int = 0,
        longer: LongerContext | None = None,
    ) -> None:
        self.guessed = measured is None
        self._longer = longer
        if longer is None:
            curve = CostCurve(measured)
        else:
            self._near = longer.positions(context)
            curve = CostCurve(measured, longer.seconds, longer.positions(longer.context) - self._near)
        self._curves = {bucket_of(context): curve}
        self._seen = {bucket_of(context): 0}
        self._steps = 0

    def at(self, context: int) -> CostCurve:
        """The curve for sequences of about this many tokens, until it is asked for in another context."""
        bucket = bucket_of(context)
        curve = self._curves.get(bucket)
        if curve is None:
            nearest = min(self._curves, key=lambda b: (abs(b - bucket), b))
            curve = self._curves[bucket] = self._curves[nearest].elsewhere()
        elif (missed := self._steps - self._seen[bucket]) > 1:
            curve.age(missed)
        self._seen[bucket] = self._steps
        if self._longer is not None:
            curve.move(self._longer.positions(context) - self._near)
        return curve

    def observe(self, context: int, n: int, seconds: float) -> bool:
        """Learn from one pass over n tokens of sequences of about `context`. See `CostCurve.observe`."""
        curve = self.at(context)
        self._steps += 1
        self._seen[bucket_of(context)] = self._steps
        return curve.observe(n, seconds)
