"""benchmarks/fill_in.py: the gaps, and the table."""

from __future__ import annotations

import ast
from typing import Any

from tests.support.benchmarks import script

fill_in: Any = script("fill_in")


def test_each_gap_is_a_body_without_which_the_file_is_whole() -> None:
    found = fill_in.gaps()
    assert len({name for name, _, _ in found}) == len(found) >= 8
    for name, before, after in found:
        assert f"def {name.split()[1]}(" in before
        ast.parse(f"{before}pass{after}")
    assert 0 < len(fill_in.gaps(1)) < len(found)


def test_the_table_has_the_mean_and_says_where_a_text_differs() -> None:
    def row(speed: float, identical: bool = True) -> dict[str, Any]:
        methods = {fill_in.PLAIN: {"tokens_per_s": 10.0}, fill_in.AUTO: {"tokens_per_s": speed}}
        return {
            "name": "x.py: f",
            "prompt_tokens": 9,
            "tokens": 5,
            "identical": identical,
            "methods": methods,
        }

    lines = fill_in.table([row(20.0), row(5.0, identical=False)]).splitlines()
    assert "×2.00" in lines[2]
    assert "differ" not in lines[2]
    assert "differ" in lines[3]
    assert "×1.00" in lines[4]
