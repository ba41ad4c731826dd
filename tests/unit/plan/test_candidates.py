"""`outrider plan --candidates`: the ranking, and a reason for each refusal."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.acceptance_record import Group, TextCounts, add, place_of
from outrider.cli.main import main
from outrider.models.open import open_model
from outrider.models.quantization import for_draft, quantized
from outrider.models.source import ModelSource
from outrider.plan import candidates, curves, speed
from outrider.plan.candidates import Offer
from outrider.plan.curves import Curve
from outrider.plan.document import Pair
from outrider.plan.shapes import shape_source
from tests.support.hub_server import Hub, serve_hub, use_hub
from tests.support.models import Dims, tiny_gguf

GB = 10**9
LARGE = Dims(layers=8, hidden=128, ffn=256)
TARGET = Curve({1: 0.100, 2: 0.105, 4: 0.110, 8: 0.130, 16: 0.200}, "measured", 0.0)


def by_layers(source: ModelSource, threads: int | None = None, *, drafts: bool = False) -> Curve:
    """A draft takes 10 ms for each of its layers."""
    return Curve({1: 0.01 * source.architecture.n_layers}, "predicted", None) if drafts else TARGET


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A target, and beside it two drafts and three that cannot draft."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(curves, "curve_of", by_layers)
    place = tmp_path / "models"
    place.mkdir()
    tiny_gguf(place / "target.gguf", dims=LARGE, seed=1)
    tiny_gguf(place / "one.gguf", dims=Dims(layers=1), seed=2)
    tiny_gguf(place / "three.gguf", dims=Dims(layers=3), seed=3)
    tiny_gguf(place / "unlike.gguf", keys={"tokenizer.ggml.tokens": ["zz", *(f"p{i}" for i in range(319))]})
    tiny_gguf(place / "huge.gguf", dims=Dims(layers=9, hidden=256, ffn=512), types="F32")
    (place / "damaged.gguf").write_bytes(b"GGUF" + bytes(50))
    return place


def ranked(folder: Path, limit: int = GB, **options: Any) -> dict[str, Any]:
    pair = Pair(open_model(folder / "target.gguf"), None, 256, 1, limit, "of this test")
    offers = [Offer(path.name, functools.partial(open_model, path)) for path in sorted(folder.iterdir())]
    found = candidates.document(pair, offers, by_layers, options.pop("acceptance", 0.8), **options)
    json.dumps(found)
    return found


def names(found: dict[str, Any]) -> list[str]:
    return [row["reference"] for row in found["candidates"]]


def reasons(found: dict[str, Any]) -> dict[str, str]:
    return {row["reference"]: row["reason"] for row in found["refused"]}


def test_the_faster_draft_wins_at_one_acceptance(folder: Path) -> None:
    found = ranked(folder)
    assert names(found) == ["one.gguf", "three.gguf"]
    best = speed.best(TARGET, 0.01, 0.8)
    first = found["candidates"][0]
    assert (first["speedup"], first["num_speculative_tokens"]) == (best.speedup, best.length)
    assert (first["acceptance"], first["acceptance_from"]) == (0.8, "stated")
    why = reasons(found)
    assert why.keys() == {"target.gguf", "unlike.gguf", "damaged.gguf", "huge.gguf"}
    assert why["target.gguf"] == "it is the target"
    assert "the vocabulary differs: id 0 is" in why["unlike.gguf"]
    assert "no smaller than the target" in why["huge.gguf"]
    shown = candidates.text(found)
    assert "An acceptance of 80% is assumed" in shown
    assert shown.index("one.gguf") < shown.index("three.gguf") < shown.index("Refused:")


def test_acceptance_on_record_decides(folder: Path) -> None:
    target, opened = open_model(folder / "target.gguf"), open_model(folder / "three.gguf")
    draft = quantized(opened, for_draft("auto", opened, target))
    texts = [
        TextCounts(400, 90, 0.0, 0.0, (99, 98 + n % 2, 97, 96), (98 + n % 2, 97, 96, 95)) for n in range(8)
    ]
    add(place_of(target, draft), [(Group("draft_model", "coupled", "greedy"), text) for text in texts])
    found = ranked(folder, acceptance=0.5)
    assert names(found) == ["three.gguf", "one.gguf"]
    assert [row["acceptance_from"] for row in found["candidates"]] == ["record", "stated"]
    assert found["candidates"][0]["acceptance"] > 0.95
    assert names(ranked(folder, stated_for_all=True)) == ["one.gguf", "three.gguf"]


def test_memory_refuses_too(folder: Path) -> None:
    found = ranked(folder, limit=1000)
    assert found["candidates"] == []
    assert "are needed and 1 kB are there" in reasons(found)["one.gguf"]
    assert "none of these can draft" in candidates.text(found)


def test_no_more_than_so_many_are_looked_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "MOST", 4)
    assert reasons(ranked(folder))["unlike.gguf"] == "only the first 4 are looked at"


def test_a_known_pair_is_ranked_by_what_comes_with_the_package() -> None:
    pair = Pair(shape_source("qwen-coder-1.5b"), None, 256, 1, 10 * GB, "of this test")
    offer = Offer("small", lambda: shape_source("qwen-coder-0.5b"))
    fast = Curve({1: 0.01}, "predicted", None)
    (row,) = candidates.document(
        pair, [offer], lambda source, threads, drafts=False: fast if drafts else TARGET, 0.5
    )["candidates"]
    assert row["acceptance_from"] == "package"
    assert 0.6 < row["acceptance"] < 1.0
    assert row["speedup"] > 1.5


# --- The command -----------------------------------------------------------------------------------


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["plan", "-m", str(folder / "target.gguf"), "--candidates", str(folder), "-c", "256"]
    assert main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [Path(name).name for name in names(found)] == ["one.gguf", "three.gguf"]
    assert main([*line, "--acceptance", "0.5"]) == 0
    assert "acceptance of 50% is assumed" in capsys.readouterr().out
    assert main([*line, "--memory", "1K"]) == 1


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The drafts of the folder in repositories of an organization, and some that are no candidates."""
    monkeypatch.setenv("HF_HUB_CACHE", str(folder.parent / "hub"))
    with serve_hub() as server:
        use_hub(monkeypatch, server.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(folder.parent / "hub"))
        for name in ("one", "three", "unlike", "damaged"):
            data = (folder / f"{name}.gguf").read_bytes()
            server.repos[f"org/{name}"] = {"README.md": b"text", f"{name}-Q4_K_M.gguf": data}
        server.repos["org/gated"] = {"gated.gguf": b"GGUF"}
        server.refuse["org/gated"] = (403, {"X-Error-Code": "GatedRepo"})
        server.repos["org/pictures"] = {"model.bin": b"x"}
        server.tags["org/pictures"] = ["diffusers"]
        server.repos["other/one"] = server.repos["org/one"]
        yield server


def test_an_organization_on_the_hub(
    hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["plan", "-m", str(folder / "target.gguf"), "--candidates", "hf:org", "-c", "256", "--json"]
    assert main(line) == 0
    found = json.loads(capsys.readouterr().out)
    assert names(found) == ["hf:org/one", "hf:org/three"]
    why = reasons(found)
    assert why.keys() == {"hf:org/unlike", "hf:org/damaged", "hf:org/gated"}
    assert "the vocabulary differs: id 0 is" in why["hf:org/unlike"]
    assert "is gated" in why["hf:org/gated"]
    assert not (folder.parent / "hub").exists(), "nothing is downloaded"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(line) == 2
    assert "offline" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nobody", "a/b", "..", ""])
def test_an_organization_that_is_none(
    hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["plan", "-m", str(folder / "target.gguf"), "--candidates", f"hf:{name}"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--candidates /no/such", "no folder '/no/such'"),
        ("--candidates {} -md {}/one.gguf", "either -md or --candidates"),
        ("--candidates {} --acceptance 1.5", "from 0 to 1"),
        ("--acceptance 0.5", "needs --candidates"),
        ("--candidates {} --gpu H100-80GB", "this machine's CPU"),
        ("--candidates {}/../cache", "no folder"),
    ],
)
def test_bad_input_is_told_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], more: str, words: str
) -> None:
    line = ["plan", "-m", str(folder / "target.gguf"), *more.replace("{}", str(folder)).split()]
    assert main(line) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert words in shown.err
