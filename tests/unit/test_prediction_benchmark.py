"""benchmarks/prediction.py: the questions, and the table."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.benchmarks import script

prediction: Any = script("prediction")


def test_each_edit_is_of_a_file_that_has_what_it_speaks_of() -> None:
    found = prediction.items()
    assert {item.kind for item in found} == {"rename", "docstring", "change", "again"}
    assert len({(item.kind, item.name) for item in found}) == len(found)
    for path, (old, new, explained, _) in prediction.FILES.items():
        text = (prediction.SOURCE / path).read_text("utf-8")
        assert f"{old}:" in text
        assert f"def {explained}(" in text
        assert f"{new} =" not in text
    for item in found:
        assert (item.prediction is None) == (item.kind == "again") == bool(item.before)
        assert item.prediction is None or item.prediction in item.question
    assert len(prediction.items(1)) == 4


def row(kind: str, speeds: tuple[float, float, float], *, identical: bool = True) -> dict[str, Any]:
    methods = {
        method: {
            "tokens_per_s": speed,
            "tokens_per_pass": 2.0,
            "accepted_prediction_tokens": 7,
            "rejected_prediction_tokens": 1,
        }
        for method, speed in zip(prediction.METHODS, speeds, strict=True)
    }
    return {"kind": kind, "name": "x.py", "tokens": 9, "identical": identical, "methods": methods}


def test_the_table_has_speed_ups_and_their_means() -> None:
    lines = prediction.table(
        [row("rename", (10.0, 20.0, 40.0)), row("rename", (10.0, 5.0, 10.0), identical=False)]
    ).splitlines()
    assert lines[2] == "| rename: x.py | 9 | 10.0 | ×2.00 | ×4.00 | 2.0 | 7, 1 |"
    assert "**texts differ**" in lines[3]
    assert lines[4] == "| **rename**, mean | | | ×1.00 | ×2.00 | | |"
    assert prediction.mean([2.0, 8.0]) == pytest.approx(4.0)
