"""The command line as a whole: exit statuses, one clear line for bad input, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import outrider
from outrider.cli import main as cli
from outrider.cli.main import main
from outrider.cli.parser import Parser
from outrider.errors import OutriderError


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"outrider {outrider.__version__}\n"


@pytest.mark.parametrize("command", ["", "run", "serve", "bench", "pull", "demo"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), "--help"])
    assert caught.value.code == 0
    assert "usage: outrider" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", ["required", "COMMAND"]),
        ("rum -m x", ["rum"]),
        ("run -m x -p y --temprature 1", ["--temprature", "did you mean '--temperature'"]),
        ("run -m x -p y --see 1", ["--see", "did you mean '--seed'"]),
        ("run -m x -p y extra", ["'extra'"]),
        ("run -p y", ["--model"]),
        ("run -m x -p y -n four", ["-n", "'four'"]),
        ("run -m x -p y -n", ["-n", "expected one argument"]),
        ("run -m x -p y --color=pink", ["--color", "pink"]),
        ("bench -m x --wrokload chat", ["--wrokload", "did you mean '--workload'"]),
    ],
)
def test_flags_that_cannot_be_read(line: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("outrider: error: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


class _Failing:
    """A command that raises a given error."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __call__(self, _: object) -> int:
        raise self._error


def _main_raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    parser = cli.parser()

    def parse_args(argv: object) -> object:
        args = Parser.parse_args(parser, ["pull", "--list"])
        args.run = _Failing(error)
        return args

    monkeypatch.setattr(parser, "parse_args", parse_args)
    monkeypatch.setattr(cli, "parser", lambda: parser)
    return main([])


def test_an_error_is_one_line_whatever_is_in_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main_raising(OutriderError("a\nb\x1b[31mc"), monkeypatch) == 2
    assert capsys.readouterr().err == "outrider: error: a b [31mc\n"


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _main_raising(KeyboardInterrupt(), monkeypatch) == 130


def test_our_own_bugs_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        _main_raising(ZeroDivisionError(), monkeypatch)


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_a_closed_pipe_is_quiet() -> None:
    code = (
        "import sys; from outrider.cli import main as cli\n"
        "def run(args):\n"
        "    for _ in range(100000): print('x' * 80, flush=True)\n"
        "cli.pull.run = run\n"
        "parser = cli.parser\n"
        "sys.exit(cli.main(['pull', '--list']))\n"
    )
    source = Path(outrider.__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": str(source)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(timeout=60) == 141
