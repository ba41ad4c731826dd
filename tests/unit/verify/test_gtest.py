"""The statistics: known values, and simulations of what they promise."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.verify import gtest
from outrider.verify.claims import Claim, bound_words, document, listed, rate_bound

SHARES = np.array([0.3, 0.25, 0.2, 0.15, 0.1])


@pytest.mark.parametrize(
    ("x", "degrees", "tail"),
    [
        (3.841458820694124, 1, 0.05),
        (18.307038053275146, 10, 0.05),
        (2.0, 2, math.exp(-1.0)),  # with two degrees it is exponential
        (100.0, 2, math.exp(-50.0)),
        (10.0, 4, math.exp(-5.0) * 6.0),
        (124.3421134, 100, 0.05),
        (0.0, 7, 1.0),
    ],
)
def test_chi_square_tails_of_the_tables(x: float, degrees: int, tail: float) -> None:
    assert gtest.chi2_tail(x, degrees) == pytest.approx(tail, rel=1e-6)


@given(st.floats(0.0, 500.0), st.integers(1, 300))
def test_two_degrees_more_add_the_term_of_the_recurrence(x: float, degrees: int) -> None:
    """Q(a + 1, y) = Q(a, y) + y^a e^-y / gamma(a + 1): ties the series to the continued fraction."""
    a, y = degrees / 2.0, x / 2.0
    term = math.exp(a * math.log(y) - y - math.lgamma(a + 1.0)) if y > 0 else 0.0
    more = gtest.chi2_tail(x, degrees + 2)
    assert more == pytest.approx(gtest.chi2_tail(x, degrees) + term, abs=1e-10)


def test_the_noncentral_tail_agrees_with_simulation() -> None:
    drawn = np.random.default_rng(0).noncentral_chisquare(8, 25.0, 200_000)
    for x in (15.0, 33.0, 60.0):
        assert gtest.noncentral_tail(x, 8, 25.0) == pytest.approx((drawn > x).mean(), abs=0.005)
    assert gtest.noncentral_tail(5.0, 3, 0.0) == gtest.chi2_tail(5.0, 3)


def test_critical_values_and_back() -> None:
    assert gtest.critical(10, 0.05) == pytest.approx(18.307038053275146, rel=1e-6)
    assert gtest.chi2_tail(gtest.critical(30, 1e-5), 30) == pytest.approx(1e-5, rel=1e-4)


def rejections(truth: npt.NDArray[np.float64], samples: int, alpha: float) -> float:
    """How often the test of SHARES rejects samples of `truth`."""
    counts = np.random.default_rng(1).multinomial(samples, truth, 1500)
    return float(np.mean([gtest.g_test(row, SHARES).p < alpha for row in counts]))


def test_a_correct_distribution_is_rejected_at_the_nominal_level() -> None:
    assert rejections(SHARES, 3000, 0.05) == pytest.approx(0.05, abs=0.02)


def test_the_power_is_what_is_stated_against_the_best_hidden_distribution() -> None:
    """Cells of half the mass grow and the others shrink, each by the same factor."""
    samples, alpha = 3000, 0.001
    distance = gtest.detectable(len(SHARES) - 1, samples, alpha)
    grow = np.array([True, False, True, False, False])  # 0.3 + 0.2 = half of the mass
    hidden = np.where(grow, SHARES * (1 + 2 * distance), SHARES * (1 - 2 * distance))
    assert hidden.sum() == pytest.approx(1.0)
    assert np.abs(hidden - SHARES).sum() / 2 == pytest.approx(distance)
    assert rejections(hidden, samples, alpha) == pytest.approx(0.95, abs=0.02)
    other = SHARES + distance * np.array([1.0, 0.0, 0.0, 0.0, 0.0]) - distance * np.array([0, 0, 0, 0.5, 0.5])
    assert rejections(other, samples, alpha) > 0.95  # any other is seen more easily
    assert gtest.detectable(4, 4 * samples, alpha) == pytest.approx(distance / 2, rel=1e-6)


def test_rare_outcomes_share_a_cell_and_impossible_ones_decide() -> None:
    shares = np.array([0.5, 0.499, 0.0004, 0.0003, 0.0003, 0.0])
    fine = gtest.g_test([500, 499, 1, 0, 0, 0], shares)
    assert (fine.degrees, fine.p > 0.5) == (1, True)  # the rare cell was too small alone
    assert gtest.g_test([500, 499, 0, 0, 0, 1], shares) == gtest.GTest(math.inf, 1, 0.0)
    assert gtest.g_test([7, 0], [1.0, 0.0]) == gtest.GTest(0.0, 0, 1.0)  # no choice, nothing to test
    assert gtest.detectable(0, 1000, 0.001) == 1.0


def test_holm_by_hand() -> None:
    assert gtest.holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert gtest.holm([0.9, 0.8]) == [1.0, 1.0]


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9))
def test_holm_keeps_the_order_and_never_helps(values: list[float]) -> None:
    adjusted = gtest.holm(values)
    assert all(a >= v for a, v in zip(adjusted, values, strict=True))
    order = sorted(range(len(values)), key=values.__getitem__)
    assert [adjusted[i] for i in order] == sorted(adjusted)


def test_the_bound_is_the_rule_of_three() -> None:
    assert rate_bound(1) == pytest.approx(0.95)
    for cases in (30, 1000):
        assert rate_bound(cases) == pytest.approx(3.0 / cases, rel=0.06)
        assert (1 - rate_bound(cases)) ** cases == pytest.approx(0.05)
    assert "0.003 of such rows" in bound_words(1000, "rows")


def test_the_report() -> None:
    claims = [Claim("identity", True, 3, "fine"), Claim("bits", False, 2, "off\n\x1b[31m by one")]
    assert document(claims) == {
        "claims": [
            {"claim": "identity", "held": True, "cases": 3, "detail": "fine"},
            {"claim": "bits", "held": False, "cases": 2, "detail": "off\n\x1b[31m by one"},
        ],
        "held": False,
    }
    assert str(claims[0]).split() == ["held", "identity", "fine"]
    assert str(claims[1]) == "broken  bits          off  [31m by one"  # one line, whatever a prompt's id has
    assert listed(["a", "b", "c"]) == "a; b; c"
    assert listed(["a", "b", "c", "d", "e"]) == "a; b; c; and 2 more"
