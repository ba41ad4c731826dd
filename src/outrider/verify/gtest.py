"""A one-sample G-test against known probabilities, and its power.

Under the target's distribution G = 2 sum(count * log(count / expected)) follows chi-square with
cells - 1 degrees of freedom (Wilks 1938); under another one, non-central chi-square, whose
non-centrality is the sample size times the divergence. Among all distributions at a total-variation
distance d from the expected one none has a smaller chi-square divergence than 4 d^2 (Cauchy-Schwarz, with
equality where every cell moves by the factor 1 + 2 d or 1 - 2 d), so `detectable` states the power against
the distribution that is hardest to detect.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LEAST_EXPECTED = 5.0  # rarer outcomes share a cell, so that chi-square is a good approximation


@dataclass(frozen=True, slots=True)
class GTest:
    """statistic: G, inf when something impossible happened. p: chance of so great a G if all is well."""

    statistic: float
    degrees: int
    p: float


def g_test(counts: npt.ArrayLike, probabilities: npt.ArrayLike) -> GTest:
    """Test counts (int[n]) against probabilities (float64[n], sum 1), zeros among them allowed."""
    found, expected = np.asarray(counts, np.float64), np.asarray(probabilities, np.float64)
    if found[expected == 0].any():
        return GTest(math.inf, 1, 0.0)
    expected = expected * found.sum()
    order = np.argsort(expected)
    order = order[expected[order] > 0]
    rare = int(np.searchsorted(expected[order], LEAST_EXPECTED))
    while 0 < rare < len(order) and expected[order[:rare]].sum() < LEAST_EXPECTED:
        rare += 1
    if rare:
        cells = [order[:rare], *order[rare:, None]]
        found = np.array([found[cell].sum() for cell in cells])
        expected = np.array([expected[cell].sum() for cell in cells])
    else:
        found, expected = found[order], expected[order]
    if len(found) < 2:
        return GTest(0.0, 0, 1.0)
    seen = found > 0
    statistic = max(0.0, 2.0 * float((found[seen] * np.log(found[seen] / expected[seen])).sum()))
    return GTest(statistic, len(found) - 1, chi2_tail(statistic, len(found) - 1))


def holm(values: Sequence[float]) -> list[float]:
    """p-values corrected for their number by Holm's method (1979), in the order given."""
    adjusted = [0.0] * len(values)
    worst = 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        worst = max(worst, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = worst
    return adjusted


def chi2_tail(x: float, degrees: float) -> float:
    """P(chi-square with `degrees` degrees of freedom > x): the regularized gamma Q(degrees / 2, x / 2)."""
    a, x = degrees / 2.0, x / 2.0
    if x <= 0.0:
        return 1.0
    scale = math.exp(-x + a * math.log(x) - math.lgamma(a))
    if x < a + 1.0:  # the series of P
        term = total = 1.0 / a
        n = a
        while term > total * 1e-16:
            n += 1.0
            term *= x / n
            total += term
        return max(0.0, 1.0 - scale * total)
    # The continued fraction of Q, by Lentz's method.
    b = x + 1.0 - a
    c, d = 1e300, 1.0 / b
    value = d
    for i in range(1, 10000):
        step = -i * (i - a)
        b += 2.0
        d = 1.0 / (step * d + b)
        c = b + step / c
        value *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return scale * value


def noncentral_tail(x: float, degrees: float, noncentrality: float) -> float:
    """P(non-central chi-square > x): a mixture of chi-squares with degrees + 2 k, k Poisson."""
    half = noncentrality / 2.0
    if half == 0.0:
        return chi2_tail(x, degrees)
    reach = 12.0 * math.sqrt(half) + 40.0
    low, high = max(0, int(half - reach)), int(half + reach)
    weights = [math.exp(-half + k * math.log(half) - math.lgamma(k + 1.0)) for k in range(low, high + 1)]
    return math.fsum(w * chi2_tail(x, degrees + 2.0 * k) for k, w in enumerate(weights, start=low))


def critical(degrees: int, alpha: float) -> float:
    """The statistic that chi-square exceeds with probability alpha."""
    return _solve(lambda x: chi2_tail(x, degrees) - alpha, float(degrees))


def detectable(degrees: int, samples: float, alpha: float, power: float = 0.95) -> float:
    """The smallest total-variation distance, 0..1, that a test at level alpha catches with this power,
    whatever the direction in which the distribution is off."""
    if degrees == 0:
        return 1.0
    return min(1.0, math.sqrt(_noncentrality(degrees, alpha, power) / (4.0 * samples)))


@functools.cache
def _noncentrality(degrees: int, alpha: float, power: float) -> float:
    """That of the statistic with which a test at level alpha has this power."""
    bar = critical(degrees, alpha)
    return _solve(lambda n: power - noncentral_tail(bar, degrees, n), float(degrees))


def _solve(falling: Callable[[float], float], guess: float) -> float:
    """Where a falling function that starts above zero at 0 crosses zero."""
    low, high = 0.0, guess
    while falling(high) > 0.0:
        low, high = high, 2.0 * high
    for _ in range(40):
        middle = (low + high) / 2.0
        if falling(middle) > 0.0:
            low = middle
        else:
            high = middle
    return high
