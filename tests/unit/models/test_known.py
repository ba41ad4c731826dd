"""The table of known models and pairs, and how its models are brought: the hub first, then the package."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.cli.main import main
from outrider.errors import DownloadError
from outrider.models.open import open_model
from outrider.models.sources import known, known_fetch
from outrider.models.sources.cached import find
from outrider.models.sources.catalog import CATALOG, CatalogModel
from outrider.models.sources.download import record_path
from outrider.models.sources.known import KNOWN, known_drafts, known_name, parameters
from outrider.models.sources.references import parse_reference, resolve
from outrider.plan.shapes import shape_source
from tests.support.hub_server import Hub, serve_hub, use_hub
from tests.support.index_server import serve_index, use_index
from tests.support.models import Dims, tiny_gguf

GGUF = b"GGUF" + bytes(range(256)) * 40
LLAMA = "meta-llama/Llama-3.2-1B-Instruct"
FOLDER = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": bytes(5000)}
GATED = {
    "X-Error-Code": "GatedRepo",
    "X-Error-Message": f"Access to model {LLAMA} is restricted. Please log in.",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve_hub() as server:
        use_hub(monkeypatch, server.url)
        server.repos[LLAMA] = dict(FOLDER)
        yield server


def pull(*words: str, cache: Path) -> int:
    return main(["pull", *words, "--cache-dir", str(cache), "-q"])


# --- The table -------------------------------------------------------------------------------------


def test_every_entry_is_a_reference_that_can_be_pulled() -> None:
    for name, model in KNOWN.items():
        reference = parse_reference(model.reference)
        assert (reference.kind, reference.name, reference.file) == ("hub", model.repo, model.file)
        assert parse_reference(name).kind == "catalog"
        assert model.license
        assert model.terms or model.license == "Apache-2.0"
        package = CATALOG.get(name)
        assert model.sha256 == (None if package is None else package.sha256)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        *(("llama-3.1-8b", 8.03), ("llama-3.2-3b", 3.21), ("qwen2.5-7b", 7.62), ("qwen2.5-72b", 72.7)),
        *(("qwen3-0.6b", 0.596), ("qwen3-8b", 8.19), ("qwen3-32b", 32.8), ("smollm2-1.7b", 1.71)),
        *(("gemma-3-1b", 1.0), ("gemma-3-4b", 3.88), ("gemma-3-12b", 11.8), ("gemma-3-27b", 27.0)),
    ],
)
def test_shapes_have_the_parameters_of_the_models(name: str, billions: float) -> None:
    shape = KNOWN[name].shape
    whole = parameters(shape) + (0 if shape.tied else shape.vocab * shape.hidden)
    assert whole / 1e9 == pytest.approx(billions, rel=6e-3)


def test_drafts_share_the_targets_vocabulary_and_are_smaller() -> None:
    assert [draft.name for draft in known_drafts("llama-3.3-70b")] == ["llama-3.2-1b", "llama-3.2-3b"]
    assert [draft.name for draft in known_drafts("qwen-coder-1.5b")] == ["qwen-coder-0.5b"]
    assert known_drafts("no-such-model") == ()
    for name, model in KNOWN.items():
        for draft in known_drafts(name):
            assert draft.group == model.group
            assert parameters(draft.shape) <= parameters(model.shape) / 2


@pytest.mark.parametrize(
    "name", ["qwen2.5-7b", "qwen-coder-0.5b", "qwen3-1.7b", "gemma-3-4b", "smollm2-360m"]
)
def test_models_are_recognized_by_shape_and_name(name: str) -> None:
    source = shape_source(name)
    assert known_name(source) == name
    assert known_name(replace(source, display_name="another", path=Path("another"))) is None


def test_a_name_alone_is_not_enough(tmp_path: Path) -> None:
    source = open_model(tiny_gguf(tmp_path / "qwen2.5-coder-7b-instruct.gguf", dims=Dims()))
    assert known_name(source) is None


# --- Pulling ---------------------------------------------------------------------------------------


def test_a_short_name_brings_the_hubs_official_folder(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", "llama-3.2-1b", "--cache-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    folder = Path(shown.out.strip())
    assert {path.name for path in folder.iterdir()} == set(FOLDER)
    assert "license Llama 3.2: https://www.llama.com/llama3_2/license/" in shown.err
    assert "no SHA-256 is known here" in shown.err
    assert pull("llama-3.2-1b", "--offline", cache=tmp_path) == 0
    asked = len(hub.asked)
    assert pull("llama-3.2-1b", cache=tmp_path) == 0
    assert len(hub.asked) == asked, "a copy that is here is not asked for again"
    assert find("llama-3.2-1b", tmp_path).path == folder
    assert main(["pull", "--list", "--json", "--cache-dir", str(tmp_path)]) == 0
    listed = json.loads(capsys.readouterr().out.splitlines()[-1])["models"]
    assert {row["name"]: row["path"] for row in listed}["llama-3.2-1b"] == str(folder)


def test_a_gated_model_tells_the_hubs_own_message(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refuse[LLAMA] = (403, GATED)
    assert pull("llama-3.2-1b", cache=tmp_path) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    for words in ("llama-3.2-1b", "is gated; accept its terms", "HF_TOKEN", GATED["X-Error-Message"]):
        assert words in shown.err


def test_bytes_that_the_hub_did_not_list_are_refused(hub: Hub, tmp_path: Path) -> None:
    hub.swap["model.safetensors"] = bytes(4999) + b"?"
    with pytest.raises(DownloadError, match="does not have the SHA-256 that the hub lists"):
        resolve("llama-3.2-1b", cache_dir=tmp_path, progress=False)


@pytest.fixture
def coder(monkeypatch: pytest.MonkeyPatch) -> CatalogModel:
    """A little file in the place of a model that both the hub and the package index have."""
    model = replace(
        CATALOG["qwen-coder-0.5b"],
        packages=("coder-part1==1.0",),
        size=len(GGUF),
        sha256=hashlib.sha256(GGUF).hexdigest(),
    )
    monkeypatch.setattr(known, "CATALOG", {**CATALOG, model.name: model})
    return model


def coder_from(hub: Hub, cache: Path, **options: bool) -> Path:
    return resolve("qwen-coder-0.5b", cache_dir=cache, progress=False, **options)


def test_the_hub_comes_first(hub: Hub, tmp_path: Path, coder: CatalogModel) -> None:
    hub.repos[KNOWN[coder.name].repo] = {coder.file_name: GGUF}
    path = coder_from(hub, tmp_path)
    assert path.read_bytes() == GGUF
    assert tmp_path / "hub" in path.parents
    assert coder_from(hub, tmp_path, offline=True) == path
    assert known_fetch.present_known(KNOWN[coder.name], tmp_path, tmp_path / "hub") == path


@pytest.mark.parametrize("trouble", ["gone", "other bytes, unlisted"])
def test_the_package_comes_second_and_has_the_same_bytes(
    hub: Hub,
    tmp_path: Path,
    coder: CatalogModel,
    monkeypatch: pytest.MonkeyPatch,
    *,
    trouble: str,
) -> None:
    if trouble != "gone":
        hub.repos[KNOWN[coder.name].repo] = {coder.file_name: GGUF[:-1] + b"?"}
        hub.plain = trouble.endswith("unlisted")
    with serve_index() as index:
        use_index(monkeypatch, index.url)
        index.add("coder-part1", "1.0", {"part1.bin": GGUF})
        path = coder_from(hub, tmp_path)
    assert path == tmp_path / "models" / coder.file_name
    assert path.read_bytes() == GGUF
    asked = len(hub.asked)
    assert coder_from(hub, tmp_path) == path
    assert len(hub.asked) == asked
    record_path(path).unlink()
    path.write_bytes(GGUF[:-1] + b"?")
    with pytest.raises(DownloadError):
        coder_from(hub, tmp_path, offline=True)


def test_offline_says_what_to_pull(tmp_path: Path, hub: Hub) -> None:
    for name in ("llama-3.2-1b", "qwen-coder-0.5b"):
        with pytest.raises(DownloadError, match=name):
            resolve(name, cache_dir=tmp_path, progress=False, offline=True)
    assert hub.asked == []
