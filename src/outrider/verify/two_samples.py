"""A two-sample G-test: whether two samples of outcomes may come from one distribution.

G = 2 sum(count * log(count / expected)) over both samples, where an outcome is expected in each sample in
proportion to the sample's size. Rare outcomes share cells with those of like rarity in both samples together:
a sampler that is too flat or too sharp moves weight between these. Given these totals, and if there is one
distribution, every division of the outcomes between the samples is equally likely (Fisher 1935): the counts
of the first are multivariate hypergeometric. The p-value is taken from divisions that are drawn, since
chi-square with cells - 1 degrees of freedom is too hopeful for small counts.

The non-centrality under two distributions p and q is m sum((p - q)^2 / their mixture) with m = n1 n2 / (n1 +
n2), and by Cauchy-Schwarz at least 4 m d^2 at a total-variation distance d: what `gtest.detectable` states
for m samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from outrider.verify.gtest import LEAST_EXPECTED, GTest, chi2_tail

DRAWS = 2000
ENOUGH = 20  # draws that must reach G for their share to be the p-value


@dataclass(frozen=True, slots=True)
class TwoSamples:
    """Two samples compared.

    statistic: G. degrees: cells - 1; 0 when there is no choice to test.
    drawn:     float64[DRAWS], G of random divisions of the same outcomes; all 0 where degrees is 0.
    weight:    n1 n2 / (n1 + n2), the size of a sample that is as good against known probabilities.
    """

    statistic: float
    degrees: int
    drawn: npt.NDArray[np.float64]
    weight: float


def compare(one: Iterable[str], other: Iterable[str], seed: int = 0) -> TwoSamples:
    """Count the outcomes of two samples, neither of them empty, and draw divisions of them."""
    counts = table(one, other)
    sizes = counts.sum(axis=1)
    weight = float(sizes[0] * sizes[1] / sizes.sum())
    if counts.shape[1] < 2:
        return TwoSamples(0.0, 0, np.zeros(DRAWS), weight)
    totals = counts.sum(axis=0)
    random = np.random.default_rng(seed)
    firsts = random.multivariate_hypergeometric(totals, sizes[0], DRAWS, method="marginals")
    drawn = _statistic(np.stack([firsts, totals - firsts], axis=1))
    return TwoSamples(float(_statistic(counts[None])[0]), counts.shape[1] - 1, drawn, weight)


def table(one: Iterable[str], other: Iterable[str]) -> npt.NDArray[np.int64]:
    """Counts int64[2, cells] of two samples; from the rarest on, outcomes share a cell until it is expected
    LEAST_EXPECTED times in the smaller sample."""
    found = Counter(one), Counter(other)
    # In an order that says nothing of the sample in which an outcome came first.
    outcomes = sorted(found[0] | found[1])
    counts = np.array([[each[outcome] for outcome in outcomes] for each in found], np.int64)
    sizes = counts.sum(axis=1)
    totals = counts.sum(axis=0)
    cells: list[npt.NDArray[np.int64]] = []
    enough = True
    for at in np.argsort(totals, kind="stable"):
        if enough:
            cells.append(np.zeros(2, np.int64))
        cells[-1] += counts[:, at]
        enough = bool(cells[-1].sum() * sizes.min() >= LEAST_EXPECTED * sizes.sum())
    if not enough and len(cells) > 1:
        rest = cells.pop()
        cells[-1] += rest
    return np.stack(cells, axis=1)


def together(parts: Sequence[TwoSamples]) -> GTest:
    """One test of several independent comparisons: the sum of their G."""
    degrees = sum(part.degrees for part in parts)
    if not degrees:
        return GTest(0.0, 0, 1.0)
    statistic = sum(part.statistic for part in parts)
    drawn = np.sum([part.drawn for part in parts], axis=0)
    reached = int((drawn >= statistic * (1.0 - 1e-12)).sum())
    if reached >= ENOUGH:
        return GTest(statistic, degrees, (reached + 1) / (len(drawn) + 1))
    # Beyond the draws: the multiple of a chi-square that has their mean and variance.
    mean, variance = float(drawn.mean()), float(drawn.var())
    return GTest(statistic, degrees, chi2_tail(2.0 * mean * statistic / variance, 2.0 * mean**2 / variance))


def _statistic(counts: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """G, float64[n], of tables int[n, 2, cells] that have the same sums."""
    terms = _n_log_n(counts).sum(axis=(1, 2))
    one = counts[0]
    margins = _n_log_n(one.sum(axis=0)).sum() + _n_log_n(one.sum(axis=1)).sum() - _n_log_n(one.sum())
    return np.asarray(np.maximum(0.0, 2.0 * (terms - margins)), np.float64)


def _n_log_n(counts: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    values = np.asarray(counts, np.float64)
    return np.asarray(values * np.log(np.maximum(values, 1.0)), np.float64)
