"""Runs the console lines and Python blocks of the documents as they stand."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.cli.main import main, parser
from outrider.config.engine import parse_engine
from outrider.models.sources.catalog import CATALOG
from outrider.models.sources.download import cache_root
from outrider.models.sources.pypi import catalog_path
from outrider.pipeline import build
from outrider.server import run
from tests.server.http_support import running
from tests.support.benchmarks import script

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
OTHERS = [*(ROOT / "docs" / "notes").glob("*.md"), *(ROOT / "benchmarks" / "results").glob("*.md")]
SERVER = "http://localhost:8000"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


def _blocks(kind: str) -> list[Any]:
    found = []
    for path in DOCUMENTS:
        for n, match in enumerate(m for m in FENCE.finditer(path.read_text("utf-8")) if m[1] == kind):
            found.append(pytest.param(match[2], id=f"{path.name}-{n}"))
    return found


def _lines() -> list[Any]:
    found = []
    for block in _blocks("console"):
        lines = [line[2:] for line in block.values[0].splitlines() if line.startswith("$ ")]
        found += [pytest.param(line, id=f"{block.id}: {line[:60]}") for line in lines]
    return found


def _only_default_model(text: str) -> bool:
    return not re.search(r"\.gguf|qwen|-md", text)


def _serves(line: str) -> bool:
    return line.startswith(("outrider serve", "python -m outrider.entrypoints"))


def _chats(line: str) -> bool:
    return line.startswith("outrider chat")


def _asks(text: str) -> bool:
    """Whether it is for a server that runs already."""
    return SERVER in text


@pytest.fixture
def cache(default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that holds the default model, and nothing can be fetched."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    monkeypatch.setenv("OUTRIDER_OFFLINE", "1")
    place = catalog_path(CATALOG["smollm2"], cache_root())
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(default_model)


def test_there_is_something_to_run() -> None:
    assert len(_lines()) > 8
    assert len(_blocks("python")) > 2


@pytest.mark.parametrize("line", _lines())
def test_console_lines_can_be_read(line: str) -> None:
    words = shlex.split(line)
    if words[:3] == ["python", "-m", "outrider.entrypoints.openai.api_server"]:
        words = ["outrider", "serve", *words[3:]]
    if words[0] == "outrider":
        assert callable(parser().parse_args(words[1:]).run)
    elif words[0] == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
        assert set(words[1:]) <= set(targets)
    elif words[0] == "curl":
        assert words[1].startswith(SERVER + "/")
    else:
        assert words[:2] == ["pip", "install"]


@pytest.mark.grid(2)
@pytest.mark.model
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    "line",
    [
        p
        for p in _lines()
        if str(p.values[0]).startswith("outrider")
        and _only_default_model(str(p.values[0]))
        and not _serves(str(p.values[0]))
        and not _chats(str(p.values[0]))
    ],
)
def test_console_lines_run(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)[1:]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.model
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    "line", [p for p in _lines() if _chats(str(p.values[0])) and _only_default_model(str(p.values[0]))]
)
def test_chats_answer(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Name a city.\n/quit\n")))
    assert main([*shlex.split(line)[1:], "-n", "8"]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.grid(2)
@pytest.mark.model
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    "line", [p for p in _lines() if _serves(str(p.values[0])) and _only_default_model(str(p.values[0]))]
)
def test_servers_start(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another port than the document's, which may be taken; and they end when they have started."""
    seen: list[str] = []
    real_bind, real_startup = run.bind, run.Server.startup

    async def startup(self: run.Server, sockets: list[socket.socket] | None = None) -> None:
        await real_startup(self, sockets)
        seen.append("started")
        self.should_exit = True

    monkeypatch.setattr(run, "bind", lambda host, _: real_bind(host, 0))
    monkeypatch.setattr(run, "_logs", lambda: None)  # they are the whole process's
    monkeypatch.setattr(run.Server, "startup", startup)
    assert main(shlex.split(line)[1:]) == 0
    assert seen == ["started"]


@pytest.fixture(scope="module")
def address(default_model: Path) -> Iterator[str]:
    pipeline = build(parse_engine(str(default_model), max_num_seqs=2, max_model_len=512))
    with running(pipeline, served_names=("smollm2",)) as server:
        yield server.url


@pytest.mark.model
@pytest.mark.parametrize("line", [p for p in _lines() if str(p.values[0]).startswith("curl")])
def test_what_curl_gets(line: str, address: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    words = shlex.split(line.replace(SERVER, address))
    done = subprocess.run([*words, "--fail", "--silent"], capture_output=True, check=True)
    assert json.loads(done.stdout)


ASKING = [  # those of clients.md: tests/server/test_client_docs.py
    p for p in _blocks("python") if _asks(str(p.values[0])) and not p.id.startswith("clients.md")
]


@pytest.mark.model
@pytest.mark.parametrize("code", [p for p in ASKING if _only_default_model(str(p.values[0]))])
def test_python_blocks_that_ask_a_server(code: str, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code.replace(SERVER, address), "document", "exec"), {"__name__": "__document__"})
    assert capsys.readouterr().out.strip()


@pytest.mark.pair
@pytest.mark.parametrize("code", [p for p in ASKING if not _only_default_model(str(p.values[0]))])
def test_python_blocks_that_ask_a_model_for_code(
    code: str, qwen_pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = build(parse_engine(str(qwen_pair[1]), max_num_seqs=2, max_model_len=512))
    with running(pipeline, served_names=("qwen-coder-0.5b",)) as server:
        exec(compile(code.replace(SERVER, server.url), "document", "exec"), {"__name__": "__document__"})
    assert capsys.readouterr().out.strip() == code.rpartition("# ")[2].strip()


@pytest.mark.parametrize("code", _blocks("python"))
def test_python_blocks_compile(code: str) -> None:
    compile(code, "document", "exec")


@pytest.mark.model
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    "code",
    [p for p in _blocks("python") if _only_default_model(str(p.values[0])) and not _asks(str(p.values[0]))],
)
def test_python_blocks_run(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "document", "exec"), {"__name__": "__document__"})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("path", [*DOCUMENTS, *sorted(OTHERS)], ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text("utf-8")):
        assert (path.parent / target).exists(), target


def test_the_readmes_table_is_the_measured_one() -> None:
    docs = script("never_slower_docs")
    result = json.loads((docs.RESULTS / "never_slower.json").read_text("utf-8"))
    assert docs.readme_table(result) in (ROOT / "README.md").read_text("utf-8")


def test_the_first_table_is_the_measured_one() -> None:
    first_table = script("first_table")
    files = [first_table.RESULTS / f"first_table-{name}.json" for name in ("smollm2", "qwen-coder")]
    documents = {p.stem: json.loads(p.read_text("utf-8")) for p in files if p.is_file()}
    text = first_table.DOCUMENT.read_text("utf-8")
    tables = first_table.rendered(documents) if documents else ""
    assert first_table.replaced(text, tables).split() == text.split()


@pytest.mark.parametrize("name", ["cost_curve", "never_slower", "peers"])
def test_the_docs_tables_are_the_measured_ones(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    docs = script(f"{name}_docs")
    text = docs.DOCUMENT.read_text("utf-8")
    monkeypatch.setattr(docs, "DOCUMENT", tmp_path / "copy.md")
    docs.DOCUMENT.write_text(text, "utf-8")
    if hasattr(docs, "README"):
        readme = docs.README.read_text("utf-8")
        monkeypatch.setattr(docs, "README", tmp_path / "readme.md")
        docs.README.write_text(readme, "utf-8")
    docs.main()
    assert docs.DOCUMENT.read_text("utf-8") == text


def test_the_heads_page_is_the_measured_one() -> None:
    gain = script("draft_gain")
    document = json.loads(gain.RESULTS.read_text("utf-8"))
    assert gain.page(document) == gain.RESULTS.with_suffix(".md").read_text("utf-8")
    status = gain.status(document["workloads"], 1.1, 0.98)
    assert status == 0, "it is in the package because it pays"
