"""`outrider bench --plot`: the page shows the results, and names from files are escaped in it."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from outrider.bench import machine, page, page_parts, plots, report
from outrider.cli.main import main
from outrider.version import __version__
from tests.support.html_page import HOSTILE, Reader, harmless

pytest.importorskip("matplotlib")


def _method(speedup: float, **more: Any) -> dict[str, Any]:
    return {
        "speedup": speedup,
        "speedup_ci": [speedup * 0.9, speedup * 1.1],
        "tokens_per_s": 20.0 * speedup,
        "acceptance_rate": 0.5,
        "mean_acceptance_length": 2.0,
        "block_efficiency": 1.5,
        "identical": True,
        "runs": 3,
        "tokens": 100,
        "num_draft_tokens": 120,
        "seconds": {"draft": 0.5, "verify": 4.0, "sampling": 0.1, "other": 0.4, "total": 5.0},
        "num_drafts": 40,
        "accepted_per_pos": [30, 20, 5],
    } | more


def _document(names: list[str], *, temperatures: tuple[float, ...] = (0.0, 0.7)) -> dict[str, Any]:
    methods = {
        "none": _method(1.0, num_drafts=0, accepted_per_pos=[]),
        "suffix": _method(2.5),
        "auto": _method(3.0, predicted_speedup=2.9, measured_speedup=3.1, steps={"none": 10, "suffix": 30}),
    }
    probe = {"read_gb_per_s": 9.0, "gflop_per_s": 2.0}
    return {
        "machine": {
            "cpu": names[0],
            "cores": 2,
            "system": "Linux x86_64",
            "threads": 2,
            "outrider": "9.8.7",
            "probe": {"before": probe, "after": probe, "drift": 0.0, "steady": True},
        },
        "models": {"target": names[0], "draft": names[-1]},
        "settings": {
            **{"max_tokens": 9, "temperatures": list(temperatures), "temperature": temperatures[0]},
            **{"seed": 0, "num_speculative_tokens": 5, "runs": 3},
            **{"command": f"outrider bench -m {names[0]}", "created": "2026-01-02T03:04:05+00:00"},
        },
        "workloads": [
            {"workload": name, "temperature": t, "prompts": 1, "methods": methods, "drift": 0.02}
            for name in names
            for t in temperatures
        ],
        "geomean": {"none": 1.0, "suffix": 2.5, "auto": 3.0},
        "geomean_by_temperature": {f"{t:g}": {"none": 1.0, "suffix": 2.5, "auto": 3.0} for t in temperatures},
        "cost_curve": {
            **{
                "model": names[0],
                "context": 256,
                "rounds": 5,
                "cost_curve_ms": {"1": 10.0, "2": 11.0, "4": 14.0},
            },
            **{"weights_bytes": 10**8, "macs_per_token": 10**8, "read_gb_per_s": 15.0, "floor_ms": 6.7},
        },
    }


def test_the_page_shows_everything() -> None:
    source = page.html(_document(["chat", "edit"]))
    found = Reader(source)
    for words in ("×2.50", "×3.00", "edit, T 0.7", "floor 6.7 ms", "none 25%, suffix 75%", "×2.90", "T(n)"):
        assert words in found.words
    assert found.tags["svg"] == found.tags["desc"] == 6  # two temperatures twice, acceptance, cost
    assert found.tags["title"] == 1 + 6
    assert "Other load" not in found.words
    assert "not plain" not in found.words
    assert "chat: suffix ×2.50, auto ×3.00; edit: " in found.words  # for those who do not see the picture
    assert "verify 40.0, draft 5.0, sampling 1.0, other 4.0" in found.words
    assert "http" not in source.replace("http-equiv", "")


def test_what_was_measured_stands_at_the_top() -> None:
    source = page.html(_document(["chat", "edit"]))
    top = Reader(source[: source.index("<h2>")]).words
    for words in (
        "2026-01-02T03:04:05+00:00",
        "outrider 9.8.7",
        "outrider bench -m chat",
        "chat, 2 cores, Linux x86_64, 2 threads",
        "9 tokens, temperatures 0, 0.7, seed 0",
        "yes: every run has the tokens of plain decoding (36 runs of 1200 tokens)",
    ):
        assert words in top
    document = _document(["chat"])
    document["workloads"][0]["methods"] = document["workloads"][0]["methods"] | {
        "auto": document["workloads"][0]["methods"]["auto"] | {"identical": False}
    }
    assert "NO (18 runs" in Reader(page.html(document)).words


def test_counts_stand_behind_the_curves() -> None:
    words = Reader(page.html(_document(["chat", "edit"]))).words
    assert "each point is the median of 5 passes" in words
    assert "n = 3" in words
    source = page.html(_document(["chat"], temperatures=(0.0,)))
    assert (
        "<td>chat</td><td>suffix</td><td>40</td><td>30</td><td>20</td><td>5</td>" in source
    )  # drafts, accepted
    assert (
        "<td>yes</td><td>1</td><td>3</td><td>100</td><td>120</td>" in source
    )  # prompts, runs, tokens, drafted


def test_no_interval_where_there_is_none() -> None:
    document = _document(["chat"], temperatures=(0.0,))
    for m in document["workloads"][0]["methods"].values():
        m |= {"speedup": 1.54, "speedup_ci": [1.54, 1.54]}
    words = Reader(page.html(document)).words
    assert "1.54–1.54" not in words
    assert "95% interval" not in words.replace("95% intervalaccepted", "")  # the table's heading stays
    tight = _method(1.54, speedup_ci=[1.541, 1.544])
    assert report.interval(tight) == "1.541–1.544"
    assert report.interval(_method(1.0, speedup_ci=[0.9, 1.25])) == "0.90–1.25"


def test_ids_are_unique_and_lead_somewhere() -> None:
    found = Reader(page.html(_document(["chat", "edit"])))
    assert len(found.ids) == len(set(found.ids)) > 20
    assert {r.removeprefix("#") for r in found.references} <= set(found.ids)


def test_colours_are_the_pages_own() -> None:
    source = page.html(_document(["a", "b", "c", "d", "e", "f"]))
    assert not any(colour in source for colour in plots.VARIABLES)
    style = source[source.index("<style>") : source.index("</style>")]
    for variable in plots.VARIABLES.values():
        assert style.count(f"{variable.removeprefix('var(').removesuffix(')')}:") == 2  # light and dark
        assert variable in source


@pytest.mark.filterwarnings("error")
def test_names_of_others_stay_text() -> None:
    source = page.html(_document(HOSTILE))
    assert harmless(source)
    assert Reader(source).tags["svg"] == 6
    assert "&lt;script&gt;alert(1)" in source
    assert "\x00" not in source
    assert "\u202e" not in source
    source.encode("utf-8")


def test_a_page_that_does_not_escape_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_parts, "escaped", str)
    assert not harmless(page.html(_document(HOSTILE)))


def test_broken_identity_and_other_load_are_reported_first() -> None:
    document = _document(["chat"], temperatures=(0.0,))
    entry = document["workloads"][0]
    entry["methods"]["auto"] = entry["methods"]["auto"] | {"identical": False}
    entry["drift"] = 0.4
    found = Reader(page.html(document)).words
    assert "The tokens were not plain decoding's: auto on chat." in found
    assert "moved during chat (40%)" in found


def test_nothing_drafted_and_no_cost_curve() -> None:
    document = _document(["chat"], temperatures=(0.0,))
    del document["cost_curve"]
    for m in document["workloads"][0]["methods"].values():
        m |= {"num_drafts": 0, "accepted_per_pos": []}
    found = Reader(page.html(document))
    assert "Nothing was drafted." in found.words
    assert "Not measured" in found.words
    assert found.tags["svg"] == 2


def test_acceptance_by_position_is_a_share_of_the_drafts() -> None:
    entries = [
        {"workload": "a", "methods": {"m": {"num_drafts": 4, "accepted_per_pos": [4, 2]}}},
        {"workload": "a", "methods": {"m": {"num_drafts": 4, "accepted_per_pos": [2, 1, 1]}}},
        {"workload": "b", "methods": {"m": {"num_drafts": 0, "accepted_per_pos": []}}},
    ]
    assert plots.acceptance_by_position(entries, "m") == {"a": [0.75, 0.375, 0.125]}


def test_the_command_writes_it(
    target_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    toy_engine: object,
) -> None:  # fmt: skip
    probe = machine.probe
    monkeypatch.setattr(machine, "probe", lambda: probe(0.005))
    workload, place = tmp_path / "w.jsonl", tmp_path / "page.html"
    workload.write_text(json.dumps({"id": "a", "workload": "<b>one", "prompt": "the quick brown"}), "utf-8")
    args = ["bench", "-m", str(target_file), "--workload", str(workload), "-n", "8", "--runs", "1"]
    assert main([*args, "--plot", str(place)]) == 0
    assert "speed-up" in capsys.readouterr().out
    source = place.read_text("utf-8")
    assert harmless(source)
    assert "&lt;b&gt;one" in source
    assert "<b>one" not in source
    words = Reader(source).words
    assert f"commandoutrider bench -m {target_file} --workload" in words
    assert f"versionoutrider {__version__}" in words
    assert re.search(r"date20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", words)
    assert "–" in words


def test_without_matplotlib_it_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    place = tmp_path / "page.html"
    assert main(["bench", "-m", "absent.gguf", "--plot", str(place)]) == 2
    err = capsys.readouterr().err
    assert "matplotlib" in err
    assert "outrider[plots]" in err
    assert err.count("\n") == 1
    assert not place.exists()
