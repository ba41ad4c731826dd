"""What docs/clients.md says, tried: each snippet where its client is installed, and what the clients send.

A client that is not installed is skipped. Packages of npm are looked for in the folder OUTRIDER_NODE_MODULES.
The requests in tests/data/clients were recorded from the clients by tests/scripts/record_client_requests.py.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider.config.engine import parse_engine
from outrider.pipeline import build
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


@pytest.fixture(scope="module")
def answering(default_model: Path) -> Iterator[Running]:
    """The same with the default model."""
    pipeline = build(parse_engine(str(default_model), max_num_seqs=2, max_model_len=1024))
    with running(pipeline, served_names=("smollm2",)) as made:
        yield made


def needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs the client: pip install {module.replace('_', '-')}")


def ran(command: list[str], **environment: str) -> str:
    """What a program prints; it has no input and must succeed."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore", **environment},
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("title", "module"),
    [("openai (Python)", "openai"), ("litellm", "litellm"), ("LangChain", "langchain_openai")],
)
def test_python_snippets(served: Running, title: str, module: str) -> None:
    needs(module)
    for code in blocks(title, "python"):
        assert ran([sys.executable, "-c", code.replace(ADDRESS, served.url)])


@pytest.mark.model  # a toy's JSON does not end
def test_pydantic_ai(answering: Running) -> None:
    needs("pydantic_ai")
    for code in blocks("pydantic-ai", "python"):
        found = ran([sys.executable, "-c", code.replace(ADDRESS, answering.url)])
        assert re.fullmatch(r"name='.+' population=\d+", found)


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
        assert ran([node, str(script)])


@pytest.mark.model
def test_llm(answering: Running, tmp_path: Path) -> None:
    needs("llm")
    (settings,), (commands,) = blocks("llm", "yaml"), blocks("llm", "sh")
    (tmp_path / "extra-openai-models.yaml").write_text(settings.replace(ADDRESS, answering.url), "utf-8")
    for line in commands.splitlines():
        words = shlex.split(line)
        assert words[0] == "llm"
        out = ran([sys.executable, "-m", "llm", *words[1:]], LLM_USER_PATH=str(tmp_path))
        assert out
        if "--schema" in words:
            assert re.match(r'\{\s*"name"\s*:', out), out


def test_settings_are_of_the_form_that_the_programs_read() -> None:
    (metadata,) = blocks("aider", "json")
    assert json.loads(metadata)["openai/smollm2"]["max_input_tokens"] == 8192
    (editor,) = blocks("llama.vscode and llama.vim", "json")
    assert json.loads(editor) == {"llama-vscode.endpoint": ADDRESS}
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
            body = request["body"]
            if body is not None and not {"max_tokens", "max_completion_tokens"} & body.keys():
                body = {**body, "max_tokens": 16}  # the toy would write for long
            answer = http.request(request["method"], request["path"], json=body)
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
