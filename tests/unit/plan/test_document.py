"""What `outrider plan` says of pairs: the document, its text, and the exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.cli import plan
from outrider.cli.main import main
from outrider.models.open import open_model
from outrider.plan.curves import Curve
from outrider.plan.document import Pair, document
from outrider.plan.text import text
from tests.support.heads import HeadDims, TinyHead, gguf_head, original_folder, speculators_folder, tiny_head
from tests.support.models import Dims, tiny_gguf

GB = 10**9
TARGET = Curve({1: 0.100, 2: 0.105, 4: 0.110, 8: 0.130, 16: 0.200}, "measured", 0.0)
FAST = Curve({1: 0.010, 16: 0.030}, "predicted", None)
SLOW = Curve({1: 0.090, 16: 0.200}, "predicted", None)


def planned(target: Path, draft: Path | None = None, fast: bool = True, limit: int = GB) -> dict[str, Any]:
    pair = Pair(
        open_model(target), None if draft is None else open_model(draft), 256, 1, limit, "of this test"
    )

    def curves(source: Any, threads: int | None, *, drafts: bool = False) -> Curve:
        return (FAST if fast else SLOW) if drafts else TARGET

    found = document(pair, curves)
    json.dumps(found)
    return found


def failures(found: dict[str, Any]) -> set[str]:
    return {each["failure"] for each in found["advice"]}


def test_a_pair_that_fits_and_pays(target_file: Path, draft_file: Path) -> None:
    found = planned(target_file, draft_file)
    assert found["fits"]
    assert found["advice"] == []
    draft = found["speed"]["draft"]
    assert draft["pays"]
    assert draft["seconds_ratio"] == pytest.approx(0.1)
    assert draft["prompt_ms"] == pytest.approx(30.0 / 16)
    # T(2) + t = 0.115 for 1 + a tokens of 0.1 seconds each.
    assert draft["break_even"]["1"] == pytest.approx(0.15, abs=1e-3)
    row = draft["table"][3]
    assert row["acceptance"] == 0.8
    k = row["length"]
    emitted = sum(0.8**i for i in range(k + 1))
    assert row["speedup"] == pytest.approx(0.1 * emitted / (TARGET.at(k + 1) + 0.01 * k))
    shown = text(found)
    for words in (
        "It fits",
        "1000 tokens of a prompt in 1.9 s",
        "as 19 tokens of the target",
        "100.0 ms a token",
        "10.0 tokens/s",
        "predicted from some of its layers",
    ):
        assert words in shown
    assert "measured" in shown
    assert "Advice" not in shown


def test_a_draft_that_is_too_large(target_file: Path, draft_file: Path) -> None:
    found = planned(target_file, draft_file, fast=False)
    assert failures(found) == {"draft too large"}
    assert found["fits"]
    shown = text(found)
    assert "90% of a token of the target" in shown
    assert "--spec suffix" in shown


@pytest.mark.parametrize(
    ("spread", "words", "not_said"),
    [(None, "measured", "differed"), (0.02, "differed by 2%", "other load"), (0.25, "25%: other load", "!")],
)
def test_a_measured_curve_says_under_what_spread(
    target_file: Path, spread: float | None, words: str, not_said: str
) -> None:
    pair = Pair(open_model(target_file), None, 256, 1, GB, "of this test")
    found = document(pair, lambda *_, drafts=False: replace(TARGET, spread=spread))
    assert found["speed"]["target"]["spread"] == spread
    assert words in text(found)
    assert not_said not in text(found)


def test_a_draft_of_another_vocabulary(target_file: Path, tmp_path: Path) -> None:
    pieces = ["zz", *(f"p{i}" for i in range(319))]
    other = tiny_gguf(tmp_path / "other.gguf", keys={"tokenizer.ggml.tokens": pieces})
    found = planned(target_file, other)
    assert failures(found) == {"draft too unlike"}
    assert found["speed"]["draft"] is None
    assert "id 0 is" in text(found)


def test_memory_that_is_short(target_file: Path, draft_file: Path) -> None:
    need = planned(target_file, draft_file)["memory"]["total"]
    found = planned(target_file, draft_file, limit=need - 1000)
    assert not found["fits"]
    assert failures(found) == {"memory short"}
    assert any(each["flag"] == "--spec suffix" for each in found["advice"])
    assert "It does not fit" in text(found)
    assert planned(target_file, draft_file, limit=need)["fits"]


def test_the_command(
    target_file: Path,
    draft_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "document", lambda pair: document(pair, lambda *_, drafts=False: TARGET))
    asked = ["plan", "-m", str(target_file), "-md", str(draft_file), "-c", "128", "--slots", "2"]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["context"], found["slots"], found["fits"]) == (128, 2, True)
    assert main([*asked, "--memory", "1M"]) == 1
    assert "as --memory says" in capsys.readouterr().out


def test_shapes_are_planned_for(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The guides' largest pair: its target alone is more than 24 GiB."""
    monkeypatch.setattr(plan, "document", lambda pair: document(pair, lambda *_, drafts=False: TARGET))
    line = "plan -m synthetic:llama-3.1-70b -md synthetic:llama-3.2-1b --memory 24GiB --json"
    assert main(line.split()) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["vocabulary"]["compatible"]
    assert found["memory"]["total"] > 43 * GB
    assert failures(found) == {"memory short", "draft too large"}


@pytest.mark.parametrize("dialect", [original_folder, speculators_folder, gguf_head])
def test_a_head_is_planned_for(
    dialect: Callable[[Path, TinyHead], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its vocabulary is its target's, and what it shares with the target is not counted as read twice."""
    target = tiny_gguf(tmp_path / "target.gguf", dims=Dims(layers=6), tied=False)
    head = dialect(tmp_path / "head", tiny_head(HeadDims(taps=(2, 3, 4), rows=32)))
    monkeypatch.setattr(plan, "document", lambda pair: document(pair, lambda *_, drafts=False: TARGET))
    line = ["plan", "-m", str(target), "-md", str(head)]
    assert main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["draft"]["head"]
    assert not found["target"]["head"]
    assert found["vocabulary"] is None
    assert found["speed"]["draft"]["weights_gb_per_s"] < found["speed"]["target"]["weights_gb_per_s"]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert "  head  " in shown
    assert "draft model  " not in shown
    assert main([*line, "--gpu", "L4"]) == 2
    assert "native engine only" in capsys.readouterr().err
    assert main(["plan", "-m", "synthetic:llama-3.2-1b", "-md", str(head)]) == 2
    assert "is an EAGLE-3 head for another target" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("plan", ["give a model"]),
        ("plan -m {} -c -4", ["-c", "-4"]),
        ("plan -m {} --slots 0", ["--slots", "0"]),
        ("plan -m {} -t 0", ["--threads", "0"]),
        ("plan -m {} --memory much", ["much"]),
        ("plan -m /no/such.gguf", ["/no/such.gguf"]),
        ("plan -m {} -md org/none", ["outrider pull org/none"]),
        ("plan -m {} --quantization q5_k", ["q5_k"]),
    ],
)
def test_bad_input_is_told_in_one_line(
    target_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    words: list[str],
) -> None:
    monkeypatch.setenv("OUTRIDER_OFFLINE", "1")
    assert main([part.format(target_file) for part in line.split()]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert all(word in shown.err for word in words)
