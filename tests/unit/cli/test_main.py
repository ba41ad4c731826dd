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


def test_no_command_starts_with_the_compiled_engine() -> None:
    """It is imported by those that run a model, so that the others start at once, and also where it cannot
    be loaded."""
    code = (
        "import sys; from outrider.cli.main import parser; parser();"
        "print('outrider.engines.native' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_command_imports_no_other() -> None:
    code = (
        "import sys; from outrider.cli.main import parser; parser(sys.argv[1]);"
        "print(*(m for m in sys.modules if m.startswith('outrider.cli.')), 'numpy' in sys.modules)"
    )
    for first, expected, absent in (("--version", "False", "run"), ("plan", "outrider.cli.plan", "bench")):
        done = subprocess.run([sys.executable, "-c", code, first], capture_output=True, text=True, check=True)
        assert expected in done.stdout.split()
        assert f"outrider.cli.{absent}" not in done.stdout.split()


@pytest.mark.parametrize("command", ["run", "plan", "serve", "rm"])
def test_a_command_alone_is_the_one_of_the_whole_line(command: str) -> None:
    alone, whole = cli.parser(command), cli.parser()
    found = [top._subparsers._group_actions[0].choices[command] for top in (alone, whole)]  # type: ignore[union-attr, index]
    assert found[0].format_help() == found[1].format_help()
    assert found[0].siblings().keys() == found[1].siblings().keys()


@pytest.mark.parametrize(
    "command",
    [
        "",
        "run",
        "chat",
        "serve",
        "bench",
        "verify",
        "plan",
        "migrate",
        "train",
        "pull",
        "list",
        "rm",
        "info",
        "doctor",
        "demo",
        "completion",
    ],
)
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), "--help"])
    assert caught.value.code == 0
    assert "usage: outrider" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", ["required", "COMMAND"]),
        ("runn -m x", ["runn", "did you mean 'run'"]),
        ("zzz -m x", ["zzz", "choose from 'run'"]),
        ("run -m x -p y --color=offf", ["--color", "did you mean 'off'"]),
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
    monkeypatch.setattr(cli, "parser", lambda first: parser)
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
        "import sys; from outrider.cli import main as cli, pull\n"
        "def run(args):\n"
        "    for _ in range(100000): print('x' * 80, flush=True)\n"
        "pull.run = run\n"
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


def started(
    code: str, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE
) -> subprocess.CompletedProcess[bytes]:
    """Run Python code with this package."""
    env = {**os.environ, "PYTHONPATH": str(Path(outrider.__file__).parents[1])}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, check=False, timeout=120, stdout=stdout, stderr=stderr)


RUN = "import sys; from outrider.cli.main import main; sys.exit(main({args!r}))"


@pytest.mark.grid(2)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "args",
    [
        ["pull", "--list"],
        ["--version"],
        ["run", "--help"],
        ["completion", "bash"],
        ["pull", "--list", "--json"],
    ],
)
def test_a_full_disk_is_one_line(args: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = started(RUN.format(args=args), stdout=full.fileno())
        assert done.returncode == 2
        assert done.stderr == b"outrider: error: the output cannot be written: No space left on device\n"
        done = started(RUN.format(args=["rum"]), stderr=full.fileno())
        assert done.returncode == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_in_the_middle_of_a_text() -> None:
    code = (
        "import sys; from outrider.cli import main as cli, pull\n"
        "def run(args):\n"
        "    for _ in range(100): print('x' * 8000, flush=True)\n"
        "pull.run = run\n"
        "sys.exit(cli.main(['pull', '--list']))\n"
    )
    with Path("/dev/full").open("wb") as full:
        done = started(code, stdout=full.fileno())
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"Traceback" not in done.stderr


def test_closed_streams() -> None:
    """As `>&-` leaves them."""
    code = "import os, sys; os.close(0); os.close({number});" + RUN.format(args=["pull", "--list"])
    assert started(code.format(number=1)).returncode in (0, 2)
    assert (
        started("import sys; sys.stdout = sys.stdin = None;" + RUN.format(args=["pull", "--list"])).returncode
        == 0
    )
    done = started("import sys; sys.stdin = None;" + RUN.format(args=["run", "m"]))
    assert done.returncode == 2
    assert b"give a prompt" in done.stderr


def test_another_error_of_the_system_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PermissionError):
        _main_raising(PermissionError(13, "Permission denied"), monkeypatch)


def test_as_a_module() -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(outrider.__file__).parents[1])}
    command = [sys.executable, "-m", "outrider", "--version"]
    done = subprocess.run(command, capture_output=True, check=True, env=env)
    assert done.stdout.decode() == f"outrider {outrider.__version__}\n"
