"""`outrider chat` in a real terminal: a process behind a pty, typed to as by a person."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import outrider
from tests.support.models import Dims, tiny_gguf

pty = pytest.importorskip("pty", reason="terminals of POSIX")
termios = pytest.importorskip("termios", reason="terminals of POSIX")
SECONDS = 60.0  # of patience on a loaded machine
PROMPT = r"\n>"
CONTROL = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|[()][A-Z0-9]|[=>])|\r")


class Terminal:
    """A process behind a pty, and what it has shown since the last `expect`."""

    def __init__(self, *args: str, cache: Path) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 100))
        env = {
            **os.environ,
            "PYTHONPATH": str(Path(outrider.__file__).parents[1]),
            "OUTRIDER_CACHE": str(cache),
            "TERM": "xterm",
            "PROMPT_TOOLKIT_NO_CPR": "1",  # nobody answers where the cursor is
        }
        command = [sys.executable, "-m", "outrider", "chat", *args]
        self._child = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
        )
        os.close(slave)
        self._shown = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, pattern: str) -> str:
        """Wait until it is shown; returns what was shown up to its end."""
        end = time.monotonic() + SECONDS
        while (found := re.search(pattern, self._shown)) is None:
            if time.monotonic() > end or not self._read(0.5):
                pytest.fail(f"{pattern!r} was not shown, but {self._shown[-2000:]!r}")
        before, self._shown = self._shown[: found.end()], self._shown[found.end() :]
        return before

    def _read(self, seconds: float) -> bool:
        """Take what has come; False when the process has closed the terminal."""
        if not select.select([self._master], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:
            return False
        self._shown += CONTROL.sub("", data.decode("utf-8", "replace"))
        return bool(data)

    def interrupt(self) -> None:
        """Ctrl-C while an answer comes, which the terminal turns into a signal."""
        os.killpg(self._child.pid, signal.SIGINT)

    def wait(self) -> int:
        """The exit status, when it has ended by itself."""
        end = time.monotonic() + SECONDS
        while self._child.poll() is None:
            assert time.monotonic() < end, "it does not end"
            self._read(0.1)
        return self._child.returncode

    def close(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        os.close(self._master)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    model = tiny_gguf(tmp_path / "tiny.gguf", dims=Dims(context=65536), seed=1)
    made = Terminal("-m", str(model), "--ignore-eos", "--seed", "1", "-t", "1", cache=tmp_path / "cache")
    yield made
    made.close()


def test_a_chat_in_a_terminal(terminal: Terminal, tmp_path: Path) -> None:
    terminal.expect("/help lists the commands")
    terminal.expect(PROMPT)
    terminal.type("hello\r")
    terminal.expect("hello")  # what was typed; the answer, without end, begins behind it
    time.sleep(1.0)
    terminal.interrupt()
    terminal.expect(r"\d+ tokens.*stopped")

    for line, answer in (
        ("/colors", "colors are on: accepted, recovered, bonus"),
        ("/speculation off", "speculation is off"),
        ("/nonsense", "there is no command /nonsense"),
    ):
        terminal.expect(PROMPT)  # what comes earlier is not yet read as keys
        terminal.type(f"{line}\r")
        terminal.expect(answer)

    terminal.expect(PROMPT)
    terminal.type("half a line")
    terminal.expect("half a line")
    terminal.type("\x03")  # Ctrl-C at the input drops it
    terminal.expect("Ctrl-D ends the chat")
    terminal.expect(PROMPT)
    terminal.type(f"/save {tmp_path}/talk.json\r")
    terminal.expect("saved to")
    terminal.expect(PROMPT)
    time.sleep(0.5)
    terminal.type("\x04")  # Ctrl-D
    assert terminal.wait() == 0
    saved = (tmp_path / "talk.json").read_text("utf-8")
    assert '"hello"' in saved
    assert "half a line" not in saved
    history = (tmp_path / "cache" / "chat_history").read_text("utf-8")
    assert '"hello"' in history
