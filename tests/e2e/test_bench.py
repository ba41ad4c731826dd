"""`outrider bench` on the default model and the native engine: the document and the page."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from outrider.bench import report
from outrider.cli.main import main

pytestmark = pytest.mark.model

drawn = importlib.util.find_spec("matplotlib") is not None


def test_it_measures_and_draws(
    default_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "page.html"
    args = ["bench", "-m", str(default_model), "--workload", "edit", "--workload", "chat", "--limit", "1"]
    args += ["--runs", "1", "-n", "16", "--methods", "suffix,auto", "--temps", "0.8", "--json"]
    assert main([*args, *(["--plot", str(place)] if drawn else [])]) == 0
    document = json.loads(capsys.readouterr().out)
    entries = document["workloads"]
    assert [(w["workload"], w["temperature"]) for w in entries] == [
        *(("edit", 0.8), ("chat", 0.8)),
    ]
    for entry in entries:
        for name, m in entry["methods"].items():
            assert m["identical"]
            assert 0 < m["seconds"]["verify"] < m["seconds"]["total"]
            assert (m["num_drafts"] > 0) or name != "suffix" or entry["workload"] == "chat"
    assert entries[0]["methods"]["suffix"]["block_efficiency"] > 1.5  # it copies most of its prompt
    assert sum(entries[0]["methods"]["auto"]["steps"].values()) > 0
    assert "\nchat" in report.text(document)
    if not drawn:
        return
    curve = document["cost_curve"]
    assert curve["cost_curve_ms"]["32"] > curve["cost_curve_ms"]["1"] > 0
    source = place.read_text("utf-8")
    assert source.count("<svg ") == 4
    assert f"floor {curve['floor_ms']:.1f} ms" in source
