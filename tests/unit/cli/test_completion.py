"""Completion scripts: written from the parsers, and run by the shells that are here, at a terminal."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.cli.completion import commands, script
from outrider.cli.main import main, parser

if sys.platform == "win32":
    pytest.skip("needs a terminal of Unix", allow_module_level=True)

import pty
import select

SHELLS = ("bash", "zsh", "fish")
CASES = [
    ("outrider ", ["run", "chat", "serve", "list", "completion"], ["ls", "--help", "prompts.jsonl"]),
    ("outrider ru", ["run"], ["chat"]),
    ("outrider --", ["--help", "--version"], ["chat", "--model"]),
    ("outrider run --te", ["--temp", "--temperature"], ["--top-k"]),
    ("outrider run -", ["-md", "--color", "--config"], ["-ngl", "--port"]),
    ("outrider run -p serve --po", [], ["--port"]),
    ("outrider serve -m run --po", ["--port"], ["--prompt"]),
    ("outrider serve -m smollm2 --jso", [], ["--json"]),
    ("outrider run --color ", ["on", "off", "auto"], ["smollm2", "prompts.jsonl"]),
    ("outrider run --color=o", ["on", "off"], ["auto", "prompts.jsonl"]),
    ("outrider run --color --te", ["--temp"], []),
    ("outrider run -m smo", ["smollm2"], ["model.gguf"]),
    ("outrider run -m mo", ["model.gguf"], ["smollm2"]),
    ("outrider run --model=mo", ["model.gguf"], ["smollm2"]),
    ("outrider run mo", ["model.gguf"], ["smollm2"]),
    ("outrider run -f pro", ["prompts.jsonl"], []),
    ("outrider run -f fol", ["folder/"], []),
    ("outrider run -n ", [], ["prompts.jsonl", "smollm2"]),
    ("outrider run --spec ", ["suffix", "draft_model"], ["prompts.jsonl"]),
    ("outrider run --verification ", ["coupled", "block"], ["prompts.jsonl"]),
    ("outrider pull s", ["smollm2"], ["qwen-coder-0.5b"]),
    ("outrider ls --ca", ["--cache-dir"], []),
    ("outrider list ", [], ["prompts.jsonl"]),
    ("outrider serve --uvicorn-log-level ", ["info", "debug"], ["prompts.jsonl"]),
    ("outrider completion ", ["bash", "zsh", "fish"], ["prompts.jsonl"]),
]
# What a shell is told before its questions: the script, and a key that lists what is possible.
SET_UP = {
    "bash": "PS1='READY> '; set +o history; source {script}; bind 'set enable-bracketed-paste off' "
    "'set page-completions off' 'set completion-query-items 0' '\"\\C-t\": possible-completions'",
    "zsh": "PS1='READY> '; unsetopt prompt_sp; LISTMAX=9999; unset zle_bracketed_paste; "
    "autoload -Uz compinit; compinit -u -D; source {script}; bindkey '^T' list-choices",
}
START = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}


class Terminal:
    """A shell at a terminal. The keys that are sent are read in order, so that the echo of a last command
    ends what was shown before it."""

    def __init__(self, shell: str, program: str, folder: Path) -> None:
        (folder / "completion").write_text(script(shell, parser()), "utf-8")
        self._count = 0
        self._pid, self._at = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            os.environ.update(TERM="dumb", HOME=str(folder), COLUMNS="200", LINES="200", LC_ALL="C.UTF-8")
            os.execv(program, [program, *START[shell]])
        self.run(SET_UP[shell].format(script="./completion"))

    def offered(self, line: str) -> set[str]:
        """The words that are listed where the line stands and the key is pressed; or the only one, which some
        shells write into the line."""
        first, *shown = re.split(r"[\r\n]+", self.run(f"{line}\x14\x15"))
        only = {first.split()[-1].rpartition("=")[2]} if first != line else set()
        return only | {word for each in shown if not each.startswith("READY>") for word in each.split()}

    def run(self, keys: str) -> str:
        """What is shown after these keys, up to the next prompt: before that, the terminal would take control
        characters for its own."""
        self._count += 1
        end = f"end-{self._count}-end"
        os.write(self._at, f"{keys}\necho end-'{self._count}'-end\n".encode())
        shown = ""
        while not re.search(rf"[\r\n]{end}[\r\n].*READY> ", shown, re.DOTALL):
            assert select.select([self._at], [], [], 60)[0], shown
            shown += os.read(self._at, 1 << 16).decode("utf-8", "replace")
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[\x07\x08]", "", shown).split("echo end-")[0]

    def close(self) -> None:
        os.close(self._at)
        os.waitpid(self._pid, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("completion")
    for name in ("model.gguf", "prompts.jsonl"):
        (made / name).touch()
    (made / "folder").mkdir()
    return made


@pytest.fixture(scope="module", params=["bash", "zsh"])
def terminal(request: pytest.FixtureRequest, folder: Path) -> Iterator[Terminal]:
    program = shutil.which(request.param) or pytest.skip(f"needs {request.param}")
    made = Terminal(request.param, program, folder)
    yield made
    made.close()


@pytest.mark.parametrize(("line", "offered", "not_offered"), CASES)
def test_bash_and_zsh(terminal: Terminal, line: str, offered: list[str], not_offered: list[str]) -> None:
    found = terminal.offered(line)
    assert set(offered) <= found
    assert not set(not_offered) & found


@pytest.mark.parametrize(("line", "offered", "not_offered"), CASES)
def test_fish(folder: Path, line: str, offered: list[str], not_offered: list[str]) -> None:
    fish = shutil.which("fish") or pytest.skip("needs fish")
    (folder / "script.fish").write_text(script("fish", parser()), "utf-8")
    command = [fish, "-N", "-c", "source script.fish; complete -C $argv[1]", line]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    found = {each.split("\t")[0].rpartition("=")[2] for each in done.stdout.splitlines()}
    assert set(offered) <= found
    assert not set(not_offered) & found
    for each in done.stdout.splitlines():
        assert not re.search(r"%\(|default:", each), "a description says what is meant"


def test_zsh_loads_it_from_a_folder_of_functions(folder: Path) -> None:
    """As the file `_outrider`, whose first call defines the function and must complete as well."""
    zsh = shutil.which("zsh") or pytest.skip("needs zsh")
    functions = folder / "functions"
    functions.mkdir()
    (functions / "_outrider").write_text(script("zsh", parser()), "utf-8")
    terminal = Terminal("zsh", zsh, folder)
    terminal.run("unfunction _outrider; compdef -d outrider; fpath=($PWD/functions $fpath); compinit -u -D")
    assert {"--temp", "--temperature"} <= terminal.offered("outrider run --te")
    assert "smollm2" in terminal.offered("outrider run -m smo")
    terminal.close()


@pytest.mark.parametrize("shell", SHELLS)
def test_every_flag_is_in_every_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for name, each in commands(parser()).items():
        assert name in text
        for action in each.flags():
            for flag in action.option_strings:
                assert flag.lstrip("-") in text
    assert "-ngl" not in text, "flags that the help does not show are not offered"
    if program := shutil.which(shell):
        subprocess.run([program, "-n", "/dev/stdin"], input=text, text=True, check=True)


def test_an_unknown_shell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
