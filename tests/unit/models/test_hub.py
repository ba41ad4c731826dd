"""The hub, through the real library, with a fake server on the loopback interface."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from huggingface_hub import constants

from outrider.errors import DownloadError, ModelNotFoundError, OutriderError
from outrider.models.sources.hub import fetch_hub
from outrider.models.sources.hub_files import choose
from outrider.models.sources.references import resolve
from tests.support.hub_server import COMMIT, Hub, serve_hub, use_hub

GGUF = b"GGUF" + np.random.default_rng(0).bytes(300_000)
OTHER = b"GGUF" + np.random.default_rng(1).bytes(1_000)
FOLDER = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
    "model.safetensors": np.random.default_rng(2).bytes(50_000),
    "pytorch_model.bin": b"pickle",
    "modeling.py": b"1/0",
    "onnx/model.safetensors": b"elsewhere",
    "README.md": b"text",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve_hub() as server:
        use_hub(monkeypatch, server.url)
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 4096)  # so that little files are cut too
        server.repos["org/one"] = {"README.md": b"text", "m-Q8_0.gguf": GGUF}
        yield server


def get(text: str, cache: Path, **options: bool) -> Path:
    return resolve(text, cache_dir=cache, progress=False, **options)


def test_the_only_gguf_is_fetched_once(hub: Hub, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = get("org/one", tmp_path)
    assert path.read_bytes() == GGUF
    assert path.name == "m-Q8_0.gguf"
    assert (tmp_path / "hub") in path.parents
    assert get("hf:org/one:Q8_0", tmp_path) == path
    assert get("hf:org/one:m-Q8_0.gguf@main", tmp_path) == path
    assert get(f"hf:org/one@{COMMIT}", tmp_path) == path
    assert hub.gets("m-Q8_0.gguf") == [""]
    assert hub.gets("README.md") == []
    assert capfd.readouterr() == ("", "")


def test_progress_is_on_stderr(hub: Hub, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    resolve("hf:org/one", cache_dir=tmp_path)
    out, err = capfd.readouterr()
    assert out == ""
    assert "checking m-Q8_0.gguf" in err
    assert "100%" in err


def test_a_cut_connection_is_resumed_in_the_same_run(hub: Hub, tmp_path: Path) -> None:
    hub.sends["m-Q8_0.gguf"] = [100_000]
    assert get("hf:org/one", tmp_path).read_bytes() == GGUF
    first, second = hub.gets("m-Q8_0.gguf")
    assert first == ""
    assert 0 < int(second.removeprefix("bytes=").removesuffix("-")) <= 100_000


def test_a_broken_pull_is_resumed_by_the_next(hub: Hub, tmp_path: Path) -> None:
    hub.sends["m-Q8_0.gguf"] = [100_000, -500]
    with pytest.raises(DownloadError, match="HTTP 500"):
        get("hf:org/one", tmp_path)
    assert get("hf:org/one", tmp_path).read_bytes() == GGUF
    start = int(hub.gets("m-Q8_0.gguf")[-1].removeprefix("bytes=").removesuffix("-"))
    assert 0 < start <= 100_000
    assert not list(tmp_path.rglob("*.incomplete"))


def test_bytes_that_do_not_have_the_listed_hash(hub: Hub, tmp_path: Path) -> None:
    hub.swap["m-Q8_0.gguf"] = GGUF[:-1] + b"?"
    with pytest.raises(DownloadError, match="SHA-256 that the hub lists"):
        get("hf:org/one", tmp_path)
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size > 1000]
    hub.swap.clear()
    assert get("hf:org/one", tmp_path).read_bytes() == GGUF


def test_a_file_that_is_shorter_than_listed(hub: Hub, tmp_path: Path) -> None:
    hub.swap["m-Q8_0.gguf"] = GGUF[:-100]
    with pytest.raises(DownloadError) as caught:
        get("hf:org/one", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_listing_without_hashes_still_works(hub: Hub, tmp_path: Path) -> None:
    hub.plain = True
    assert get("hf:org/one", tmp_path).read_bytes() == GGUF


def test_verify_finds_a_damaged_copy_and_fetches_it_again(
    hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = get("hf:org/one", tmp_path)
    path.resolve().write_bytes(b"x" * len(GGUF))
    assert get("hf:org/one", tmp_path).read_bytes() != GGUF  # only the size is looked at
    with pytest.raises(DownloadError, match="damaged"):
        get("hf:org/one", tmp_path, offline=True, verify=True)
    assert get("hf:org/one", tmp_path, verify=True).read_bytes() == GGUF
    assert "damaged" in caplog.text
    path.resolve().write_bytes(b"short")
    assert get("hf:org/one", tmp_path).read_bytes() == GGUF


def test_a_safetensors_folder_without_pickles_or_code(hub: Hub, tmp_path: Path) -> None:
    hub.repos["org/folder"] = FOLDER
    path = get("org/folder", tmp_path)
    found = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}
    templates = {"chat_template.jinja", "additional_chat_templates/tool_use.jinja"}
    assert found == {"config.json", "tokenizer.json", "model.safetensors", *templates}
    assert (path / "model.safetensors").read_bytes() == FOLDER["model.safetensors"]
    assert get("org/folder", tmp_path, offline=True) == path


def test_an_offline_folder_that_lacks_a_shard(hub: Hub, tmp_path: Path) -> None:
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    table = json.dumps({"weight_map": {"a": shards[0], "b": shards[1]}}).encode()
    hub.repos["org/sharded"] = {
        "config.json": b"{}",
        "model.safetensors.index.json": table,
        shards[0]: OTHER,
        shards[1]: OTHER + b"2",
        "consolidated.safetensors": OTHER + b"3",
    }
    path = get("org/sharded", tmp_path)
    assert not (path / "consolidated.safetensors").exists()
    (path / shards[1]).unlink()
    with pytest.raises(DownloadError, match=r"lacks 1 files, 'model-00002-of-00002.safetensors'"):
        get("org/sharded", tmp_path, offline=True)


def test_without_a_connection_the_copy_is_used(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = get("hf:org/one", tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert get("hf:org/one", tmp_path) == path
    assert "cannot be reached" in caplog.text
    with pytest.raises(DownloadError, match="the connection to the hub failed"):
        get("hf:org/two", tmp_path)
    hub.refuse["org/one"] = (503, {})
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    assert get("hf:org/one", tmp_path) == path


def test_offline_by_the_hubs_own_variable(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = get("hf:org/one", tmp_path)
    hub.asked.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert get("hf:org/one", tmp_path) == path
    assert get(f"hf:org/one@{COMMIT}", tmp_path) == path
    with pytest.raises(DownloadError, match="offline"):
        get("hf:org/two", tmp_path)
    assert hub.asked == []


def test_the_token_of_the_environment_is_sent(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_secret"
    with pytest.raises(DownloadError, match=r"refuses access \(HTTP 401\); set HF_TOKEN"):
        get("hf:org/one", tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert get("hf:org/one", tmp_path).read_bytes() == GGUF


@pytest.mark.parametrize(
    ("status", "headers", "kind", "says"),
    [
        (404, {"X-Error-Code": "RepoNotFound"}, ModelNotFoundError, "no such repository"),
        (404, {}, ModelNotFoundError, "no such repository"),
        (401, {}, DownloadError, "refuses access"),
        (403, {"X-Error-Code": "GatedRepo"}, DownloadError, "gated; accept its terms"),
        (403, {}, DownloadError, "refuses access"),
        (429, {}, DownloadError, "HTTP 429"),
        (500, {}, DownloadError, "the hub is down"),
        (200, {}, DownloadError, "JSON"),
    ],
)
def test_every_refusal_is_one_line(
    hub: Hub, tmp_path: Path, *, status: int, headers: dict[str, str], kind: type[OutriderError], says: str
) -> None:
    hub.refuse["org/one"] = (status, headers)
    with pytest.raises(kind, match=says) as caught:
        get("hf:org/one", tmp_path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("hf:org/one: ")


def test_a_revision_that_is_not_there(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such revision"):
        get("hf:org/one@v9", tmp_path)


def test_a_bare_name_mentions_that_there_is_no_such_path(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no file or folder 'org/typo' here"):
        get("org/typo", tmp_path)


def test_names_that_would_leave_the_cache_are_not_fetched(hub: Hub, tmp_path: Path) -> None:
    hub.repos["org/evil"] = {"../../../evil.gguf": OTHER, "a\\b.gguf": OTHER, "good.gguf": GGUF}
    assert get("hf:org/evil", tmp_path).name == "good.gguf"
    assert not [p for p in tmp_path.rglob("*") if "evil.gguf" in p.name]


def test_a_disk_that_is_too_small(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "outrider.models.sources.download.shutil.disk_usage", lambda _: SimpleNamespace(free=7_000_000)
    )
    with pytest.raises(DownloadError, match=r"needs 300 kB .* 7 MB are free; .* HF_HOME"):
        get("hf:org/one", tmp_path)
    assert hub.gets("m-Q8_0.gguf") == []


def test_a_cache_that_cannot_be_written(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "hub").write_bytes(b"a file, not a folder")
    with pytest.raises(DownloadError, match=r"cannot write into .*HF_HOME"):
        get("hf:org/one", tmp_path)


def test_the_default_cache_is_the_librarys(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    assert (tmp_path / "hf") in fetch_hub("org/one", None, None, None, progress=False).parents


PARTS = [f"Q8_0/m-Q8_0-0000{n}-of-00003.gguf" for n in (1, 2, 3)]


@pytest.mark.parametrize("file", [None, "Q8_0", *PARTS])
def test_a_split_model_is_fetched_whole(hub: Hub, tmp_path: Path, file: str | None) -> None:
    hub.repos["org/split"] = {
        "mmproj-m.gguf": OTHER,
        **{name: GGUF + bytes([n]) for n, name in enumerate(reversed(PARTS))},
    }
    path = get("hf:org/split" + (f":{file}" if file else ""), tmp_path)
    assert path.as_posix().endswith(PARTS[0])
    assert [(path.parent / Path(name).name).read_bytes()[-1] for name in PARTS] == [2, 1, 0]
    assert hub.gets("mmproj-m.gguf") == []
    assert get("hf:org/split", tmp_path, offline=True) == path
    (path.parent / Path(PARTS[2]).name).unlink()
    with pytest.raises(ModelNotFoundError, match=r"\(offline copy\): .*-00003-of-00003.gguf' is missing"):
        get("hf:org/split", tmp_path, offline=True)


QUANTS = ["m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-Q8_0.gguf", "mmproj-m-Q4_K_M.gguf", "README.md"]


@pytest.mark.parametrize(
    ("names", "file", "chosen"),
    [
        (QUANTS, None, "m-Q4_K_M.gguf"),
        (QUANTS, "q8_0", "m-Q8_0.gguf"),
        (QUANTS, "m-Q4_K_S.gguf", "m-Q4_K_S.gguf"),
        (["Q4_K_M/m.gguf", "Q8_0/m.gguf"], "Q8_0", "Q8_0/m.gguf"),
        (["m-Q4_0.gguf", "m-Q4_0_4_4.gguf"], "Q4_0", "m-Q4_0.gguf"),
        (["m.gguf", "mmproj.gguf"], None, "m.gguf"),
        (["m-00001-of-00001.gguf"], None, "m-00001-of-00001.gguf"),
    ],
)
def test_which_gguf_is_chosen(names: list[str], file: str | None, chosen: str) -> None:
    choice = choose(names, file, "hf:o/r")
    assert (choice.names, choice.folder) == ((chosen,), False)


@pytest.mark.parametrize(
    ("names", "file", "says"),
    [
        (["m-Q8_0.gguf", "m-F16.gguf"], None, "holds 2 GGUF files, choose one .*: m-F16.gguf, m-Q8_0.gguf"),
        (["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], None, "holds 2 GGUF files"),
        (["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], "Q4_K_M", "fits 2 files"),
        (QUANTS, "Q4_K", "'Q4_K' fits 2 files"),
        (QUANTS, "Q5", "no 'Q5'"),
        (QUANTS, "4_K_M", "no '4_K_M'"),
        (QUANTS, "Q4_K_M_L", "no 'Q4_K_M_L'"),
        (QUANTS, "m-Q4_K_X.gguf", "did you mean"),
        (QUANTS, "README.md", "no GGUF file"),
        (["m-00001-of-00002.gguf"], "m-00001-of-00002.gguf", "'m-00002-of-00002.gguf' is missing, one of"),
        (["m-00002-of-00002.gguf"], None, "'m-00001-of-00002.gguf' is missing, one of the 2 parts"),
        (["m-Q4_K_M-00001-of-00001.gguf", "m-Q8_0-00001-of-00002.gguf"], "Q8_0", "-00002-of-00002.gguf' is"),
        (["pytorch_model.bin", "config.json"], None, "pickled weights are never loaded"),
        (["model.safetensors"], None, "neither"),
        ([], "Q4_K_M", "no GGUF file"),
    ],
)
def test_what_is_no_single_model_is_explained(names: list[str], file: str | None, says: str) -> None:
    with pytest.raises(ModelNotFoundError, match=says):
        choose(names, file, "hf:o/r")
