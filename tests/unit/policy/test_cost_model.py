from __future__ import annotations

import math
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.policy.cost_model import (
    GUESSED_SLOPE,
    REPEATS,
    WIDEST,
    CostCurve,
    CostModel,
    LongerContext,
    bucket_of,
)

MEASURED = {1: 0.007, 2: 0.0072, 3: 0.0075, 4: 0.008, 6: 0.009, 8: 0.010, 12: 0.014, 16: 0.018}


def test_a_measured_curve_goes_through_its_points() -> None:
    curve = CostCurve(MEASURED)
    assert curve.seconds(0) == 0.0
    for n, seconds in MEASURED.items():
        assert curve.seconds(n) == pytest.approx(seconds)
    assert curve.seconds(5) == pytest.approx(0.0085)
    assert curve.seconds(32) == pytest.approx(0.018 + 16 * 0.001)
    assert curve.seconds(500) == pytest.approx(0.018 + 484 * 0.001)


def test_what_took_longer_than_a_wider_pass_was_slowed_down() -> None:
    disturbed = CostCurve({**MEASURED, 2: 0.0105, 4: 0.03})
    assert disturbed.seconds(1) == pytest.approx(MEASURED[1])
    assert disturbed.seconds(2) == disturbed.seconds(3) == pytest.approx(MEASURED[3])
    assert disturbed.seconds(4) == disturbed.seconds(6) == pytest.approx(MEASURED[6])
    assert disturbed.seconds(8) == pytest.approx(MEASURED[8])


@pytest.mark.parametrize("measured", [None, {}, {1: math.nan, 0: 1.0, 2: -1.0, 4: math.inf}])
def test_nothing_usable_measured_is_a_guess(measured: dict[int, float] | None) -> None:
    curve = CostCurve(measured)
    assert curve.seconds(9) / curve.seconds(1) == pytest.approx(1 + 8 * GUESSED_SLOPE)
    curve.observe(1, 0.05)
    assert curve.seconds(1) == pytest.approx(0.05, rel=0.02), "one step shows the level"


def test_one_point_is_enough() -> None:
    assert CostCurve({4: 0.1}).seconds(4) == pytest.approx(0.1)
    assert CostCurve({40: 0.1}).seconds(32) == pytest.approx(0.1)


@given(
    st.dictionaries(st.integers(1, 40), st.floats(1e-4, 10.0), max_size=8),
    st.lists(st.tuples(st.integers(1, 80), st.floats(1e-6, 100.0)), max_size=40),
)
def test_the_curve_never_falls_and_stays_a_number(
    measured: dict[int, float], steps: list[tuple[int, float]]
) -> None:
    curve = CostCurve(measured)
    for n, seconds in steps:
        curve.observe(n, seconds)
        table = [curve.seconds(n) for n in range(WIDEST + 1)]
        assert all(a <= b for a, b in pairwise(table))
        assert all(math.isfinite(s) for s in table)
        assert 0.0 < curve.seconds(1) <= curve.seconds(33) <= curve.seconds(34) < math.inf
        assert curve.doubt(5) >= 0.0


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_impossible_times_are_left_out(seconds: float) -> None:
    curve = CostCurve(MEASURED)
    before = [curve.seconds(n) for n in range(40)]
    assert not curve.observe(3, seconds)
    assert not curve.observe(0, 0.1)
    assert not curve.observe_total(0.1, seconds)
    assert not curve.observe_total(0.0, 0.1)
    assert [curve.seconds(n) for n in range(40)] == before


def test_one_accident_moves_little_and_three_are_believed() -> None:
    curve = CostCurve(MEASURED)
    assert not curve.observe(4, 0.8)
    assert curve.seconds(4) < 0.010
    for _ in range(3):  # ordinary steps end the suspicion
        curve.observe(4, 0.008)
    jumped = [curve.observe(4, 3 * 0.008) for _ in range(REPEATS)]
    assert jumped == [False] * (REPEATS - 1) + [True]
    assert curve.seconds(4) == pytest.approx(0.024, rel=0.1)
    jumped = [curve.observe(4, 0.008) for _ in range(REPEATS)]
    assert jumped[-1], "and back"
    assert curve.seconds(4) == pytest.approx(0.008, rel=0.15)


def test_accidents_in_both_directions_do_not_add_up() -> None:
    curve = CostCurve(MEASURED)
    assert not any(curve.observe(4, 0.008 * (5.0 if i % 2 else 0.2)) for i in range(10))


def test_after_a_jump_plain_steps_separate_level_from_shape() -> None:
    curve = CostCurve(MEASURED)
    for _ in range(50):
        curve.observe(5, 0.0085)
    calm = curve.doubt(5)
    for _ in range(REPEATS + 2):
        curve.observe(5, 0.0255)
    assert curve.doubt(5) > 3 * calm, "it knows that it does not know"
    curve.observe(1, 0.007)
    assert curve.seconds(1) == pytest.approx(0.007, rel=0.05), (
        "one plain step: only wide passes are more expensive"
    )
    assert curve.seconds(5) == pytest.approx(0.0255, rel=0.1)
    assert curve.doubt(5) < 0.3


def test_other_load_scales_all_widths() -> None:
    curve = CostCurve(MEASURED)
    random = np.random.default_rng(0)
    for _ in range(60):
        curve.observe(4, 0.008 * 1.3 * math.exp(random.normal(0, 0.08)))
    for n in (1, 2, 4, 8, 16):
        assert curve.seconds(n) == pytest.approx(1.3 * MEASURED[n], rel=0.12)


def test_a_wrong_shape_is_learned_from_mixed_steps() -> None:
    """Measured flat, really steep: the ratio that decides comes out right."""
    curve = CostCurve(dict.fromkeys(MEASURED, 0.007))
    random = np.random.default_rng(1)
    for _ in range(200):
        n = int(random.choice([1, 4, 8]))
        curve.observe(n, 0.007 * (1 + 0.25 * (n - 1)) * math.exp(random.normal(0, 0.08)))
    assert curve.seconds(4) / curve.seconds(1) == pytest.approx(1.75, rel=0.1)
    assert curve.seconds(8) / curve.seconds(1) == pytest.approx(2.75, rel=0.1)


def test_a_sum_of_passes_moves_the_level_only() -> None:
    curve = CostCurve(MEASURED)
    for _ in range(30):
        curve.observe_total(0.02 * curve.seconds(1) / 0.007, 0.03)
    assert curve.seconds(1) == pytest.approx(0.0105, rel=0.05)
    assert curve.seconds(8) / curve.seconds(1) == pytest.approx(10 / 7, rel=1e-6)


@given(
    st.lists(st.floats(0.01, 0.99), max_size=12).map(lambda c: sorted(c, reverse=True)),
    st.floats(0.1, 50.0),
    st.lists(st.floats(0.0, 0.1), min_size=20, max_size=20),
    st.integers(1, 5),
)
def test_best_count_is_the_best_of_all_counts(
    paths: list[float], rate: float, steps: list[float], base: int
) -> None:
    curve = CostCurve(dict(enumerate(accumulate(steps))))
    times = [curve.seconds(n) for n in range(20)]
    count, value = curve.best_count(paths, base, rate)
    values = [sum(paths[:n]) - rate * (times[base + n] - times[base]) for n in range(len(paths) + 1)]
    assert value == pytest.approx(max(values))
    assert values[count] == pytest.approx(value)


def test_times_without_a_ratio_are_an_error() -> None:
    curve = CostCurve(MEASURED)
    with pytest.raises(OverflowError):
        [curve.observe_total(1e-100, 1e100) for _ in range(20)]
    with pytest.raises(ValueError, match="math domain error"):
        CostCurve({1: 1e300}).observe(1, 1e-300)


def test_buckets_double() -> None:
    assert [bucket_of(n) for n in (0, 1, 512, 513, 1024, 1025, 4096)] == [0, 0, 0, 1, 1, 2, 3]


def test_a_new_context_starts_from_the_nearest_and_learns_on_its_own() -> None:
    model = CostModel(MEASURED, context=256)
    assert model.at(2000).seconds(4) == pytest.approx(0.008)
    assert model.at(2000).doubt(4) > model.at(100).doubt(4)
    for _ in range(40):
        model.observe(2000, 4, 0.016)
    assert model.at(2000).seconds(4) == pytest.approx(0.016, rel=0.05)
    assert model.at(100).seconds(4) == pytest.approx(0.008, rel=0.01)
    assert model.at(100_000).seconds(4) == pytest.approx(0.016, rel=0.05)
    for _ in range(2):  # what it has not seen for long is believed from a step or two
        model.observe(100, 4, 0.010)
    assert model.at(100).seconds(4) == pytest.approx(0.010, rel=0.07)


LONGER = {1: 0.0078, 4: 0.012, 16: 0.036}  # seconds, with 1,000 positions more than MEASURED


def test_a_pass_takes_longer_in_a_longer_context_by_what_each_position_took() -> None:
    model = CostModel(MEASURED, 256, LongerContext(1256, LONGER))
    for context, share in ((256, 0.0), (756, 0.5), (1256, 1.0), (4256, 4.0)):
        for n, seconds in LONGER.items():
            near = CostCurve(MEASURED).seconds(n)
            assert model.at(context).seconds(n) == pytest.approx(near + share * (seconds - near))
    assert model.at(10).seconds(4) == CostCurve(MEASURED).seconds(4), "in a shorter one no less"
    plain = CostModel(MEASURED, 256)
    assert plain.at(4256).seconds(16) == plain.at(256).seconds(16), "where it was not measured"


def test_a_wide_pass_is_not_charged_for_what_its_tokens_do_not_see() -> None:
    """The tokens of a prompt see half of it in the mean, and those at the end of a long context all of it."""
    model = CostModel(MEASURED, 256, LongerContext(1256, LONGER))
    short = CostCurve(MEASURED)
    each = (model.at(2256).seconds(32) - short.seconds(32)) / 2000 / 32  # for each token and position
    whole = model.at(2256).seconds(2000) - short.seconds(2000)
    assert whole == pytest.approx(2000 * 1000 * each, rel=0.1)
    curve = model.at(100_256)
    assert curve.seconds(100) - short.seconds(100) == pytest.approx(100 * 100_000 * each, rel=0.1)
    seconds = [model.at(2256).seconds(n) for n in range(3000)]
    assert seconds == sorted(seconds)


def test_layers_with_a_window_see_no_more_than_that() -> None:
    longer = LongerContext(1256, LONGER, ((100, 2), (None, 1)))
    assert [longer.positions(n) for n in (0, 60, 300)] == [0, 60, (100 + 100 + 300) / 3]
    model, all_see = CostModel(MEASURED, 0, longer), CostModel(MEASURED, 0, LongerContext(1256, LONGER))
    assert model.at(1256).seconds(4) == pytest.approx(all_see.at(1256).seconds(4)), "where it was measured"
    assert model.at(200).seconds(4) > all_see.at(200).seconds(4)


def test_what_is_learned_of_one_context_holds_for_longer_ones_of_its_range() -> None:
    model = CostModel(MEASURED, 256, LongerContext(1256, LONGER))
    before = {n: model.at(4000).seconds(n) for n in (1, 4)}
    for _ in range(60):  # the machine is half as fast
        for n in (1, 4):
            model.observe(
                2100, n, 2.0 * CostModel(MEASURED, 256, LongerContext(1256, LONGER)).at(2100).seconds(n)
            )
    for n, seconds in before.items():
        assert model.at(4000).seconds(n) == pytest.approx(2.0 * seconds, rel=0.03)


@given(
    st.lists(st.lists(st.floats(0.01, 0.99), max_size=6), max_size=4),
    st.integers(1, 8),
    st.floats(1.0, 300.0),
)
def test_the_best_nodes_of_several_trees_are_the_likeliest_of_all(
    trees: list[list[float]], base: int, rate: float
) -> None:
    curve = CostCurve(MEASURED)
    offers = sorted(
        (-path, tree, node) for tree, paths in enumerate(trees) for node, path in enumerate(paths)
    )
    count, value = curve.best_count([-path for path, _, _ in offers], base, rate)
    wanted: list[list[int]] = [[] for _ in trees]
    for _, tree, node in sorted(offers[:count], key=lambda offer: offer[1:]):
        wanted[tree].append(node)
    assert curve.best_nodes(trees, base, rate) == (wanted, count, value)
