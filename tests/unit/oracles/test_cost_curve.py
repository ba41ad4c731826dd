"""The C++ CostCurve against its specification, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.policy.cost_model import CostCurve
from tests.oracles import cost_curve as oracle

Call: TypeAlias = tuple[str, tuple[Any, ...]]  # a method's name and its arguments
Measured: TypeAlias = dict[int, float] | None

WIDTHS = (*range(-1, 40), 64, 1000)

seconds = st.floats(1e-5, 10.0) | st.sampled_from([0.0, -1.0, math.inf, math.nan, 1e-308, 1e308])
tables = st.none() | st.dictionaries(st.integers(-1, 70), seconds, max_size=12)
chances = st.lists(st.floats(0.0, 1.0), max_size=8)
calls = st.lists(
    st.one_of(
        st.tuples(st.just("observe"), st.tuples(st.integers(-1, 40), seconds)),
        st.tuples(st.just("observe"), st.tuples(st.sampled_from([1, 5]), st.floats(0.01, 0.02))),
        st.tuples(st.just("observe_total"), st.tuples(seconds, seconds)),
        st.tuples(st.just("age"), st.tuples(st.integers(0, 200))),
        st.tuples(st.just("elsewhere"), st.just(())),
        st.tuples(st.just("move"), st.tuples(st.floats(-10.0, 1e5) | st.sampled_from([math.inf, math.nan]))),
        st.tuples(st.just("best_count"), st.tuples(chances, st.integers(0, 9), st.floats(0.0, 100.0))),
        st.tuples(
            st.just("best_nodes"),
            st.tuples(st.lists(chances, max_size=4), st.integers(0, 9), st.floats(0.0, 100.0)),
        ),
    ),
    max_size=30,
)


def outcomes(kind: type[Any], tables: Sequence[Any], sequence: Sequence[Call]) -> list[Any]:
    """What a curve answers to each call, and what it says of all widths afterwards."""
    curve = kind(*tables)
    found: list[Any] = []
    for name, arguments in sequence:
        try:
            answer = getattr(curve, name)(*arguments)
        except (ValueError, OverflowError) as error:
            return [*found, type(error)]
        if name == "elsewhere":
            curve, answer = answer, None
        found += [answer, [curve.seconds(n) for n in WIDTHS], [curve.doubt(n) for n in WIDTHS]]
    return [*found, [curve.seconds(n) for n in WIDTHS]]


def same(a: list[Any], b: list[Any]) -> bool:
    return repr(a) == repr(b)  # NaN is NaN; repr of a float is exact


@given(tables, tables, st.sampled_from([1000.0, 0.5, 0.0, -5.0, math.inf, math.nan]), calls)
def test_every_answer_is_that_of_the_specification(
    measured: Measured, longer: Measured, positions: float, sequence: list[Call]
) -> None:
    both = (outcomes(k, (measured, longer, positions), sequence) for k in (CostCurve, oracle.CostCurve))
    found, wanted = map(repr, both)
    assert found == wanted


def test_constants_are_those_of_the_specification() -> None:
    from outrider.policy import cost_model as costs

    assert (costs.WIDEST, costs.GUESSED_SLOPE, costs.REPEATS) == (
        oracle.WIDEST,
        oracle.GUESSED_SLOPE,
        oracle.REPEATS,
    )


class BelievesAtOnce(oracle.CostCurve):
    """Takes the second outlier in a row for true."""

    repeats = 2


class ForgetsWidth(oracle.CostCurve):
    """Counts outliers of all widths together."""

    def update(self, error: float, low: int, t: float) -> bool:
        self.outliers = [self.outliers[low]] * oracle.SIZE
        return super().update(error, low, t)


class MayFall(oracle.CostCurve):
    """Lets a wider pass cost less."""

    def tabulate(self) -> None:
        super().tabulate()
        factors = np.exp(self.state[0] + np.array([0.0, *self.state[1:]]))
        for n in range(1, oracle.WIDEST + 1):
            low, t = oracle.position(n)
            self.table[n] = float(self.base[n - 1] * (factors[low] * (1 - t) + factors[low + 1] * t))


class KnowsNoDrift(oracle.CostCurve):
    """Does not age."""

    def age(self, steps: float) -> None:
        pass


class TakesAll(oracle.CostCurve):
    """Verifies one node more where that is worth the same."""

    def best_count(self, chances: Sequence[float], base: int, rate: float) -> tuple[int, float]:
        count, value = super().best_count(chances, base, rate)
        return min(count + 1, len(chances)), value


class SeesAll(oracle.CostCurve):
    """Lets each token of a wide pass attend to all positions."""

    def tabulate(self) -> None:
        super().tabulate()
        self.each_position = 0.0


class StaysWhereItWas(oracle.CostCurve):
    """Takes every context for the one in which it was measured."""

    def move(self, positions: float) -> None:
        pass


TWINS = [BelievesAtOnce, ForgetsWidth, MayFall, KnowsNoDrift, TakesAll, SeesAll, StaysWhereItWas]


@pytest.mark.parametrize("twin", TWINS)
def test_a_broken_twin_is_caught(twin: type[oracle.CostCurve]) -> None:
    random = np.random.default_rng(0)

    def random_calls() -> list[Call]:
        found: list[Call] = []
        for _ in range(40):
            n = int(random.integers(1, 33))
            cost = 0.02 + 0.001 * n
            if random.random() < 0.5:
                cost *= 8.0 if n > 8 else 0.1
            found.append(("observe", (n, cost)))
            found.append(("age", (3,)))
            found.append(("move", (float(random.integers(0, 4000)),)))
            found.append(("best_count", ([0.9, 0.5, 0.1], 1, 20.0)))
        return found

    sequences = [random_calls() for _ in range(8)]
    tables = {1: 0.02, 8: 0.03, 32: 0.05}, {1: 0.021, 8: 0.035, 16: 0.05}, 1000.0
    assert all(
        same(outcomes(CostCurve, tables, each), outcomes(oracle.CostCurve, tables, each))
        for each in sequences
    )
    assert not all(
        same(outcomes(CostCurve, tables, each), outcomes(twin, tables, each)) for each in sequences
    )
