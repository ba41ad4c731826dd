"""What the guides of vLLM and llama.cpp print, run with nothing but the import or the program's name changed.

The names of their models are folders and files of tiny models here, which the native engine runs.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import shlex
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM
from outrider.cli import completion, options
from outrider.cli.foreign import NOTES, notes
from outrider.cli.main import main, parser
from outrider.cli.migrate import document
from outrider.cli.migrate_words import shell_words
from outrider.server import run
from tests.support.models import tiny_gguf, tiny_hf

GUIDES = Path(__file__).parent / "guides"
SCRIPTS = sorted(path.name for path in GUIDES.glob("*.py"))
COMMANDS = sorted(path.name for path in GUIDES.glob("*.sh"))
GIVEN = ("timing.py", "identity.py")  # those that take two models that are there
CLIENT = "openai_client.py"
FOLDERS = (
    *("facebook/opt-6.7b", "facebook/opt-125m", "Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B"),
    *("Qwen/Qwen3-4B-Thinking-2507", "meta-llama/Llama-3.2-7B", "meta-llama/Llama-3.2-3B"),
    "meta-llama/Llama-3.2-1B",
)
FILES = (
    *("target-model.gguf", "draft-model.gguf"),
    "../models/qwen2.5-32b-coder-instruct/ggml-model-q8_0.gguf",
    "../models/qwen2.5-1.5b-coder-instruct/ggml-model-q4_0.gguf",
)
PARSER = parser()


def text_of(name: str) -> str:
    return (GUIDES / name).read_text("utf-8")


def parsed(line: str) -> argparse.Namespace:
    return PARSER.parse_args(shlex.split(line))


def words_of(name: str) -> list[str]:
    """The arguments of `outrider` in a guide's command."""
    words = [word.text for word in shell_words(text_of(name))]
    if words[:3] == ["python", "-m", "outrider.entrypoints.openai.api_server"]:
        return ["serve", *words[3:]]
    assert words[0] == "outrider"
    return words[1:]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model under every name of the guides."""
    here = tmp_path_factory.mktemp("familiar") / "work"
    here.mkdir()
    for seed, name in enumerate(FOLDERS):
        tiny_hf(here / name, arch="qwen3" if "Qwen3" in name else "llama", seed=seed % 2)
    for seed, name in enumerate(FILES):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        tiny_gguf(here / name, seed=seed % 2)
    (here / "test.txt").write_text("the quick brown fox\n", "utf-8")
    return here


@pytest.fixture(autouse=True)
def _there(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    monkeypatch.setenv("OUTRIDER_OFFLINE", "1")


@pytest.fixture(scope="module")
def models(place: Path) -> Iterator[dict[str, LLM]]:
    """What timing and identity are given."""
    target, draft = str(place / FILES[0]), str(place / FILES[1])
    config = {"method": "draft_model", "model": draft, "num_speculative_tokens": 5}
    with LLM(target) as standard, LLM(target, speculative_config=config) as spec:
        yield {"standard_llm": standard, "spec_llm": spec}


def ran(name: str, **given: Any) -> None:
    exec(compile(text_of(name), name, "exec"), {"__name__": "__main__", **given})


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in (*GIVEN, CLIENT)])
def test_scripts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    ran(name)
    out = capsys.readouterr().out
    assert out.strip()
    if "Generated text" in text_of(name):
        assert re.fullmatch(r"Prompt: 'The future of AI is', Generated text: ['\"].+['\"]\n", out)


def test_the_timing_loop(models: dict[str, LLM], capsys: pytest.CaptureFixture[str]) -> None:
    ran("timing.py", **models)
    out = capsys.readouterr().out
    assert re.fullmatch(r"Standard: \d+\.\d\ds, Speculative: \d+\.\d\ds, Speedup: \d+\.\d\dx\n", out)


def test_the_identity_check(models: dict[str, LLM], capsys: pytest.CaptureFixture[str]) -> None:
    ran("identity.py", **models)
    assert capsys.readouterr().out == "identical: 64 tokens\n" * 3
    with pytest.raises(AssertionError):  # it can fail: other seeds give other texts
        ran("identity.py", **(models | {"spec_llm": Reseeded(models["spec_llm"])}))


class Reseeded:
    """A model that gives requests another seed than they ask for."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def generate(self, prompt: str, params: Any) -> Any:
        other = params.clone()
        other.seed = (params.seed or 0) + 1
        return self._llm.generate(prompt, other)


@pytest.mark.parametrize("name", [name for name in COMMANDS if words_of(name)[0] == "run"])
def test_commands_that_complete_a_prompt(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*words_of(name), "--json", "--seed", "7"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["token_ids"]
    speculative = options.speculation(PARSER.parse_args(words))
    assert getattr(speculative, "model", None) == words[words.index("-md") + 1]
    if speculative.method == "draft_model":  # `auto` drafts where it pays
        assert found["metrics"]["drafters"]["draft_model"]["num_draft_tokens"] > 0
    plain = [*words[:1], "--spec", "none", *without_speculation(words[1:])]
    assert main(plain) == 0
    assert json.loads(capsys.readouterr().out)["token_ids"] == found["token_ids"]


def without_speculation(words: list[str]) -> list[str]:
    """The words without the flags of a draft, each of which has one value."""
    speculative = [
        at for at, word in enumerate(words) if word == "-md" or word.startswith(("--draft", "--spec-"))
    ]
    return [word for at, word in enumerate(words) if at not in speculative and at - 1 not in speculative]


@pytest.mark.parametrize("name", [name for name in COMMANDS if words_of(name)[0] == "serve"])
def test_servers_answer_the_guides_client(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a free port of loopback in the place of the guide's, until the client has its answer."""
    asked, failed = [], []
    real_bind, real_startup = run.bind, run.Server.startup

    def ask(server: run.Server, url: str) -> None:
        try:
            code = text_of(CLIENT).replace("http://localhost:8000", url)
            assert url in code
            exec(compile(code, CLIENT, "exec"), {"__name__": "__main__"})
            asked.append(url)
        except Exception as error:
            failed.append(error)
        finally:
            server.should_exit = True

    async def startup(self: run.Server, sockets: list[socket.socket] | None = None) -> None:
        await real_startup(self, sockets)
        assert sockets is not None
        url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        threading.Thread(target=ask, args=(self, url)).start()

    monkeypatch.setattr(run, "bind", lambda host, port: real_bind("127.0.0.1", 0))
    monkeypatch.setattr(run, "_logs", lambda: None)  # they are the whole process's
    monkeypatch.setattr(run.Server, "startup", startup)
    assert main(words_of(name)) == 0
    assert failed == []
    assert len(asked) == 1
    out = capsys.readouterr().out
    assert out.startswith("Completion results:\nCompletion(id=")
    assert "completion_tokens=" in out


@pytest.mark.parametrize("name", COMMANDS)
def test_migrate_gives_the_same_command(name: str) -> None:
    """Of the program that the guide's first line names, with the guide's flags."""
    text = text_of(name)
    program = text.removeprefix("# ").partition(",")[0]
    changed = re.compile(r"^(outrider \w+|python -m outrider\.entrypoints\.openai\.api_server)", re.M)
    line, count = changed.subn(program, text.partition("\n")[2])
    assert count == 1
    found = document(shell_words(line), completion._subparsers_of(PARSER))
    assert found["complete"]
    added = [w for flag in found["flags"] if flag["outcome"] == "added" for w in shlex.split(flag["here"])]
    migrated, own = (vars(PARSER.parse_args(words)) for words in (found["arguments"], words_of(name) + added))
    for unset in (NOTES, "spec_type", "vllm_tensor_parallel_size", "words", "model"):
        migrated.pop(unset, None)
        own.pop(unset, None)
    assert migrated == own


def test_old_spellings_are_noted_once() -> None:
    """Both forms are read, and each old one is told its new name in one line."""
    old = parsed("run -m t -md d x --draft-max 4 --draft-min 2 --draft-max 4")
    said = notes(old)
    assert [line for line in said if "--draft-max" in line] == [
        "--draft-max: llama.cpp calls it --spec-draft-n-max now; both are read"
    ]
    assert len([line for line in said if "--spec-draft-n-min now" in line]) == 1
    line = (
        "serve t --speculative_model d --num-speculative-tokens 4 --speculative-draft-tensor-parallel-size 1"
    )
    assert [said.partition(": ")[0] for said in notes(parsed(line))] == [
        *("--speculative-model", "--num-speculative-tokens", "--speculative-draft-tensor-parallel-size")
    ]
    new = parsed("serve t --spec-model d --spec-tokens 4")
    assert notes(new) == []
    assert notes(parsed("run -m t -md d x --draft 4 --spec-draft-n-max 4")) == []


def test_a_prompt_of_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As people use llama-cli in scripts."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the quick brown fox\n")))
    line = "run -m target-model.gguf -md draft-model.gguf -n 8 --temp 0 --json"
    assert main(shlex.split(line)) == 0
    assert len(json.loads(capsys.readouterr().out)["token_ids"]) <= 8
