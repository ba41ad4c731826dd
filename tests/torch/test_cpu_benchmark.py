"""The benchmark beside transformers runs with tiny models, and keeps what other runs have found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.0")

from tests.support.benchmarks import script  # noqa: E402
from tests.support.models import tiny_gguf  # noqa: E402


def test_it_compares_and_keeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark = script("torch_cpu")
    target, draft = (str(tiny_gguf(tmp_path / f"{name}.gguf", types="Q8_0")) for name in ("target", "draft"))
    out = tmp_path / "found.json"
    usual = [
        "--threads",
        "1",
        "--tokens",
        "6",
        "--rounds",
        "1",
        "--folders",
        str(tmp_path),
        "--json",
        str(out),
    ]
    assert benchmark.main([target, draft, "--kinds", "edit", *usual]) == 0
    assert benchmark.main([target, draft, "--kinds", "chat", "prompt of 128", *usual]) == 0
    (found,) = json.loads(out.read_text()).values()
    assert {kind: len(each) for kind, each in found["figures"].items()} == {
        "edit": 4,
        "chat": 4,
        "prompt of 128": 2,
    }
    for each in found["figures"].values():
        assert all(way["same_text"] and way["tokens_per_second"] > 0 for way in each.values())
    assert "| ours, draft model |" in capsys.readouterr().out
