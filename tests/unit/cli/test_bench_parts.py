"""The parts of bench without a model: medians and intervals, workloads, the probe."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bench import machine, report, stats, workloads
from outrider.errors import ConfigError, OutriderError


def test_median_and_geometric_mean_by_hand() -> None:
    assert stats.median([3.0, 1.0, 2.0]) == 2.0
    assert stats.median(iter([1.0, 2.0])) == 1.5
    assert stats.geomean([2.0, 8.0]) == pytest.approx(4.0)
    assert math.isnan(stats.median([]))
    assert math.isnan(stats.geomean([]))


def test_speedup_of_equal_ratios_is_certain() -> None:
    estimate, (low, high) = stats.speedup([[2.0, 2.0, 2.0], [2.0, 2.0]])
    assert estimate == pytest.approx(2.0)
    assert low == pytest.approx(2.0)
    assert high == pytest.approx(2.0)


def test_speedup_takes_the_median_over_runs_and_the_geometric_mean_over_prompts() -> None:
    estimate, (low, high) = stats.speedup([[1.0, 2.0, 100.0], [8.0]])
    assert estimate == pytest.approx(4.0)
    assert low <= estimate <= high
    assert stats.speedup([[1.0, 2.0, 100.0], [8.0]]) == (estimate, (low, high))  # seeded


def test_the_interval_covers_the_truth_at_its_nominal_rate() -> None:
    rng = np.random.default_rng(7)
    covered = 0
    for i in range(40):
        ratios = np.exp(rng.normal(math.log(1.5), 0.2, size=(20, 3)))
        _, (low, high) = stats.speedup(ratios.tolist(), seed=i)
        covered += low <= 1.5 <= high
    assert 32 <= covered <= 40


@pytest.mark.parametrize("name", workloads.EVERY)
def test_built_in_workloads(name: str) -> None:
    items = workloads.load(name)
    assert len(items) >= 6
    assert {i.workload for i in items} == {name}
    assert len({i.id for i in items}) == len(items)


def test_a_workload_file(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('{"id": "a", "workload": "mine", "prompt": "x\\ny"}\n\n', "utf-8")
    assert workloads.load(str(path)) == [workloads.Item("a", "mine", "x\ny")]


def test_lines_of_mt_bench_and_spec_bench(tmp_path: Path) -> None:
    path = tmp_path / "question.jsonl"
    path.write_text(
        '{"question_id": 81, "category": "writing", "turns": ["Write.", "Again."], "reference": []}\n'
        '{"question_id": "82", "category": "qa", "turns": ["Who?"]}\n',
        "utf-8",
    )
    assert workloads.load(str(path)) == [
        workloads.Item("81", "writing", "Write."),
        workloads.Item("82", "qa", "Who?"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"question_id": 1, "category": "w", "turns": []}', "line 1: 'turns'"),
        ('{"question_id": 1, "category": "w", "turns": "x"}', "line 1: 'turns'"),
        ('{"question_id": true, "category": "w", "turns": ["x"]}', "line 1: 'question_id'"),
        ('{"question_id": 1, "turns": ["x"]}', "line 1: 'workload'"),
        ('{"question_id": 1, "category": "w", "turns": [7]}', "line 1: 'prompt'"),
        ("", "no prompts"),
        ("{", "line 1: not JSON"),
        ("[]", "line 1: not an object"),
        ('\n{"id": "a", "workload": "w"}', "line 2: 'prompt'"),
        ('{"id": "a", "workload": "w", "prompt": "\\ud800"}', "line 1: 'prompt' has half"),
        ('{"id": 1, "workload": "w", "prompt": "p"}', "line 1: 'id'"),
        ('{"id": "a", "workload": "w", "prompt": "p"}\n' * 2, "line 2: the id 'a' occurs twice"),
    ],
)
def test_a_bad_workload_file_is_reported_by_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        workloads.load(str(path))
    assert words in str(caught.value)


def test_an_unknown_workload_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'chat'"):
        workloads.load("chatt")
    binary = tmp_path / "b"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        workloads.load(str(binary))


_VALUES = st.one_of(st.text(), st.integers(), st.none())


@given(st.lists(st.dictionaries(st.sampled_from(["id", "workload", "prompt"]), _VALUES), max_size=4))
def test_any_json_lines_are_items_or_one_clear_line(rows: list[dict[str, object]]) -> None:
    outcome: list[workloads.Item] | str
    try:
        outcome = workloads.parse("\n".join(json.dumps(r) for r in rows), "w")
    except OutriderError as e:
        outcome = str(e)
    if isinstance(outcome, str):
        assert "\n" not in outcome
    else:
        assert all(item.prompt for item in outcome)


def test_texts_by_length_and_the_slowest() -> None:
    def entry(ratios: dict[str, list[float]], lengths: dict[str, int]) -> dict[str, Any]:
        return {"ratios": ratios, "lengths": lengths, "speculation": {name: f"of {name}" for name in ratios}}

    document: dict[str, Any] = {
        "settings": {"temperature": 0.0},
        "workloads": [
            {
                "workload": "w",
                "temperature": 0.0,
                "methods": {"auto": entry({"a": [1.0, 4.0, 2.0]}, {"a": 15})},
            },
            {
                "workload": "v",
                "temperature": 0.0,
                "methods": {"auto": entry({"b": [0.5], "c": [3.0], "d": [8.0]}, {"b": 1, "c": 64, "d": 65})},
            },
        ],
    }
    classes = report.by_length(document, "auto")
    assert [(name, count) for name, count, _ in classes] == [("under 16", 2), ("16 to 64", 1), ("over 64", 1)]
    assert [mean for _, _, mean in classes] == pytest.approx([1.0, 3.0, 8.0])
    assert report.worst(document, "auto") == ("v, b", 1, 0.5, "of b")


def test_the_probe_measures_and_drift_compares() -> None:
    values = machine.probe(seconds=0.01)
    assert values["read_gb_per_s"] > 0.05
    assert values["gflop_per_s"] > 0.01
    assert machine.drift({"a": 10.0, "b": 4.0}, {"a": 11.0, "b": 3.0}) == pytest.approx(0.25)
    assert machine.drift(values, values) == 0.0


def test_the_machine_is_described() -> None:
    about = machine.describe(threads=2)
    assert about["threads"] == 2
    assert about["cpu"]
    json.dumps(about)
