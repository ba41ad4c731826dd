"""The two-sample test: exact values, and simulations of what it promises."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.verify import gtest, two_samples
from outrider.verify.two_samples import TwoSamples, compare, table, together

SHARES = np.array([0.3, 0.2, 0.15, 0.1, *[0.25 / 20] * 20])  # and many rare ones
SAMPLES = st.lists(st.sampled_from("aaaaabbbccdefgh"), min_size=1, max_size=80)


@pytest.fixture
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_samples, "DRAWS", 400)


def null(random: np.random.Generator, sizes: tuple[int, int], seed: int) -> TwoSamples:
    """Two samples of one distribution."""
    one, other = (drawn(random, SHARES, n) for n in sizes)
    return compare(one, other, seed)


def drawn(random: np.random.Generator, shares: npt.NDArray[np.float64], size: int) -> list[str]:
    return [str(n) for n in random.choice(len(shares), size=size, p=shares)]


@pytest.mark.usefixtures("fewer")
@pytest.mark.parametrize("sizes", [(40, 40), (150, 50)])
def test_p_values_are_uniform_where_there_is_one_distribution(sizes: tuple[int, int]) -> None:
    random = np.random.default_rng(3)
    found = [together([null(random, sizes, seed)]).p for seed in range(300)]
    for level in (0.05, 0.2, 0.5, 0.8):
        assert np.mean(np.array(found) <= level) == pytest.approx(level, abs=0.07)


@pytest.mark.usefixtures("fewer")
def test_sums_of_independent_comparisons_have_uniform_p_values() -> None:
    random = np.random.default_rng(4)
    found = []
    for seed in range(100):
        parts = [null(random, (40, 40), 3 * seed + k) for k in range(3)]
        found.append(together(parts).p)
        assert together(parts).statistic == pytest.approx(sum(part.statistic for part in parts))
    for level in (0.1, 0.5):
        assert np.mean(np.array(found) <= level) == pytest.approx(level, abs=0.11)


@pytest.mark.parametrize(("a", "b"), [(30, 22), (36, 20), (48, 14), (60, 15)])
def test_the_p_value_of_two_outcomes_is_the_exact_one(a: int, b: int) -> None:
    """By summing the hypergeometric probabilities of all divisions with as large a G, far beyond the draws
    too."""
    n, total = 100, a + b
    found = together([compare("x" * a + "y" * (n - a), "x" * b + "y" * (n - b))])

    def statistic(k: int) -> float:
        cells = [(k, total), (total - k, total), (n - k, 2 * n - total), (n - total + k, 2 * n - total)]
        return 2 * math.fsum(c * math.log(2 * c / t) for c, t in cells if c)

    assert found.statistic == pytest.approx(statistic(a))
    ways = {k: math.comb(n, k) * math.comb(n, total - k) for k in range(max(0, total - n), min(n, total) + 1)}
    least = statistic(a) * (1 - 1e-12)
    exact = sum(way for k, way in ways.items() if statistic(k) >= least) / sum(ways.values())
    assert exact / 2.5 < found.p < exact * 2.5
    assert exact < 0.06 or found.p == pytest.approx(exact, rel=0.15)


@pytest.mark.usefixtures("fewer")
def test_the_power_is_what_is_stated_against_the_best_hidden_difference() -> None:
    """One distribution with cells of half the mass a little larger, and one with them a little smaller."""
    shares, size, alpha = np.array([0.3, 0.25, 0.2, 0.15, 0.1]), 400, 0.001
    distance = gtest.detectable(len(shares) - 1, size / 2, alpha)
    change = distance * np.where([True, False, True, False, False], 1, -1)
    one, other = shares * (1 + change), shares * (1 - change)
    assert np.abs(one - other).sum() / 2 == pytest.approx(distance)
    random = np.random.default_rng(5)
    pairs = [compare(drawn(random, one, size), drawn(random, other, size), seed) for seed in range(200)]
    assert pairs[0].weight == size / 2
    assert np.mean([together([pair]).p < alpha for pair in pairs]) == pytest.approx(0.95, abs=0.05)


@given(SAMPLES, SAMPLES)
def test_cells_keep_every_outcome_and_are_large_enough(one: list[str], other: list[str]) -> None:
    counts = table(one, other)
    assert counts.sum(axis=1).tolist() == [len(one), len(other)]
    expected = counts.sum(axis=0) * min(len(one), len(other)) / (len(one) + len(other))
    assert counts.shape[1] == 1 or expected.min() >= gtest.LEAST_EXPECTED
    assert np.array_equal(table(other, one), counts[::-1]), "neither sample decides"


@given(SAMPLES)
def test_samples_that_are_alike_differ_by_nothing(one: list[str]) -> None:
    found = together([compare(one, one[::-1])])
    assert found.statistic == pytest.approx(0.0, abs=1e-9)
    assert found.p > 0.99


def test_without_a_choice_there_is_nothing_to_test() -> None:
    part = compare("aaaa", "aaaaaa")
    assert (part.degrees, part.weight) == (0, 2.4)
    assert together([part]) == gtest.GTest(0.0, 0, 1.0)
    apart = compare("a" * 90, "b" * 90)
    assert together([apart, part]).p < 1e-12
    assert together([apart, part]).degrees == 1
