"""`outrider verify` over the torch engine: strict bits are proved, fast ones are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from outrider.cli.main import main
from outrider.engines.torch.model import TorchModel
from tests.support.models import tiny_hf

LINE = "--prompts chat --limit 1 --seeds 1 --temps 0,1 -n 12 --engine torch --device cpu -t 1 --json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return tiny_hf(folder, config={"max_position_embeddings": 1024})


def verify(folder: Path, capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, list[dict[str, Any]]]:
    status = main(["verify", *LINE.split(), "-m", str(folder), *line.split()])
    return status, json.loads(capsys.readouterr().out)["claims"]


def test_strict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, claims = verify(folder, capsys, "--exact strict --samples 60")
    assert status == 0, claims
    assert [claim["claim"] for claim in claims] == ["identity", "bits", *["distribution"] * 5]
    assert "trees, batches: the bits of one token at a time" in claims[1]["detail"]


def test_fast_promises_no_bits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, claims = verify(folder, capsys, "--exact fast --samples 0 --verification coupled")
    assert status == 0, claims
    assert "this engine does not promise bits" in claims[1]["detail"]
    assert "argmax flips" in claims[1]["detail"]


def test_one_bit_of_drift_is_seen(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken twin: the last bit of one logit, in passes of more than one token."""
    right = TorchModel.forward

    def forward(self: TorchModel, items: Any) -> Any:
        found = [rows.copy() for rows in right(self, items)]
        for rows in found:
            if len(rows) > 1:
                rows[1, 7] = np.nextafter(rows[1, 7], np.float32(100))
        return found

    monkeypatch.setattr(TorchModel, "forward", forward)
    # The engine's own test at loading would see it, too.
    monkeypatch.setattr("outrider.engines.torch.backend.broken_bits", lambda model: None)
    status, claims = verify(folder, capsys, "--exact strict --samples 0 --temps 0 --verification coupled")
    assert status == 1
    assert [(claim["claim"], claim["held"]) for claim in claims] == [("identity", True), ("bits", False)]
