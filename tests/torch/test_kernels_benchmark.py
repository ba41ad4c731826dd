"""The benchmarks of the kernels, of drafts and of steps run in the interpreter, with their small shapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.benchmarks import script
from tests.torch.kernel_support import torch


def test_parts_run_and_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark = script("gpu_kernels")
    out = tmp_path / "found.json"
    parts = ["linear_checks", "small_operations", "linear_times"]
    only = [option for part in parts for option in ("--only", part)]
    assert benchmark.main(["--tiny", *only, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["failed"] == []
    assert found["linear_bits"]["triton"] == 0
    assert {"linear", "small", "card"} <= set(found)
    assert "all checks passed" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_says_that_there_is_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert script("gpu_kernels").main([]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_a_part_that_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = script("gpu_kernels")
    monkeypatch.setattr(benchmark.ops, "linear", lambda x, w, bias: torch.zeros(len(x), len(w)))
    assert benchmark.main(["--tiny", "--only", "linear_checks"]) == 1
    assert "FAIL linear" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_drafts_are_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark = script("gpu_drafts")
    out = tmp_path / "found.json"
    assert benchmark.main(["--tiny", "--json", str(out)]) == 0
    (row,) = json.loads(out.read_text()).values()
    assert row["differing tokens"] == 0
    assert {"host, greedy", *benchmark.PARAMS} < set(row)
    assert benchmark.main([]) == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_steps_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = script("gpu_steps")
    out = tmp_path / "found.json"
    monkeypatch.setattr(benchmark, "PARAMS", {"greedy": benchmark.PARAMS["greedy"]})
    assert benchmark.main(["--tiny", "--json", str(out)]) == 0
    (row,) = json.loads(out.read_text()).values()
    assert (row["differing"], row["accepted"]) == (0, 1.0)
    assert row["host"] > 0 < row["device"]
    assert benchmark.main([]) == 2
