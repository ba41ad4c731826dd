"""What a pass over n tokens costs: T(n), from a measurement at the start and every step since.

The curve is log T(n) = base(n) + level + shape(n). The level is how fast the machine is just now, and moves
quickly (other load comes and goes, the context grows); the shape is what the model and the kernels make of
n, and moves slowly. A Kalman filter (Kalman 1960) gives each step's surprise to the two as their variances
say; after steps at one width only, it knows that it cannot tell them apart.

It runs in every step, so it is written out in floats: for six numbers that is several times as fast as NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

WIDEST = 32  # tokens up to which the curve is a table
NODES = (1, 2, 4, 8, 16, 32)  # where the shape may bend, on the scale of log n
SIZE = len(NODES)
GUESSED_SLOPE = 0.12  # T(n) / T(1) grows by this per token when nothing was measured

# Standard deviations, of logarithms of seconds.
NOISE = 0.10  # of one step
DRIFT = 0.03  # of the level, from step to step
WARP = 0.003  # of the shape at one node, from step to step
KNOWN = (0.10, 0.04)  # at the start, when measured: of the level, of the shape between neighbouring nodes
UNKNOWN = (10.0, 0.25)
ELSEWHERE = (0.20, 0.06)  # what a change of context adds
OUTLIER = 3.0  # deviations beyond which a step counts as an accident until it repeats
REPEATS = 3


def _position(n: int) -> tuple[int, float]:
    """(node at or below n, how far on the way to the next by log n, 0..1)."""
    low = min(n.bit_length() - 1, SIZE - 2)
    return low, min(1.0, math.log2(n / NODES[low]))


_POSITIONS = [(0, 0.0), *(_position(n) for n in range(1, WIDEST + 1))]


class CostCurve:
    """Seconds of a pass by the number of its tokens.

    measured: seconds by n; None or empty starts from a guess that the first steps correct. Values that are
              not positive finite numbers, or whose n is not, are left out.
    """

    __slots__ = ("_base", "_cov", "_factors", "_state", "_streaks", "_table")

    def __init__(self, measured: Mapping[int, float] | None = None) -> None:
        usable = sorted((n, s) for n, s in (measured or {}).items() if n >= 1 and 0.0 < s < math.inf)
        self._base = _filled(usable) if usable else [1.0 + GUESSED_SLOPE * n for n in range(WIDEST)]
        # State: the level, then the shape at NODES[1:]; the shape at n = 1 is 0 for good. The shape is a walk
        # from node to node, so that neighbours share most of their error.
        self._state = [0.0] * SIZE
        self._cov = [[0.0] * SIZE for _ in range(SIZE)]
        self._streaks = [0] * SIZE  # accidents in a row, by width: plain steps say nothing of wide ones
        self._doubt(*(KNOWN if usable else UNKNOWN))
        self._tabulate()

    def seconds(self, n: int) -> float:
        """Seconds of a pass over n >= 0 tokens, which never falls as n grows and is 0 for none; beyond WIDEST
        along the line of the upper half."""
        if n < len(self._table):
            return self._table[n]
        if n <= WIDEST:
            return self._extend(n)
        last, middle = self.seconds(WIDEST), self.seconds(WIDEST // 2)
        return last + (last - middle) / (WIDEST - WIDEST // 2) * (n - WIDEST)

    def doubt(self, n: int) -> float:
        """Standard deviation of log(T(n) / T(1)): how sure the ratio is that decides on drafting."""
        low, t = _POSITIONS[min(n, WIDEST)]
        cov, a, b = self._cov, 1.0 - t if low else 0.0, t
        return math.sqrt(
            max(0.0, a * a * cov[low][low] + 2 * a * b * cov[low][low + 1] + b * b * cov[low + 1][low + 1])
        )

    def observe(self, n: int, seconds: float) -> bool:
        """Learn from one pass. True when the curve just jumped, so that what is known of other widths is in
        doubt. A single step far off is taken for an accident; the same thrice is believed."""
        if n < 1 or not 0.0 < seconds < math.inf:
            return False
        low, t = _POSITIONS[min(n, WIDEST)]
        return self._update(math.log(seconds / self.seconds(n)), low, t)

    def observe_total(self, predicted: float, seconds: float) -> bool:
        """Learn from several passes at once: only the level can be told from their sum."""
        if not (predicted > 0.0 and 0.0 < seconds < math.inf):
            return False
        return self._update(math.log(seconds / predicted), 0, 0.0)

    def elsewhere(self) -> CostCurve:
        """A copy that is less sure, to start from in another context."""
        other = CostCurve.__new__(CostCurve)
        other._base, other._state, other._streaks = self._base, list(self._state), [0] * SIZE
        other._cov = [list(row) for row in self._cov]
        other._doubt(*ELSEWHERE)
        other._tabulate()
        return other

    def age(self, steps: int) -> None:
        """Steps have passed that this curve saw nothing of."""
        self._cov[0][0] += DRIFT**2 * min(steps, 100)

    def _doubt(self, level: float, step: float) -> None:
        """Be less sure, by these standard deviations of the level and of the shape from node to node."""
        self._cov[0][0] += level**2
        for i in range(1, SIZE):
            for j in range(1, SIZE):
                self._cov[i][j] += min(i, j) * step**2

    def _update(self, error: float, low: int, t: float) -> bool:
        """One step of the filter for an observation of level + (1 - t) shape[low] + t shape[low + 1]."""
        cov = self._cov
        cov[0][0] += DRIFT**2
        cov[low + 1][low + 1] += t * WARP**2
        gain, spread = self._gain(low, t)
        bound = OUTLIER * math.sqrt(spread)
        jumped = False
        if -bound <= error <= bound:
            self._streaks[low] = 0
        else:
            streak = self._streaks[low]
            streak = self._streaks[low] = max(streak, 0) + 1 if error > 0.0 else min(streak, 0) - 1
            if abs(streak) < REPEATS:
                error = math.copysign(bound / OUTLIER, error)
            else:
                jumped, self._streaks = True, [0] * SIZE
                self._doubt(abs(error), abs(error) / 2.0)
                gain, spread = self._gain(low, t)
        state, part = self._state, error / spread
        g0, g1, g2, g3, g4, g5 = gain  # (A comprehension for each row would be a call for each.)
        for i, g in enumerate(gain):
            if g:
                state[i] += g * part
                r0, r1, r2, r3, r4, r5 = cov[i]
                h = g / spread
                cov[i] = [r0 - h * g0, r1 - h * g1, r2 - h * g2, r3 - h * g3, r4 - h * g4, r5 - h * g5]
        self._tabulate()
        return jumped

    def _gain(self, low: int, t: float) -> tuple[list[float], float]:
        """(covariance of the state with the observation, variance of the observation)."""
        cov = self._cov
        if not low and not t:
            gain = list(cov[0])
            return gain, gain[0] + NOISE**2
        a = 1.0 - t if low else 0.0
        gain = [z + a * x + t * y for z, x, y in zip(cov[0], cov[low], cov[low + 1], strict=True)]
        return gain, gain[0] + a * gain[low] + t * gain[low + 1] + NOISE**2

    def _tabulate(self) -> None:
        level, *shape = self._state
        self._factors = [math.exp(level), *[math.exp(level + s) for s in shape]]
        self._table = [0.0]

    def _extend(self, n: int) -> float:
        """The table up to n, which is looked at much less far than it could be."""
        table, factors, base = self._table, self._factors, self._base
        least = table[-1]
        for low, t in _POSITIONS[len(table) : n + 1]:
            value = base[len(table) - 1] * (factors[low] * (1.0 - t) + factors[low + 1] * t)
            least = value if value > least else least
            table.append(least)
        return least


def _filled(measured: list[tuple[int, float]]) -> list[float]:
    """Seconds for n = 1 .. WIDEST, never falling, straight between what was measured, and beyond it along the
    line of its upper half."""
    points: list[tuple[int, float]] = []
    for n, s in measured:
        points.append((n, max(s, points[-1][1]) if points else s))
    last_n, last_s = points[-1]
    if len(points) > 1:
        n, s = next((p for p in reversed(points[:-1]) if 2 * p[0] <= last_n), points[0])
        slope = (last_s - s) / (last_n - n)
    else:
        slope = GUESSED_SLOPE * last_s / last_n
    points.append((max(last_n, WIDEST) + 1, last_s + slope * (max(last_n, WIDEST) + 1 - last_n)))
    out = []
    i = 0
    for n in range(1, WIDEST + 1):
        while points[i + 1][0] <= n:
            i += 1
        (a, s), (b, t) = points[i], points[i + 1]
        out.append(s if n <= a else s + (t - s) * (n - a) / (b - a))
    return out


FIRST_BUCKET = 512  # tokens of context; each further bucket reaches twice as far


def bucket_of(context: int) -> int:
    """Which range of context lengths: 0 up to FIRST_BUCKET tokens, 1 up to twice that, and so on."""
    return max(0, (max(1, context) - 1).bit_length() - (FIRST_BUCKET - 1).bit_length())


class CostModel:
    """A `CostCurve` for each range of context lengths; a new range begins as the nearest known one."""

    def __init__(self, measured: Mapping[int, float] | None = None, context: int = 0) -> None:
        self._curves = {bucket_of(context): CostCurve(measured)}
        self._seen = {bucket_of(context): 0}
        self._steps = 0

    def at(self, context: int) -> CostCurve:
        """The curve for sequences of about this many tokens."""
        bucket = bucket_of(context)
        curve = self._curves.get(bucket)
        if curve is None:
            nearest = min(self._curves, key=lambda b: (abs(b - bucket), b))
            curve = self._curves[bucket] = self._curves[nearest].elsewhere()
        elif (missed := self._steps - self._seen[bucket]) > 1:
            curve.age(missed)
        self._seen[bucket] = self._steps
        return curve

    def observe(self, context: int, n: int, seconds: float) -> bool:
        """Learn from one pass over n tokens of sequences of about `context`. See `CostCurve.observe`."""
        curve = self.at(context)
        self._steps += 1
        self._seen[bucket_of(context)] = self._steps
        return curve.observe(n, seconds)
