"""How many tokens in a row pay most: the arithmetic in C++ against the same in Python."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.policy.cost_model import CostCurve
from outrider.policy.tree_growth import row_length

CURVE = CostCurve({1: 1.0, 2: 1.1, 4: 1.3, 8: 2.0, 16: 3.5})
PRICES: dict[str, Any] = {
    "other": 0.0,
    "width": 1,
    "spent": -0.7,
    "one": 0.1,
    "rate": 1.0,
    "value": 0.0,
    "prefill": 0.0,
    "horizon": 32.0,
    "left": 100.0,
    "requests": 1,
}


def expected_of(chances: Sequence[float]) -> list[float]:
    """Tokens expected to be accepted of 0, 1, 2, … drawn ones."""
    return [0.0, *accumulate(accumulate(chances, lambda a, b: a * b))]


def length_of(expected: Sequence[Sequence[float]], p: dict[str, Any]) -> tuple[int, float, float]:
    """(length, worth, gained), by all lengths."""
    length, best, best_gain, gained = 0, p["value"], 0.0, -1.0
    for k in range(1, max(len(of) for of in expected)):
        taken = [min(k, len(of) - 1) for of in expected]
        accepted = p["other"] + sum(of[at] for of, at in zip(expected, taken, strict=True))
        seconds = CURVE.seconds(p["width"] + sum(taken)) + p["spent"] + k * p["one"]
        worth = accepted - p["rate"] * seconds
        steps = max(1.0, min(p["horizon"], p["left"] / (1.0 + accepted / p["requests"])))
        gained = max(gained, worth - p["value"])
        if worth - p["value"] - p["prefill"] / steps > best_gain:
            length, best, best_gain = k, worth, worth - p["value"] - p["prefill"] / steps
    return length, best, gained


CHANCES = st.lists(st.floats(0.01, 0.99), min_size=1, max_size=8)


@given(
    chances=st.lists(CHANCES, min_size=1, max_size=4),
    some=st.fixed_dictionaries(
        {
            "one": st.floats(0.0, 0.5),
            "rate": st.floats(0.1, 3.0),
            "value": st.floats(0.0, 2.0),
            "prefill": st.floats(0.0, 20.0),
            "left": st.floats(0.0, 300.0),
        }
    ),
)
def test_it_is_the_best_of_all_lengths(chances: list[list[float]], some: dict[str, float]) -> None:
    expected = [expected_of(each) for each in chances]
    prices = {**PRICES, **some, "width": len(chances), "requests": len(chances)}
    length, worth, gained, chance, first = row_length(CURVE, expected, **prices)
    wanted, best, most = length_of(expected, prices)
    assert length == wanted
    assert worth == pytest.approx(best)
    assert (gained > 0.0) == (most > 0.0), "what ends the search early gains nothing"
    assert chance == pytest.approx(sum(of[1] for of in expected))
    assert first <= chance


def test_a_prefill_is_paid_off_over_the_steps_that_are_left() -> None:
    expected = [expected_of([0.7, 0.7])]
    assert row_length(CURVE, expected, **PRICES)[0] == 2
    dear = {**PRICES, "prefill": 5.0}
    assert row_length(CURVE, expected, **dear)[0] == 2
    length, worth, gained, _, _ = row_length(CURVE, expected, **{**dear, "left": 4.0})
    assert (length, worth) == (0, 0.0)
    assert gained > 0.0, "the prefill aside"


def test_each_request_has_something_to_expect() -> None:
    with pytest.raises(ValueError, match="0 are expected"):
        row_length(CURVE, [[0.0, 0.5], []], **PRICES)
