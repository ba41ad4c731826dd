"""`outrider verify` on the default model and the native engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.cli.main import main
from outrider.engines.native import NativeModel

LINE = "--prompts chat --limit 1 --seeds 1 --temps 0,1 -n 6 --samples 24"


def verify(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, list[dict[str, Any]]]:
    status = main(["verify", *LINE.split(), "--json", *args])
    return status, json.loads(capsys.readouterr().out)["claims"]


@pytest.mark.model
def test_with_a_draft_model(default_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The default model drafts for itself. (docs/verify.md's first command, which a test of the docs runs,
    checks it with lookups under every rule.)"""
    line = ["-m", str(default_model), "-md", str(default_model), "--verification", "block"]
    status, claims = verify(capsys, *line)
    assert status == 0, claims
    assert [claim["claim"] for claim in claims] == ["identity", "bits", "distribution", "distribution"]
    assert "the bits of one token at a time" in claims[1]["detail"]
    assert "trees" in claims[1]["detail"]


@pytest.mark.model
def test_one_bit_of_drift_is_seen(
    default_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last bit of one logit of 49152, in passes of more than one token."""
    right = NativeModel.forward

    def forward(self: NativeModel, items: Any) -> Any:
        found = [rows.copy() for rows in right(self, items)]
        for rows in found:
            if len(rows) > 1:
                rows[1, 77] = np.nextafter(rows[1, 77], np.float32(100))
        return found

    monkeypatch.setattr(NativeModel, "forward", forward)
    flags = ["--verification", "coupled", "--samples", "0", "--temps", "0", "--draft", "3"]
    status, claims = verify(capsys, "-m", str(default_model), *flags)
    assert status == 1
    assert [(claim["claim"], claim["held"]) for claim in claims] == [("identity", True), ("bits", False)]
