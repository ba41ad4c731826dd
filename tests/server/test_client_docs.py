"""What docs/clients.md says, tried: each snippet where its client is installed, and what the clients send.

A client that is not installed is skipped. Packages of npm are looked for in the folder OUTRIDER_NODE_MODULES.
The requests in tests/data/clients were recorded from the clients by tests/scripts/record_client_requests.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.http_support import Running, running, toy_pipeline

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "clients.md").read_text("utf-8")
RECORDED = sorted((ROOT / "tests" / "data" / "clients").glob("*.json"))
ADDRESS = "http://localhost:8000"
SECTIONS = {
    part.partition("\n")[0]: part.partition("\n")[2] for part in re.split(r"^## ", DOCUMENT, flags=re.M)[1:]
}


def blocks(title: str, language: str) -> list[str]:
    """The fenced blocks of a section."""
    found = re.findall(rf"^```{language}\n(.*?)^```", SECTIONS[title], re.M | re.S)
    assert found, f"{title} has no {language}"
    return found


@pytest.fixture(scope="module")
def served(roomy_file: Path) -> Iterator[Running]:
    """A server whose model is called as in the document."""
    with running(toy_pipeline(roomy_file, "ngram", max_num_seqs=4), served_names=("smollm2",)) as made:
        yield made


def needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs the client: pip install {module.replace('_', '-')}")


@pytest.mark.parametrize(
    ("title", "module"),
    [
        ("openai (Python)", "openai"),
        ("litellm", "litellm"),
        ("LangChain", "langchain_openai"),
        ("pydantic-ai", "pydantic_ai"),
    ],
)
def test_python_snippets(served: Running, title: str, module: str) -> None:
    needs(module)
    for code in blocks(title, "python"):
        code = code.replace(ADDRESS, served.url)  # noqa: PLW2901
        out = io.StringIO()
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the clients' own
            exec(compile(code, title, "exec"), {"__name__": "__document__"})
        assert out.getvalue().strip()


@pytest.mark.parametrize(
    ("title", "packages"),
    [("openai (JavaScript)", ["openai"]), ("Vercel AI SDK", ["ai", "@ai-sdk/openai-compatible"])],
)
def test_javascript_snippets(served: Running, tmp_path: Path, title: str, packages: list[str]) -> None:
    node, folder = shutil.which("node"), os.environ.get("OUTRIDER_NODE_MODULES", "")
    if node is None or not folder or not all((Path(folder) / name).is_dir() for name in packages):
        pytest.skip(f"needs node, and OUTRIDER_NODE_MODULES with npm install {' '.join(packages)}")
    (tmp_path / "node_modules").symlink_to(Path(folder).resolve())
    for code in blocks(title, "js"):
        script = tmp_path / "snippet.mjs"
        script.write_text(code.replace(ADDRESS, served.url), "utf-8")
        done = subprocess.run([node, str(script)], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def test_llm(served: Running, tmp_path: Path) -> None:
    needs("llm")
    (settings,), (commands,) = blocks("llm", "yaml"), blocks("llm", "sh")
    (tmp_path / "extra-openai-models.yaml").write_text(settings.replace(ADDRESS, served.url), "utf-8")
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    for line in commands.splitlines():
        words = shlex.split(line)
        assert words[0] == "llm"
        done = subprocess.run(
            [sys.executable, "-m", "llm", *words[1:]],
            capture_output=True,
            text=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
        if "--schema" in words:
            assert set(json.loads(done.stdout)) == {"name", "population"}


def test_settings_are_of_the_form_that_the_programs_read() -> None:
    (metadata,) = blocks("aider", "json")
    assert json.loads(metadata)["openai/smollm2"]["max_input_tokens"] == 8192
    for title in ("llm", "litellm", "Continue"):
        for text in blocks(title, "yaml"):
            assert f"{ADDRESS}/v1" in text
    for title, text in SECTIONS.items():
        assert ADDRESS in text, title


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_what_clients_send_is_answered(served: Running, path: Path) -> None:
    recorded = json.loads(path.read_text("utf-8"))
    assert recorded["requests"]
    with served.http() as http:
        for request in recorded["requests"]:
            answer = http.request(request["method"], request["path"], json=request["body"])
            assert answer.status_code == 200, (request, answer.text)
            check_answer(request, answer)


def check_answer(request: dict[str, Any], answer: httpx.Response) -> None:
    """An answer has what its client reads."""
    body = request["body"]
    if body is None:
        assert answer.json()["data"][0]["id"] == "smollm2"
        return
    if not body.get("stream"):
        assert answer.json()["choices"][0]["finish_reason"] in ("stop", "length", "tool_calls")
        return
    *events, done, _ = answer.text.split("\n\n")
    assert done == "data: [DONE]"
    documents = [json.loads(event.removeprefix("data: ")) for event in events]
    ends = [c["finish_reason"] for d in documents for c in d["choices"] if c.get("finish_reason")]
    assert len(ends) == body.get("n", 1)
    if (body.get("stream_options") or {}).get("include_usage"):
        assert documents[-1]["usage"]["completion_tokens"] > 0
