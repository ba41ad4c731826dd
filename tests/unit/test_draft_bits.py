"""benchmarks/draft_bits.py: the speed-up that follows from the tokens that a draft model predicts."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.policy.cost_model import CostCurve
from tests.support.benchmarks import script

FLAT = CostCurve({1: 1.0, 16: 1.0})
STEEP = CostCurve({1: 1.0, 16: 16.0})


@pytest.fixture(scope="module")
def draft_bits() -> Any:
    return script("draft_bits")


def test_the_best_length_is_found(draft_bits: Any) -> None:
    right = [True] * 18
    assert draft_bits.speedup(right, FLAT, 0.0) == pytest.approx(9)  # 8 drafted and one more in a pass
    assert draft_bits.speedup(right, FLAT, 1.0) == pytest.approx(
        18 / (8 + 1 + 8 + 1)
    )  # as expensive as passes of the target
    assert draft_bits.speedup(right, FLAT, 0.5) == pytest.approx(18 / (2 * (1 + 4)))
    assert draft_bits.speedup([True, False] * 9, FLAT, 0.25) == pytest.approx(18 / (9 * 1.25))


def test_what_never_pays_is_left_alone(draft_bits: Any) -> None:
    assert draft_bits.speedup([False] * 18, FLAT, 0.1) == 1.0
    assert draft_bits.speedup([True] * 18, STEEP, 0.1) == 1.0
