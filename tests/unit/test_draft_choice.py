"""`-md auto`: the draft model is one that is here and fits, or none; and one line says why."""

from __future__ import annotations

import json
import logging
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from outrider import draft_choice, memory
from outrider.cli.main import main
from outrider.config.engine import EngineConfig
from outrider.config.speculative import AutoConfig, DraftModelConfig, parse_speculative
from outrider.decoding.sampling.params import SamplingParams
from outrider.draft_choice import choose
from outrider.errors import ConfigError, InsufficientMemoryError, UnsupportedModelError
from outrider.llm import LLM
from outrider.models.open import open_model
from outrider.models.quantization import for_draft, loaded_bytes, quantized
from outrider.models.sources.folder import models_in, size_of
from outrider.models.sources.known import KNOWN, KnownModel
from outrider.pipeline import build
from outrider.plan.shapes import shape_source
from tests.conftest import ToyLoader
from tests.support.models import Dims, tiny_gguf

LARGE = Dims(layers=8, hidden=128, ffn=256)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A target alone in its folder, and an empty cache."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("OUTRIDER_OFFLINE", "1")
    place = tmp_path / "models"
    place.mkdir()
    tiny_gguf(place / "target.gguf", dims=LARGE, seed=1)
    return place


def chosen(target: Path, fits: Any = lambda draft: None) -> draft_choice.Chosen:
    source = open_model(target)
    return choose(source, source.tokenizer, fits, "auto")


def test_none_is_here(folder: Path) -> None:
    found = chosen(folder / "target.gguf")
    assert found.path is None
    assert "no pair is known" in found.why
    assert "going on with lookups" in found.why


def test_the_nearest_to_a_tenth_beside_the_target(folder: Path) -> None:
    tiny_gguf(folder / "a-large.gguf", dims=Dims(layers=3, hidden=128, ffn=256), seed=2)
    tiny_gguf(folder / "small.gguf", seed=3)
    tiny_gguf(folder / "tiny.gguf", dims=Dims(layers=1, hidden=32, ffn=32), seed=3)
    tiny_gguf(folder / "mmproj-small.gguf", seed=3)
    tiny_gguf(folder / "too-large.gguf", dims=LARGE, seed=4)
    (folder / "damaged.gguf").write_bytes(b"GGUF" + bytes(50))
    pieces = ["zz", *(f"p{i}" for i in range(319))]
    tiny_gguf(folder / "unlike.gguf", keys={"tokenizer.ggml.tokens": pieces})
    target = open_model(folder / "target.gguf")

    def distance(name: str) -> float:
        source = open_model(folder / name)
        as_loaded = quantized(source, for_draft("auto", source, target))
        return abs(math.log(10 * loaded_bytes(as_loaded) / loaded_bytes(target)))

    found = chosen(folder / "target.gguf")
    assert found.path == folder / min("a-large.gguf", "small.gguf", "tiny.gguf", key=distance)
    assert "beside the target" in found.why
    assert "has the target's vocabulary" in found.why


def test_what_does_not_fit_is_not_taken_and_that_is_said(folder: Path) -> None:
    for name in ("small", "other"):
        tiny_gguf(folder / f"{name}.gguf", seed=3)

    def never(draft: object) -> None:
        raise InsufficientMemoryError("no")

    found = chosen(folder / "target.gguf", never)
    assert found.path is None
    assert "do not fit in memory together" in found.why
    asked: list[str] = []

    def second(draft: Any) -> None:
        asked.append(draft.path.name)
        if len(asked) == 1:
            never(draft)

    again = chosen(folder / "target.gguf", second)
    assert again.path is not None
    assert again.path.name == asked[1] != asked[0]


def test_what_the_engine_cannot_run_is_passed_over(folder: Path) -> None:
    for name in ("small", "other"):
        tiny_gguf(folder / f"{name}.gguf", seed=3)

    def only_other(*draft: Any) -> None:
        if draft and draft[0].path.name != "other.gguf":
            raise UnsupportedModelError("no such weights here")

    assert chosen(folder / "target.gguf", only_other).path == folder / "other.gguf"


def test_a_target_that_does_not_fit_alone_is_told_as_that(folder: Path) -> None:
    source = open_model(folder / "target.gguf")

    def never(*draft: object) -> None:
        raise InsufficientMemoryError("the target needs more")

    with pytest.raises(InsufficientMemoryError, match="the target needs more"):
        draft_choice.settled([AutoConfig("auto")], source, source.tokenizer, never, quantizes=True)


def test_the_cache_comes_after_the_targets_folder(folder: Path) -> None:
    cached = folder.parent / "cache" / "pypi" / "little" / "little-1.0.gguf"
    cached.parent.mkdir(parents=True)
    tiny_gguf(cached, seed=3)
    found = chosen(folder / "target.gguf")
    assert found.path == cached
    assert "in the cache" in found.why
    shutil.copy(cached, folder / "near.gguf")
    assert chosen(folder / "target.gguf").path == folder / "near.gguf"


def test_a_known_pair_comes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_gguf(folder / "small.gguf", seed=3)
    elsewhere = tiny_gguf(folder.parent / "known.gguf", seed=5)
    known = KNOWN["llama-3.2-1b"]

    def present(model: KnownModel, cache: Path) -> Path | None:
        return elsewhere if model is known else None

    monkeypatch.setattr(draft_choice, "known_name", lambda source: "llama-3.1-8b")
    monkeypatch.setattr(draft_choice, "present_known", present)
    found = chosen(folder / "target.gguf")
    assert found.path == elsewhere
    assert "llama-3.2-1b, a known pair with llama-3.1-8b" in found.why


def test_what_to_pull_for_a_known_target(folder: Path) -> None:
    source = shape_source("llama-3.1-8b")
    found = choose(source, source.tokenizer, lambda draft: None, "auto")
    assert found.path is None
    assert "`outrider pull llama-3.2-1b` or `outrider pull llama-3.2-3b` fetches one" in found.why


# --- Where it is asked for -------------------------------------------------------------------------


@pytest.mark.parametrize("method", [None, "auto", "draft_model"])
def test_python_and_the_pipeline(
    folder: Path, toy_engine: ToyLoader, caplog: pytest.LogCaptureFixture, method: str | None
) -> None:
    tiny_gguf(folder / "draft.gguf", seed=3)
    config = {"model": "auto"} | ({"method": method} if method else {})
    with caplog.at_level(logging.WARNING, "outrider"):
        llm = LLM(str(folder / "target.gguf"), speculative_config=config)
    (said,) = [record.getMessage() for record in caplog.records if "draft model" in record.getMessage()]
    assert "beside the target" in said
    assert llm._pipeline.draft is not None
    plain = LLM(str(folder / "target.gguf"), speculative_config="none")
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    mine, other = (each.generate("a", params)[0].outputs[0].token_ids for each in (llm, plain))
    assert mine == other


@pytest.mark.parametrize("method", ["auto", "draft_model"])
def test_without_a_draft_it_goes_on_with_lookups(
    folder: Path, toy_engine: ToyLoader, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    choice = parse_speculative({"method": method, "model": "auto"})
    assert isinstance(choice, AutoConfig | DraftModelConfig)
    pipeline = build(EngineConfig(str(folder / "target.gguf"), choice), progress=False)
    assert isinstance(pipeline.speculative, AutoConfig)
    assert pipeline.speculative.model is None
    assert pipeline.drafting.names == ("suffix",)
    assert "going on with lookups" in caplog.text


def test_memory_that_is_short_takes_no_draft(
    folder: Path, toy_engine: ToyLoader, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_gguf(folder / "draft.gguf", seed=3)
    target = open_model(folder / "target.gguf")
    alone = memory.estimate(target, 256, 8).total
    monkeypatch.setattr(memory, "available_bytes", lambda: int(alone / memory.MARGIN) + 1000)
    llm = LLM(str(folder / "target.gguf"), speculative_model="auto", max_num_seqs=8)
    assert llm._pipeline.draft is None
    assert "do not fit in memory together" in caplog.text


def test_a_revision_needs_a_name() -> None:
    with pytest.raises(ConfigError, match="'auto' chooses one"):
        parse_speculative({"model": "auto", "revision": "main"})


def test_commands(
    folder: Path, toy_engine: ToyLoader, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    tiny_gguf(folder / "draft.gguf", seed=3)
    target = str(folder / "target.gguf")
    assert main(["run", "-m", target, "-md", "auto", "-p", "a", "-n", "8", "--temp", "0", "--json"]) == 0
    json.loads(capsys.readouterr().out)
    bench = ["bench", "-m", target, "-md", "auto", "--workload", "edit", "--limit", "1", "--runs", "1"]
    assert main([*bench, "-n", "8", "--raw", "--json", "-c", "4096"]) in (0, 2)
    assert caplog.text.count("beside the target") >= 1
    assert main(["plan", "-m", target, "-md", "auto", "--memory", "1K", "--json"]) == 1
    shown = capsys.readouterr()
    assert "do not fit in memory together" in shown.err


# --- Folders ---------------------------------------------------------------------------------------


def test_the_models_of_a_folder(tmp_path: Path) -> None:
    for name in ("b.gguf", "mmproj-b.gguf", "s-00001-of-00002.gguf", "s-00002-of-00002.gguf", "x.txt"):
        (tmp_path / name).write_bytes(b"12345")
    (tmp_path / "h-00001-of-00002.gguf").write_bytes(b"1")
    model = tmp_path / "folder"
    model.mkdir()
    (model / "config.json").write_bytes(b"{}")
    assert [path.name for path in models_in(tmp_path)] == ["b.gguf", "s-00001-of-00002.gguf"]
    (model / "model.safetensors").write_bytes(b"123")
    found = models_in(tmp_path)
    assert [(path.name, size_of(path)) for path in found] == [
        ("b.gguf", 5),
        ("s-00001-of-00002.gguf", 10),
        ("folder", 3),
    ]
    assert models_in(tmp_path / "none") == []
    assert size_of(tmp_path / "none.gguf") == 0
