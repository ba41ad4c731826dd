"""`outrider doctor`: what it says of the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import outrider
from outrider.cli.main import main
from outrider.engines.native import _core


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    monkeypatch.delenv("OUTRIDER_ISA", raising=False)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.gguf").write_bytes(bytes(5000))
    return tmp_path


def test_the_document(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["outrider"] == outrider.__version__
    assert found["kernels"]["used"] == _core.kernels("auto")
    assert found["kernels"]["usable"][-1] == "portable"
    assert 0 < found["memory"]["available"] <= found["memory"]["total"]
    assert min(found["speed"].values()) > 0
    assert found["packages"]["numpy"]
    assert found["cache"]["bytes"] == {"models": 5000}
    assert "OUTRIDER_CACHE" in found["settings"]


def test_the_text_names_nobody(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "kernels     " + _core.kernels("auto") in shown
    assert "5 kB" in shown
    assert str(cache.parent) not in shown


def test_an_instruction_set_that_is_not_there(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTRIDER_ISA", "mmx")
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "OUTRIDER_ISA" in shown
    assert "mmx" in shown
    assert "not measured" in shown
