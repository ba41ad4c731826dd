"""benchmarks/draft_gain.py: gains by text, the table, and the status."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.benchmarks import script

draft_gain: Any = script("draft_gain")


def cell(
    gain: float, *, workload: str = "chat", temperature: float = 0.0, same: bool = True
) -> dict[str, Any]:
    def method(ratios: list[float]) -> dict[str, Any]:
        return {
            "ratios": {"a": ratios, "b": ratios},
            "speedup": ratios[0],
            "block_efficiency": 1.5,
            "identical": same,
        }

    methods = {
        "none": method([1.0, 1.0]),
        draft_gain.WITHOUT: method([1.2, 1.5]),
        draft_gain.WITH: method([1.2 * gain, 1.5 * gain]),
    }
    return {"workload": workload, "temperature": temperature, "methods": methods}


def test_a_gain_is_that_of_each_text_and_run() -> None:
    assert draft_gain.gains(cell(1.3)) == [[pytest.approx(1.3)] * 2] * 2


def test_the_table_has_a_mean_of_each_temperature() -> None:
    cells = [cell(1.1), cell(1.21, workload="code"), cell(1.5, temperature=0.7, same=False)]
    table = draft_gain.rows(cells)
    assert [row[:2] for row in table[1:]] == [
        ["0", "chat"],
        ["0", "code"],
        ["0.7", "chat"],
        ["0", "mean"],
        ["0.7", "mean"],
    ]
    assert [row[4] for row in table[1:]] == ["1.100", "1.210", "1.500", "1.154", "1.500"]
    assert [row[-1] for row in table[1:4]] == ["yes", "yes", "NO"]


def test_the_status_says_whether_it_pays_and_whether_texts_are_the_same() -> None:
    good = [cell(1.2), cell(0.99, workload="edit")]
    assert draft_gain.status(good, 1.05, 0.98) == 0
    assert draft_gain.status(good, 1.10, 0.98) == 2, "the mean"
    assert draft_gain.status(good, 1.05, 1.0) == 2, "a kind"
    assert draft_gain.status([*good, cell(2.0, temperature=0.7, same=False)], 1.05, 0.98) == 1
