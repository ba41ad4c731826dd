"""Several G-tests as one claim: corrected for their number by Holm's method, with the power that they had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider.verify import gtest

ALPHA = 0.001  # family-wise false positive rate of a claim


@dataclass(frozen=True, slots=True)
class NamedTest:
    """One G-test and what it was about. samples: as `gtest.detectable` takes them."""

    name: str
    result: gtest.GTest
    samples: float


def first_broken(tests: Sequence[NamedTest]) -> tuple[NamedTest, str] | None:
    """The test with the least p-value and that in words, if it is broken; otherwise None."""
    corrected = gtest.holm([test.result.p for test in tests])
    least = int(np.argmin(corrected))
    if corrected[least] >= ALPHA:
        return None
    broken = tests[least]
    return broken, (
        f"{broken.name}: G = {broken.result.statistic:.4g} on {broken.result.degrees} degrees, "
        f"corrected p = {corrected[least]:.2g} (below {ALPHA:g})"
    )


def held_words(tests: Sequence[NamedTest]) -> str:
    """How near the tests came to being broken, and what they would have seen. Begins with a comma or a
    colon."""
    least = min(gtest.holm([test.result.p for test in tests]))
    able = [t for t in tests if t.result.degrees]
    blind = len(tests) - len(able)
    seen = [gtest.detectable(t.result.degrees, t.samples, ALPHA / len(tests)) for t in able]
    power = (
        f"a total-variation distance of {min(seen):.3f} in the sharpest and {max(seen):.3f} in the bluntest "
        "would show with 95% power"
        if seen
        else "none has a choice to test"
    )
    blunt = f", {blind} without a choice to test" if blind and seen else ""
    return f"{blunt}: least corrected p = {least:.2g} (broken below {ALPHA:g}); {power}"
