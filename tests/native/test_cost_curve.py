"""`outrider bench --cost-curve`: document, table, bad input; and the benchmark's table and picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.bench import cost_curve, machine
from outrider.cli.main import main
from outrider.models.open import open_model
from tests.support.benchmarks import script
from tests.support.models import Dims, tiny_gguf


@pytest.fixture(autouse=True)
def _quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = machine.probe
    monkeypatch.setattr(machine, "probe", lambda: probe(0.005))


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("curve") / "m.gguf", types="Q8_0", dims=Dims(context=96))


def test_the_document(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--cost-curve", "-m", str(model_file), "-c", "40", "--runs", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    contract = {"machine", "model", "context", "cost_curve_ms", "weights_bytes", "read_gb_per_s", "floor_ms"}
    assert document.keys() == contract | {"macs_per_token"}
    assert document["context"] == 40
    assert list(document["cost_curve_ms"]) == [str(n) for n in cost_curve.WIDTHS]
    assert all(ms > 0 for ms in document["cost_curve_ms"].values())
    floor = document["weights_bytes"] / document["read_gb_per_s"] / 1e6
    assert document["floor_ms"] == pytest.approx(floor)
    assert document["machine"]["probe"]["before"]["read_gb_per_s"] > 0


def test_every_weight_but_the_embedding_is_counted(tmp_path: Path) -> None:
    dims = Dims(layers=1, hidden=64, heads=4, kv_heads=2, ffn=96)
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96
    for tied in (True, False):  # the embedding, when tied, counts as the output
        source = open_model(tiny_gguf(tmp_path / "m.gguf", dims=dims, tied=tied))
        assert cost_curve.macs_per_token(source) == layer + 320 * 64


def test_the_table(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--cost-curve", "-m", str(model_file), "-c", "8", "--runs", "1"]) == 0
    out = capsys.readouterr().out
    assert "context 8" in out
    assert "GMAC/s" in out
    assert "GB/s; T(1) reaches" in out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-c", "65"], "a context of 65"),
        (["--runs", "0"], "--runs"),
        (["--methods", "none"], "--methods has no meaning"),
        (["-md", "x"], "-md has no meaning"),
    ],
)
def test_bad_input(
    model_file: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    assert main(["bench", "--cost-curve", "-m", str(model_file), *flags]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error


@pytest.fixture
def result() -> dict[str, Any]:
    return {
        "model": "m",
        "context": 256,
        "widths": [1, 4],
        "cost_curve_ms": {"outrider": {"1": 40.0, "4": 50.0}, "peer": {"1": 60.0, "4": 200.0}},
        "weights_bytes": 1_000_000_000,
        "macs_per_token": 1_500_000_000,
        "read_gb_per_s": 30.0,
        "floor_ms": 33.333,
    }


def test_the_benchmark_reckons_rates_and_ratios(result: dict[str, Any]) -> None:
    lines = script("cost_curve").table(result).splitlines()
    assert lines[1].split() == ["1", "40.0", "60.0", "0.67", "1.00", "25.0", "38"]
    assert lines[2].split() == ["4", "50.0", "200.0", "0.25", "1.25", "20.0", "120"]
    assert "outrider: T(4)/T(1) 1.25" in lines
    assert lines[-1] == "floor 33.3 ms: 1000 MB at 30.0 GB/s; T(1) reaches 83% of it"


@pytest.mark.parametrize(("name", "start"), [("c.png", b"\x89PNG"), ("c.svg", b"<?xml")])
def test_the_benchmark_draws(result: dict[str, Any], tmp_path: Path, name: str, start: bytes) -> None:
    pytest.importorskip("matplotlib")
    script("cost_curve").plot(result, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
