"""`outrider serve --engine vllm` with the double's package in the place of vLLM: what is printed, refused,
and left running."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import tests.support.fake_vllm
from outrider.cli.main import main
from outrider.engines.vllm import installed, self_check
from outrider.engines.vllm.process import Child
from outrider.server import run

DOUBLE = str(Path(tests.support.fake_vllm.__file__).parent)
INSPECT = installed._run
INSPECTED = functools.cache(INSPECT)  # it takes a process each time
NGRAM = ["--spec", "ngram", "--draft", "4"]


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The double is what `import vllm` finds; what is read of it is kept for all tests of this file."""
    monkeypatch.setenv("PYTHONPATH", DOUBLE)
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path_factory.getbasetemp() / "vllm-cache"))
    monkeypatch.delenv("OUTRIDER_VLLM_PYTHON", raising=False)
    monkeypatch.setattr(self_check, "PROMPTS", self_check.PROMPTS[::3])
    monkeypatch.setattr(installed, "_run", INSPECTED)


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Servers in this process end when they have started; their addresses."""
    seen: list[str] = []
    real = run.Server.startup

    async def startup(self: run.Server, sockets: list[socket.socket] | None = None) -> None:
        await real(self, sockets)
        seen.append("started")
        self.should_exit = True

    monkeypatch.setattr(run, "_logs", lambda: None)
    monkeypatch.setattr(run.Server, "startup", startup)
    return seen


def serve(*words: str) -> int:
    return main(["serve", "--engine", "vllm", *words, "--port", "0"])


def error(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith("outrider: error: ")]
    assert len(errors) == 1
    assert not any("Traceback" in line for line in lines)
    return errors[0].removeprefix("outrider: error: ")


def test_it_prints_the_command_and_serves(ending: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        serve("my/model", *NGRAM, "-tp", "2", "-c", "512", "--enforce-eager", "--served-model-name", "a") == 0
    )
    assert ending == ["started"]
    said = capsys.readouterr().err
    (line,) = [line for line in said.splitlines() if line.startswith("starting vLLM 0.32.0: ")]
    port = re.search(r"--port (\d+)", line)
    assert port is not None
    assert line.partition(" -m ")[2] == (
        f"vllm.entrypoints.cli.main serve my/model --host 127.0.0.1 --port {port[1]} --max-model-len 512 "
        "--served-model-name a -tp 2 --enforce-eager "
        """--speculative-config '{"method": "ngram", "num_speculative_tokens": 4}'"""
    )
    assert "vllm | INFO loading my/model\n" in said
    assert "vllm | INFO bye\n" in said
    assert "self-check: passed" in said
    assert "vLLM 0.32.0 has no field to turn speculation off for one request" in said


def test_its_output_goes_to_a_file(ending: list[str], tmp_path: Path) -> None:
    assert serve("m", "--vllm-log", str(tmp_path / "log")) == 0
    assert (tmp_path / "log").read_text().splitlines() == ["INFO loading m", "INFO bye"]


def test_a_death_before_it_is_ready_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "dies")
    assert serve("m") == 2
    assert error(capsys) == (
        "vLLM ended with status 3 before it was ready: ValueError: not enough memory for the cache"
    )


def test_after_a_death_of_the_self_check_it_is_started_once_more(
    monkeypatch: pytest.MonkeyPatch, ending: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "dies-at-draws")
    assert serve("m", *NGRAM) == 0
    assert ending == ["started"]
    said = capsys.readouterr().err
    assert "self-check: sampling is broken: above temperature 0 the engine failed: " in said
    assert said.count("starting vLLM 0.32.0: ") == 2
    assert serve("m", *NGRAM, "--self-check", "strict") == 2
    assert error(capsys).endswith("; use --spec none, or --self-check off")


@pytest.mark.parametrize(
    ("faults", "words", "status"),
    [
        ("wrong", NGRAM, 0),
        ("wrong", [*NGRAM, "--self-check", "strict"], 2),
        ("wrong", [*NGRAM, "--self-check", "off"], 0),
        ("wrong-greedy", NGRAM, 2),
        ("wrong-greedy", ["--spec", "none"], 0),
    ],
)
def test_what_the_self_check_does(
    faults: str, words: list[str], status: int, monkeypatch: pytest.MonkeyPatch, ending: list[str]
) -> None:
    monkeypatch.setenv("FAKE_VLLM", faults)
    assert serve("m", *words) == status
    assert len(ending) == (status == 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["m", "--spec", "eagle4"],
            "the speculative method 'eagle4' is refused: vLLM 0.32.0 does not have it",
        ),
        (["m", "--spec", "suffix"], "use 'ngram'"),
        (["m", "-sc", '{"method": "ngram", "enable_adaptive_verification": true}'], "--plain-replica"),
        (["m", "-sc", "{"], "speculative_config is not JSON"),
        (["m", "--tensor-paralel-size", "2"], "did you mean '--tensor-parallel-size'?"),
        (["m", "--distributed-executor-backend", "rey"], "did you mean 'ray'?"),
        (["m", "--uds", "/x"], "--uds is not handed to vLLM"),
        (["m", *NGRAM, "--exact", "strict"], "exact='strict' is refused"),
        (["m", *NGRAM, "--verification", "coupled"], "verification='coupled' is refused"),
        (["m", "--never-slower"], "--plain-replica URL"),
        (["m", "--plain-replica", "nowhere"], "is not the URL of a server"),
        (["m", "--worth-share", "2"], "--worth-share must be from 0 to 1"),
        (["m", "--vllm-python", "/nowhere/python"], "cannot be run"),
        (["m", "--vllm-log", "/nowhere/log"], "cannot be written"),
        (["m", "n"], "unexpected argument 'n'"),
        ([], "give a model"),
        (["pypi:thing"], "vLLM takes a folder, or a name on the hub"),
        (["m", "--draft", "0"], "--spec none turns speculation off"),
    ],
)
def test_refusals_come_before_the_launch(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(*words) == 2
    assert said in error(capsys)


def test_the_help_is_of_this_engine(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--engine", "vllm", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "--plain-replica URL" in said
    assert "PyTorch" not in said
    assert "--weights-cache" not in said


def test_a_python_without_vllm_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setattr(installed, "_run", INSPECT)
    monkeypatch.setenv("OUTRIDER_VLLM_PYTHON", sys.executable)
    assert serve("m") == 2
    assert "pip install 'outrider[vllm]'" in error(capsys)


@contextlib.contextmanager
def started(*words: str) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """A server in a process of its own: (it, its address, the port of its child)."""
    command = [sys.executable, "-m", "outrider", "serve", "m", "--engine", "vllm", "--port", "0", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        port = url = ""
        for line in process.stderr:
            port = port or (found[1] if (found := re.search(r"--port (\d+)", line)) else "")
            if line.startswith("API "):
                url = line.split()[1].removesuffix("/v1")
            if line.startswith("try "):
                break
        assert url
        assert port
        yield process, url, int(port)
    finally:
        process.kill()
        process.communicate()


def listens(port: int) -> bool:
    with socket.socket() as made:
        return made.connect_ex(("127.0.0.1", port)) == 0


def no_longer(port: int) -> None:
    until = time.monotonic() + 15
    while listens(port):
        assert time.monotonic() < until, "the child still runs"
        time.sleep(0.02)


def test_a_signal_ends_both() -> None:
    with started() as (process, url, port):
        assert httpx.get(f"{url}/health").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        no_longer(port)


_PARENT = """
import sys
from outrider.engines.vllm.process import Child, free_port
from outrider.engines.vllm.translate import Command
port = free_port()
words = (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", "m", "--port", str(port))
child = Child(Command(words, {}, {}), port)
child.start()
child.wait_until_ready(60)
print(port, flush=True)
sys.stdin.read()
"""


def test_no_child_outlives_its_parent() -> None:
    """Though nothing of the parent runs any more that could end it."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        assert listens(port)
    finally:
        parent.kill()
        parent.communicate()
    no_longer(port)


def test_the_child_s_death_ends_the_server_with_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real_startup, real_start = run.Server.startup, Child.start
    children: list[Child] = []

    def start(self: Child) -> None:
        children.append(self)
        real_start(self)

    async def startup(self: run.Server, sockets: list[socket.socket] | None = None) -> None:
        await real_startup(self, sockets)
        os.kill(child_of(children[0].pid or 0), signal.SIGKILL)

    monkeypatch.setattr(run, "_logs", lambda: None)
    monkeypatch.setattr(run.Server, "startup", startup)
    monkeypatch.setattr(Child, "start", start)
    assert serve("m") == 2
    assert error(capsys) == "vLLM ended by signal 9 while it served: INFO loading m"


def child_of(watcher: int) -> int:
    """The process that the watching one started."""
    done = subprocess.run(["pgrep", "-P", str(watcher)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])
