"""`outrider demo` in-process, on toy models."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outrider.cli import demo
from outrider.cli.main import main
from outrider.models.sources import known_fetch
from outrider.models.sources.catalog import CATALOG
from tests.conftest import load_toy
from tests.support.models import Dims, tiny_gguf
from tests.support.toy_model import ToyModel


@pytest.fixture
def long_target(tmp_path: Path) -> Path:
    return tiny_gguf(tmp_path / "long.gguf", dims=Dims(context=2048), seed=1)


def _pair_files(folder: Path) -> None:
    """Files that look like the pair to whoever asks for names and sizes only."""
    for name in demo.PAIR:
        with (folder / CATALOG[name].file_name).open("wb") as f:
            f.truncate(CATALOG[name].size)


def test_a_row_for_each_prompt_with_tokens_times_speed_up_and_identity(
    long_target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("outrider.pipeline.load_native", load_toy)
    monkeypatch.setattr(demo, "MODEL", str(long_target))
    monkeypatch.setattr(demo, "HEAD", None)
    assert main(["demo", "--no-pair", "-n", "30"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("prompt"))
    table = lines[at + 1 : at + 1 + len(demo.PROMPTS)]
    for line in table:
        assert re.search(r"  +\d+  +\d+\.\d\d s  +\d+\.\d\d s  +x\d+\.\d\d  .*  yes$", line), line
    assert "lookups" in lines[0]
    text = "\n".join(lines)
    assert "geometric mean" in text
    assert "All tokens are the same" in text
    assert "outrider demo --pair" in text, "how to see a draft model"


def test_with_the_pair_the_draft_model_is_shown(
    long_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = tiny_gguf(tmp_path / "draft.gguf", dims=Dims(context=2048), seed=2)
    monkeypatch.setattr("outrider.pipeline.load_native", load_toy)
    monkeypatch.setattr(demo, "present_pair", lambda: (long_target, draft))
    assert main(["demo", "-n", "30"]) == 0
    out = capsys.readouterr().out
    assert "as its draft model" in out.splitlines()[0]
    assert "All tokens are the same" in out
    assert "--pair" not in out


def test_the_pair_is_fetched_on_demand(
    long_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []

    def resolve(name: str, **_: object) -> Path:
        fetched.append(name)
        return long_target

    monkeypatch.setattr("outrider.pipeline.load_native", load_toy)
    monkeypatch.setattr(demo, "present_pair", lambda: None)
    monkeypatch.setattr("outrider.models.sources.references.resolve", resolve)
    monkeypatch.setattr(demo, "_show", lambda target, draft, n: (target, draft) == (str(long_target),) * 2)
    assert main(["demo", "--pair"]) == 0
    assert fetched == list(demo.PAIR)


def test_a_different_token_is_reported_with_status_1(
    long_target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An engine whose logits depend on how many tokens share the pass: what batch invariance forbids. Alone,
    it goes round in a circle, so that lookups find what to draft whatever else the machine does."""

    class Drifting(ToyModel):
        def forward(self, items):  # type: ignore[no-untyped-def]
            found = super().forward(items)
            for rows, item in zip(found, items, strict=True):
                tokens = item.tokens[item.rows]
                for row, token in zip(rows, tokens, strict=True):
                    row[300 + (int(token) + len(rows)) % 3] += 100.0
            return found

    monkeypatch.setattr("outrider.pipeline.load_native", lambda source, threads: Drifting(320, 2048))
    monkeypatch.setattr(demo, "MODEL", str(long_target))
    monkeypatch.setattr(demo, "HEAD", None)
    assert main(["demo", "--no-pair", "-n", "60"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"  NO$", out, re.M)
    assert "NOT the same" in out


def test_the_pair_is_found_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("OUTRIDER_DEV_MODELS", str(tmp_path))
    assert demo.present_pair() is None
    with monkeypatch.context() as patched:
        patched.setattr(known_fetch, "present_known", lambda model, cache: tmp_path / model.name)
        assert demo.present_pair() == tuple(tmp_path / name for name in demo.PAIR), (
            "as the hub's cache has it"
        )
    _pair_files(tmp_path)
    found = demo.present_pair()
    assert found is not None
    assert [p.name for p in found] == [CATALOG[name].file_name for name in demo.PAIR]


def test_a_bad_number_of_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "-n", "0"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
