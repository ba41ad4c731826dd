"""Completion scripts: written from the parsers, and run by the shells that are here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from outrider.cli.completion import commands, script
from outrider.cli.main import main, parser


def completed(line: str, tmp_path: Path) -> list[str]:
    """What bash offers for the last word of a line."""
    bash = shutil.which("bash") or pytest.skip("needs bash")
    words = line.split(" ")
    program = tmp_path / "try.bash"
    program.write_text(
        f"{script('bash', parser())}\n"
        f"COMP_WORDS=({' '.join(repr(word) for word in words)})\n"
        f"COMP_CWORD={len(words) - 1}\n"
        "_outrider\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n",
        "utf-8",
    )
    done = subprocess.run([bash, "--norc", str(program)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered", "not_offered"),
    [
        ("outrider ", ["run", "chat", "serve", "list", "completion"], ["ls"]),
        ("outrider ru", ["run"], ["chat"]),
        ("outrider run --te", ["--temp", "--temperature"], ["--top-k"]),
        ("outrider run -", ["-m", "-md", "--color", "--config"], ["-ngl", "--port"]),
        ("outrider serve --po", ["--port"], []),
        ("outrider run --color ", ["on", "off", "auto"], ["smollm2"]),
        ("outrider run -m ", ["smollm2"], ["on"]),
        ("outrider run -m smollm2 --spec-m", ["--spec-method"], []),
        ("outrider pull s", ["smollm2"], ["qwen-coder-0.5b"]),
        ("outrider serve --uvicorn-log-level ", ["info", "debug"], []),
        ("outrider completion ", ["bash", "zsh", "fish"], []),
    ],
)
def test_bash(line: str, offered: list[str], not_offered: list[str], tmp_path: Path) -> None:
    found = completed(line, tmp_path)
    assert set(offered) <= set(found)
    assert not set(not_offered) & set(found)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
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
