"""benchmarks/never_slower.py and its journal: the cells, the best fixed setting, and which targets hold."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from outrider.bench.journal import Journal
from outrider.bench.report import markers
from outrider.errors import ConfigError
from tests.support.benchmarks import script


@pytest.fixture(scope="module")
def never_slower() -> Any:
    return script("never_slower")


def _method(ratios: list[float], speedup: float | None = None) -> dict[str, Any]:
    value = ratios[0] if speedup is None else speedup
    return {
        "speedup": value,
        "speedup_ci": [value - 0.05, value + 0.05],
        "identical": True,
        "ratios": {str(i): [r] for i, r in enumerate(ratios)},
    }


def _cell(auto: float, **fixed: float) -> dict[str, Any]:
    methods = {"none": _method([1.0]), "auto": _method([auto])}
    methods |= {name: _method([value]) for name, value in fixed.items()}
    return {"methods": methods, "drift": 0.01, "machine": {}, "sweep": {}}


def test_the_best_fixed_setting_is_that_of_the_finals(never_slower: Any) -> None:
    name, value, (low, high) = never_slower.against_best(_cell(1.9, suffix=2.0, ngram=1.2))
    assert name == "suffix"
    assert value == pytest.approx(0.95)
    assert low == pytest.approx(high) == pytest.approx(0.95)
    assert never_slower.against_best(_cell(1.0)) is None


def test_targets_by_hand(never_slower: Any) -> None:
    found = {
        ("pair", "0", "chat"): _cell(0.99, suffix=0.9),
        ("pair", "0", "edit"): _cell(3.6, suffix=3.6),
        ("pair", "1.5", never_slower.RANDOM_NAME): _cell(0.90),
        ("qwen", "0", "chat"): _cell(0.95, suffix=1.2),
    }
    verdicts = {(c["target"], c["where"]): c["verdict"] for c in never_slower.targets(found)}
    assert verdicts == {
        ("never slower", "pair, T 0, chat"): "holds",
        ("as fast as the best", "pair, T 0, chat"): "holds",
        ("never slower", "pair, T 0, edit"): "holds",
        ("as fast as the best", "pair, T 0, edit"): "holds",
        ("copy-heavy", "pair, T 0, edit"): "holds",
        ("adversary", "pair, T 1.5, random text"): "MISSED",
        ("never slower", "qwen, T 0, chat"): "unsure",  # 0.95 ± 0.05
        ("as fast as the best", "qwen, T 0, chat"): "MISSED",
        ("geometric mean", "pair, T 0, 2 workloads"): "holds",
    }
    mean = next(c for c in never_slower.targets(found) if c["target"] == "geometric mean")
    assert mean["value"] == pytest.approx((0.99 * 3.6) ** 0.5)
    text = never_slower.summary(never_slower.targets(found))
    assert "adversary (≥ 0.97): holds in 0 of 1" in text
    assert "MISSED: pair, T 1.5, random text: 0.900 (0.85–0.95)" in text
    assert len(never_slower.rows(found)) == 5


def test_the_cells_and_their_runs(never_slower: Any) -> None:
    args = argparse.Namespace(
        sets=["smollm2", "pair"], temps=[0.0, 0.7], workloads=["chat", "edit"], adversary=True,
        limit=6, fixed=[], sweep=2, runs=3, finalists=2,
    )  # fmt: skip
    cells = never_slower.cells(args)
    assert len(cells) == 2 * 2 * 2 + 2
    assert cells[0] == ("smollm2", "0", "chat")
    assert cells[-1] == ("pair", "1.5", never_slower.RANDOM_NAME)
    for cell, settings in ((cells[0], 4), (cells[4], 9)):
        assert never_slower.runs_of(cell, args) == 2 * (1 + settings) + 6 * 3 * 4
    assert never_slower.runs_of(cells[-1], args) == 6 * 3 * 2


def test_every_fixed_setting_of_the_sweep(never_slower: Any) -> None:
    assert list(never_slower.fixed_settings(None)) == ["suffix 4", "suffix 8", "suffix 16", "ngram 5"]
    pair = never_slower.fixed_settings("draft.gguf")
    assert [n for n in pair if "draft" in n] == [f"draft_model {k}" for k in range(1, 6)]
    assert pair["draft_model 3"].num_speculative_tokens == 3
    assert pair["suffix 8"].num_speculative_tokens == 8
    assert list(never_slower.fixed_settings("d", ["draft_model 3", "suffix 8"])) == [
        "suffix 8",
        "draft_model 3",
    ]


def test_a_journal_is_taken_up_where_it_was_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "j.jsonl"
    journal = Journal(path, {"n": 8})
    journal.add(("a", "b"), {"x": 1.5})
    journal.close()
    other = Journal(path, {"n": 9})
    assert ("a", "b") not in other
    other.add(("a", "b"), {"x": 2})
    other.close()
    with path.open("a") as f:
        f.write('{"settings": {"n": 8}, "key": ["c"], "val')  # killed while it wrote
    again = Journal(path, {"n": 8})
    assert len(again) == 1
    assert again["a", "b"] == {"x": 1.5}
    again.add(("c",), 3)
    again.close()
    last = Journal(path, {"n": 8})
    assert (last["a", "b"], last["c",]) == ({"x": 1.5}, 3)
    last.close()


@pytest.mark.parametrize(
    "line", ["null", "[1]", '{"settings": 1}', "{", '"text"', '{"settings": {"n": 8}, "key": 3}']
)
def test_lines_that_are_no_entries_are_passed_over(tmp_path: Path, line: str) -> None:
    path = tmp_path / "j.jsonl"
    entry = {"settings": {"n": 8}, "key": ["k"], "value": 1}
    path.write_text(f"{line}\n{json.dumps(entry)}\n", "utf-8")
    journal = Journal(path, {"n": 8})
    assert journal[("k",)] == 1
    journal.close()


def test_a_journal_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        Journal(tmp_path, {})


def test_the_section_of_the_docs(never_slower: Any) -> None:
    docs = script("never_slower_docs")
    found = {("pair", "0", "chat"): _cell(0.99, suffix=0.9), ("qwen", "0", "chat"): _cell(0.95)}
    keys = ("models", "temperature", "workload")
    result = {
        "machine": {"cpu": "Some CPU", "cores": 2},
        "settings": {"n": 64, "limit": 2, "runs": 1, "fixed": []},
        "cells": [{**dict(zip(keys, cell, strict=True)), **values} for cell, values in found.items()],
        "targets": never_slower.targets(found),
    }
    text = docs.section(result)
    assert "Some CPU, 2 cores" in text
    assert "| pair | 0 | chat | 0.990 | 0.94–1.04 | suffix | 1.100 |" in text
    assert "never slower (≥ 0.98): holds in 1 of 2" in text
    assert markers("never_slower")[0] in docs.DOCUMENT.read_text("utf-8")
