"""vLLM's server as a child process: started, read, waited for, and ended without orphans."""

from __future__ import annotations

import collections
import contextlib
import http.client
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from outrider.engines.vllm.translate import HOST, Command
from outrider.errors import ConfigError, OutriderError

KEY_VARIABLE = "VLLM_API_KEY"
PREFIX = "vllm | "
_SUPERVISE = Path(__file__).with_name("supervise.py")
_POLL_SECONDS = 0.1
_HEALTH_SECONDS = 2.0
_LAST_LINES, _MOST_LINE = 100, 2000
# How Python, pydantic and vLLM's log say what went wrong; and what stands before it in the log.
_ERROR = re.compile(r"^\s*(?:\([^)]*\) )?(?:[\w.]*(?:Error|Exception): \S|Value error, |ERROR .*Error: )")
_LOG_PREFIX = re.compile(r"^\([^)]*\) (?:ERROR [\d-]+ [\d:.]+ )?(?:\[[^\]]*\] )?|^Value error, ")


class VllmError(OutriderError):
    """vLLM's server did not start, or it has ended."""


def free_port() -> int:
    """A port of the loopback interface that nothing listens on now."""
    with socket.socket() as place:
        place.bind((HOST, 0))
        port: int = place.getsockname()[1]
        return port


@dataclass(eq=False)
class Child:
    """One run of vLLM's server.

    command:       how it is started, on `port` of this machine.
    log:           takes its lines; None writes them to stderr with a prefix.
    grace_seconds: from SIGTERM to SIGKILL.
    key:           that it asks for: other users of this machine reach its port, too.

    Nothing of it outlives this process (supervise.py).
    """

    command: Command
    port: int
    log: Callable[[str], object] | None = None
    grace_seconds: float = 20.0
    key: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _reader: threading.Thread | None = field(default=None, init=False)
    _last: collections.deque[str] = field(
        default_factory=lambda: collections.deque(maxlen=_LAST_LINES), init=False
    )
    _ending: bool = field(default=False, init=False)

    def start(self) -> None:
        """Start the process; returns at once. Raises ConfigError where there are no such processes."""
        if os.name != "posix":
            raise ConfigError("the vLLM engine runs on Linux and macOS")
        environment = {**os.environ, **self.command.environment, KEY_VARIABLE: self.key}
        environment.setdefault("PYTHONUNBUFFERED", "1")
        self._process = subprocess.Popen(
            [sys.executable, str(_SUPERVISE), str(self.grace_seconds), *self.command.words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=environment, start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, name="vllm-output", daemon=True)
        self._reader.start()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Of the process that watches over it."""
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def ended(self) -> bool:
        """Whether it ended by itself."""
        return self._process is not None and not self._ending and self._process.poll() is not None

    def ends_within(self, seconds: float) -> bool:
        """Whether it ends by itself in so many seconds: a connection breaks off a little before that."""
        until = time.monotonic() + seconds
        while not self.ended and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        return self.ended

    def wait_until_ready(self, seconds: float, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Return when it answers /health. Raises VllmError when it ends before or is not ready in time, and
        when `cancelled` says so."""
        until = time.monotonic() + seconds
        while not self.healthy():
            if not self.alive:
                raise VllmError(self.death("before it was ready"))
            if cancelled():
                raise VllmError("stopped while vLLM started")
            if time.monotonic() > until:
                raise VllmError(f"vLLM was not ready in {seconds:g} s (--vllm-start-timeout){self._words()}")
            time.sleep(_POLL_SECONDS)

    def healthy(self) -> bool:
        """Whether it answers /health now."""
        if not self.alive:
            return False
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_HEALTH_SECONDS)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def death(self, when: str) -> str:
        """One line on how it ended: its status, and its own last words."""
        status = None if self._process is None else self._process.poll()
        if self._reader is not None:
            self._reader.join(2.0)
        how = "without a status" if status is None else f"with status {status}"
        if status is not None and status > 128:
            how = f"by signal {status - 128}"
        return f"vLLM ended {how} {when}{self._words()}"

    def stop(self) -> None:
        """End it: SIGTERM, and SIGKILL after `grace_seconds`. To call it again does nothing."""
        self._ending = True
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(self.grace_seconds + 10)
        except subprocess.TimeoutExpired:  # the watcher itself is stuck
            process.kill()
            process.wait()
        if self._reader is not None:
            self._reader.join(2.0)

    def _words(self) -> str:
        """Its last line that says something, as the end of a sentence."""
        lines = [line for line in self._last if line.strip()]
        errors = [line for line in lines if _ERROR.search(line)]
        found = (errors or lines)[-1:]
        return f": {_LOG_PREFIX.sub('', found[0].strip())[:300]}" if found else ""

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None  # noqa: PT018
        with self._process.stdout as pipe:
            while line := pipe.readline(_MOST_LINE):
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                self._last.append(text)
                (self.log or _to_stderr)(text)


def _to_stderr(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"{PREFIX}{line}", file=sys.stderr, flush=True)
