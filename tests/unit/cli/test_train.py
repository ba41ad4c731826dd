"""`outrider train`: what it refuses before anything is loaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from outrider.cli import train
from outrider.cli.main import main
from outrider.errors import ConfigError


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["train", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-o d", ["-m/--model"]),
        ("-m x", ["-o DIR"]),
        ("-m x -o d --tokens 5 --hours 1", ["--tokens or --hours"]),
        ("-m x -o d --hours nan", ["--hours", "above 0"]),
        ("-m x -o d --hours 0", ["--hours", "above 0"]),
        ("-m x -o d --draft-model y --vocab 9", ["--vocab is of heads"]),
        ("-m x -o d -md y --steps 3", ["--steps is of heads"]),
        ("-m x -o d --rank 8", ["--rank is of draft models"]),
        ("-m x -o d extra", ["'extra'"]),
    ],
)
def test_what_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str], line: str, words: list[str]
) -> None:
    said = refused(capsys, *line.split())
    assert all(word in said for word in words)


def test_without_pytorch_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = importlib.util.find_spec

    def found(name: str, *more: Any) -> Any:
        return None if name in train.NEEDED else real(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", found)
    said = refused(capsys, "-m", "x", "-o", str(tmp_path))
    assert "torch and safetensors" in said
    assert "outrider[train]" in said


def test_settings_come_from_the_flags() -> None:
    from outrider.cli.main import parser

    line = "train -m x -o d --tokens 9 --temps 0,1.5 --seed 4 --max-answer 7 --vocab 64"
    assert train._given(parser().parse_args(line.split())) == {
        "tokens": 9, "temperatures": (0.0, 1.5), "seed": 4, "max_answer": 7, "vocab": 64,
    }  # fmt: skip
    assert train._given(parser().parse_args(["train", "-m", "x"])) == {}
    with pytest.raises(ConfigError, match="--temps"):
        train._given(parser().parse_args(["train", "--temps", "warm"]))
