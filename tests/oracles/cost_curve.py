"""Specification of the C++ CostCurve (cost_curve.h): what a pass over n tokens costs, T(n). NumPy, slow.

    log T(n) = log base(n) + level + shape(n)

The level is how fast the machine is at the moment; the shape is how the cost grows with n. A Kalman filter
(Kalman 1960) with the state (level, shape at 2, 4, 8, 16, 32 tokens) learns both from measured passes. The
shape at one token is 0, and between two nodes it is interpolated by log n. The prior on the shape is a random
walk from node to node, so neighbouring nodes share most of their error.

base(n) is a line in the positions of the context, where passes were measured in a longer one too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy

import numpy as np
import numpy.typing as npt

WIDEST = 32  # tokens up to which T is a table; beyond, the line of the table's upper half
NODES = (1, 2, 4, 8, 16, 32)  # tokens
SIZE = len(NODES)  # of the state
GUESSED_SLOPE = 0.12  # growth of T(n) / T(1) for each token, where nothing was measured

# Standard deviations of natural logarithms of seconds.
OBSERVATION_NOISE = 0.10  # of one pass
LEVEL_DRIFT = 0.03  # of the level, for each pass
SHAPE_DRIFT = 0.003  # of the shape at one node, for each pass
PRIOR_MEASURED = (0.10, 0.04)  # of the level, and of the shape between neighbouring nodes
PRIOR_UNMEASURED = (10.0, 0.25)
OTHER_CONTEXT = (0.20, 0.06)  # added for a range of context lengths that was not seen yet

OUTLIER = 3.0  # standard deviations of an observation beyond which it is an outlier
REPEATS = 3  # outliers in a row, to the same side, that are believed: the curve jumps
MAX_AGE = 100.0  # passes; what was not seen for longer drifts no further

Floats = npt.NDArray[np.float64]


def position(n: int) -> tuple[int, float]:
    """(index of the node at or below n tokens, how far n is towards the next node by log n, 0..1). The last
    node belongs to the interval before it."""
    if n < 1:
        return 0, 0.0
    low = max(i for i in range(SIZE - 1) if NODES[i] <= n)
    return low, min(1.0, math.log2(n / NODES[low])) if n < WIDEST else 1.0


def interpolated(measured: Sequence[tuple[float, float]]) -> Floats:
    """float64[WIDEST]: seconds of passes over 1 .. WIDEST tokens, from measured (tokens, seconds), ascending.

    Other load only adds to a measurement, and a wider pass costs at least as much, so each value is at most
    those to its right. Linear in between; constant before the first; beyond the last along the line
    through the last and the widest that has at most half its tokens (else the first).
    """
    tokens = [n for n, _ in measured]
    seconds = np.minimum.accumulate([s for _, s in measured][::-1])[::-1].tolist()
    last_n, last_s = tokens[-1], seconds[-1]
    slope = GUESSED_SLOPE * last_s / last_n
    if len(measured) > 1:
        halves = [i for i in range(len(measured) - 1) if 2.0 * tokens[i] <= last_n]
        i = halves[-1] if halves else 0
        slope = (last_s - seconds[i]) / (last_n - tokens[i])
    beyond = max(last_n, float(WIDEST)) + 1.0
    tokens.append(beyond)
    seconds.append(last_s + slope * (beyond - last_n))
    out = np.empty(WIDEST)
    for n in range(1, WIDEST + 1):
        i = max((i for i in range(len(tokens) - 1) if tokens[i] <= n), default=0)
        (a, b), (s, t) = tokens[i : i + 2], seconds[i : i + 2]
        out[n - 1] = s if n <= a else s + (t - s) * (n - a) / (b - a)
    return out


def log_ratio(a: float, b: float) -> float:
    """Raises ValueError where there is no such number."""
    if b == 0.0:
        raise ValueError("math domain error")
    return math.log(a / b)


class CostCurve:
    """Seconds of a pass by its number of tokens.

    measured: seconds by number of tokens; what is no positive finite number, or for less than one token, is
              left out. None or empty: a guess that is corrected by the first passes.
    longer:   the same with `positions` more in the context.
    """

    repeats = REPEATS

    def __init__(
        self,
        measured: Mapping[int, float] | None = None,
        longer: Mapping[int, float] | None = None,
        positions: float = 0.0,
    ) -> None:
        usable, far = (
            sorted((float(n), s) for n, s in (table or {}).items() if n >= 1 and 0.0 < s < math.inf)
            for table in (measured, longer)
        )
        self.near = interpolated(usable) if usable else 1.0 + GUESSED_SLOPE * np.arange(WIDEST)
        self.slope, self.moved = self.slopes(far, positions) if usable else np.zeros(WIDEST), 0.0
        self.base = self.near
        self.state = np.zeros(SIZE)
        self.covariance = np.zeros((SIZE, SIZE))
        self.outliers = [0] * SIZE  # in a row, by the node at or below the pass; negative: too fast
        self.add_uncertainty(*(PRIOR_MEASURED if usable else PRIOR_UNMEASURED))
        self.tabulate()

    def slopes(self, far: Sequence[tuple[float, float]], positions: float) -> Floats:
        """float64[WIDEST]: seconds that each position more adds to a pass over 1 .. WIDEST tokens: none where
        it took no longer."""
        if not 0.0 < positions < math.inf:
            return np.zeros(WIDEST)
        with np.errstate(all="ignore"):
            each = [
                (n, float(np.float64(s - self.near[int(n) - 1]) / positions)) for n, s in far if n <= WIDEST
            ]
        found = [(n, max(slope, 0.0)) for n, slope in each if slope < math.inf]
        return interpolated(found) if found else np.zeros(WIDEST)

    def move(self, positions: float) -> None:
        """The context has so many positions more than where the curve was measured; or as many."""
        if self.slope[-1] == 0.0:
            return
        self.moved = positions if 0.0 < positions < math.inf else 0.0
        self.base = self.near + self.slope * self.moved
        self.tabulate()

    def seconds(self, n: int) -> float:
        """Of a pass over n tokens: 0 for none, never falling in n. A token attends to those before it only:
        those of a whole prompt see half of it in the mean."""
        if n <= WIDEST:
            return self.table[max(n, 0)]
        last, middle = self.table[WIDEST], self.table[WIDEST // 2]
        unseen = min(float(n), self.moved) / 2.0 * self.each_position / WIDEST
        return last + (last - middle) / (WIDEST - WIDEST // 2) * (n - WIDEST) - unseen * n

    def doubt(self, n: int) -> float:
        """Standard deviation of log(T(n) / T(1))."""
        low, t = position(n)
        a = 1.0 - t if low else 0.0  # the shape at one token is 0
        (p, q), (_, r) = self.covariance[low : low + 2, low : low + 2].tolist()
        return math.sqrt(max(0.0, a * a * p + 2.0 * a * t * q + t * t * r))

    def observe(self, n: int, seconds: float) -> bool:
        """Learn from a pass over n tokens. True where the curve has jumped. Raises ValueError or
        OverflowError where no float holds what follows."""
        if n < 1 or not 0.0 < seconds < math.inf:
            return False
        with np.errstate(all="ignore"):  # as in C++, infinities and what is no number are let through
            return self.update(log_ratio(seconds, self.seconds(n)), *position(n))

    def observe_total(self, predicted: float, seconds: float) -> bool:
        """Learn from the sum of several passes, which informs about the level only."""
        if not (predicted > 0.0 and 0.0 < seconds < math.inf):
            return False
        with np.errstate(all="ignore"):
            return self.update(log_ratio(seconds, predicted), 0, 0.0)

    def elsewhere(self) -> CostCurve:
        """A less certain copy, for another range of context lengths."""
        other = deepcopy(self)
        other.outliers = [0] * SIZE
        other.add_uncertainty(*OTHER_CONTEXT)
        return other

    def age(self, steps: float) -> None:
        """So many passes were measured elsewhere."""
        self.covariance[0, 0] += LEVEL_DRIFT * LEVEL_DRIFT * min(steps, MAX_AGE)

    def best_count(self, chances: Sequence[float], base: int, rate: float) -> tuple[int, float]:
        """(how many nodes to verify, the tokens that this gains over verifying none).

        chances: probabilities that the nodes' paths are accepted, descending.
        base:    tokens that are in the pass anyway.
        rate:    tokens per second: the price of time.
        """
        count, best, expected = 0, 0.0, 0.0
        for n, chance in enumerate(chances, start=1):
            expected += chance
            value = expected - rate * (self.seconds(base + n) - self.seconds(base))
            if value > best:
                count, best = n, value
        return count, best

    def best_nodes(
        self, paths: Sequence[Sequence[float]], base: int, rate: float
    ) -> tuple[list[list[int]], int, float]:
        """(the nodes of each tree to verify, ascending; how many; the tokens that they gain), by the
        probabilities of the nodes' paths. Of equal ones the first come first."""
        offers = [(path, tree, node) for tree, of in enumerate(paths) for node, path in enumerate(of)]
        offers.sort(key=lambda offer: -offer[0])
        count, value = self.best_count([path for path, _, _ in offers], base, rate)
        chosen = [sorted(node for _, t, node in offers[:count] if t == tree) for tree in range(len(paths))]
        return chosen, count, value

    def add_uncertainty(self, level: float, step: float) -> None:
        """Add these standard deviations: of the level, and of the shape from node to node (a random walk,
        whose covariance of nodes i and j is min(i, j) steps)."""
        nodes = np.arange(1, SIZE)
        self.covariance[0, 0] += level * level
        self.covariance[1:, 1:] += np.minimum.outer(nodes, nodes) * (step * step)

    def update(self, error: float, low: int, t: float) -> bool:
        """A step of the Kalman filter. The observation is level + (1 - t) shape[low] + t shape[low + 1], and
        differs by `error` from what was predicted."""
        self.covariance[0, 0] += LEVEL_DRIFT * LEVEL_DRIFT
        self.covariance[low + 1, low + 1] += t * (SHAPE_DRIFT * SHAPE_DRIFT)
        gain, variance = self.gain(low, t)
        bound = OUTLIER * math.sqrt(variance)
        jumped = False
        if -bound <= error <= bound:
            self.outliers[low] = 0
        else:
            before = self.outliers[low]
            self.outliers[low] = max(before, 0) + 1 if error > 0.0 else min(before, 0) - 1
            if abs(self.outliers[low]) < self.repeats:
                error = math.copysign(bound / OUTLIER, error)
            else:
                jumped, self.outliers = True, [0] * SIZE
                self.add_uncertainty(abs(error), abs(error) / 2.0)
                gain, variance = self.gain(low, t)
        self.state += gain * (error / variance)
        self.covariance -= np.outer(gain / variance, gain)
        self.tabulate()
        return jumped

    def gain(self, low: int, t: float) -> tuple[Floats, float]:
        """(covariance of the state with the observation, variance of the observation)."""
        if low == 0 and t == 0.0:
            gain = self.covariance[0].copy()
            return gain, float(gain[0]) + OBSERVATION_NOISE * OBSERVATION_NOISE
        a = 1.0 - t if low else 0.0
        gain = self.covariance[0] + a * self.covariance[low] + t * self.covariance[low + 1]
        variance = gain[0] + a * gain[low] + t * gain[low + 1] + OBSERVATION_NOISE * OBSERVATION_NOISE
        return gain, float(variance)

    def tabulate(self) -> None:
        """The table of T(0) .. T(WIDEST): factors are interpolated between nodes, and it never falls."""
        level, *shape = self.state.tolist()
        factors = [math.exp(level), *(math.exp(level + s) for s in shape)]
        table = [0.0]
        for n in range(1, WIDEST + 1):
            low, t = position(n)
            value = float(self.base[n - 1]) * (factors[low] * (1.0 - t) + factors[low + 1] * t)
            table.append(value if value > table[-1] else table[-1])
        self.table = table
        self.each_position = float(self.slope[-1]) * factors[-1]
