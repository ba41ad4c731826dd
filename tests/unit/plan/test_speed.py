"""Speed-ups from pass costs, against closed forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.plan import speed


class Costs:
    """T(n) = 1 + slope * (n - 1)."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def at(self, n: int) -> float:
        return 1.0 + self.slope * (n - 1)


SLOPES = st.floats(0.0, 1.0)
SHARES = st.floats(0.0, 2.0)
ACCEPTANCES = st.floats(0.0, 0.999)


@pytest.mark.parametrize(
    ("slope", "draft", "acceptance", "length", "wanted"),
    [
        (0.0, 0.0, 1.0, 4, 5.0),  # free drafts that are always right
        (0.0, 0.0, 0.5, 1, 1.5),
        (0.0, 0.25, 0.5, 2, 1.75 / 1.5),
        (1.0, 0.0, 1.0, 4, 1.0),  # a pass over n tokens that costs n passes gains nothing
        (0.0, 1.0, 1.0, 3, 1.0),  # nor does a draft as slow as the target
        (0.1, 0.1, 0.0, 3, 1 / 1.6),
    ],
)
def test_speedups(slope: float, draft: float, acceptance: float, length: int, wanted: float) -> None:
    assert speed.speedup(Costs(slope), draft, acceptance, length) == pytest.approx(wanted)


@given(SLOPES, SHARES, ACCEPTANCES)
def test_the_best_is_the_best_of_all_lengths(slope: float, draft: float, acceptance: float) -> None:
    found = speed.best(Costs(slope), draft, acceptance)
    every = {n: speed.speedup(Costs(slope), draft, acceptance, n) for n in speed.LENGTHS}
    assert found.speedup == max(1.0, *every.values())
    assert found.length == 0 or every[found.length] == found.speedup
    assert found.speedup == 1.0 or found.length > 0


@given(SLOPES, SHARES, st.sampled_from(speed.LENGTHS))
def test_at_the_break_even_nothing_is_gained_or_lost(slope: float, draft: float, length: int) -> None:
    found = speed.break_even(Costs(slope), draft, length)
    if found is None:
        assert speed.speedup(Costs(slope), draft, 1.0, length) < 1.0
    else:
        assert (
            speed.speedup(Costs(slope), draft, found, length) == pytest.approx(1.0, abs=0.01) or found < 1e-3
        )
        assert speed.speedup(Costs(slope), draft, max(0.0, found - 0.01), length) <= 1.0 or found < 0.01


@given(SLOPES, SHARES)
def test_more_acceptance_never_gains_less(slope: float, draft: float) -> None:
    gains = [row.speedup for row in speed.table(Costs(slope), draft)]
    assert gains == sorted(gains)


def test_a_draft_as_slow_as_its_target_never_pays() -> None:
    assert all(row.length == 0 for row in speed.table(Costs(0.1), 1.0))
    assert speed.break_even(Costs(0.1), 1.0, 4) is None
