"""Microseconds that a step takes besides forward passes: lookups, planning, learning, growing a draft tree.

    python benchmarks/step_overhead.py

Each figure is the best of many rounds, with warm caches; after a forward pass the same takes several times as
long. Exits with 1 where a figure exceeds its limit, which is about ten times what a quiet machine takes. Unit
tests count calls instead, since time depends on what else the machine does.
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests

from tests.unit.drafters import test_suffix
from tests.unit.policy import test_auto, test_tree_growth

from outrider.bench.cost_curve import aligned
from outrider.drafters.suffix import SuffixDrafter
from outrider.policy.cost_model import CostCurve

LONG = 20_000  # tokens


def microseconds(action: Callable[[], object], number: int) -> float:
    return min(timeit.repeat(action, number=number, repeat=10)) / number * 1e6


def controller_step() -> float:
    """One step of one request with a lookup of four tokens."""
    controller = test_auto.make(model=False)
    asked = test_auto.ask(lookup=test_auto.chain(range(4), 0.9))
    return microseconds(lambda: test_auto.step(controller, asked), 50)


def tree_growth() -> float:
    """A chain of eight tokens of the draft model with a branch at each place."""
    return microseconds(test_tree_growth.grow_tree, 20)


def cost_curve() -> float:
    """Learning from one pass."""
    curve = CostCurve({1: 0.0075, 4: 0.008, 8: 0.01, 16: 0.018})
    return microseconds(lambda: curve.observe(5, 0.0085), 100)


def lookup() -> float:
    """A lookup in a text of 20,000 tokens."""
    drafter = SuffixDrafter()
    context = test_suffix.start(drafter, np.random.default_rng(0).integers(0, 50, LONG).tolist())
    test_suffix.look(drafter, context)
    return microseconds(lambda: test_suffix.look(drafter, context), 10)


# What is measured, and its limit in microseconds.
MEASURED = ((controller_step, 1000.0), (tree_growth, 3000.0), (cost_curve, 200.0), (lookup, 1000.0))


def main() -> int:
    rows = [["", "microseconds", "limit"]]
    within = True
    for measure, limit in MEASURED:
        found = measure()
        within = within and found < limit
        rows.append([str(measure.__doc__).rstrip("."), f"{found:.1f}", f"{limit:.0f}"])
    print(aligned(rows))
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
