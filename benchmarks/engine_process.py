"""Runs an engine in its own process, so that a benchmark can interleave several."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class EngineProcess:
    """Runs `command`, a script that prints a line of JSON about itself, and then one for each line it reads.

    log: a file that keeps the process's stderr; None for a temporary file.
    Raises SystemExit, with the last line of stderr and `advice`, when the process ends without an answer.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path | None = None, advice: str = "") -> None:
        self.name, self._advice = name, advice
        self._log = tempfile.TemporaryFile("w+") if log is None else log.open("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self.info: dict[str, Any] = self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            with self._process, self._log:
                status = self._process.wait()
                self._log.seek(0)
                last = self._log.read().strip().rpartition("\n")[2]
            raise SystemExit(f"{self.name} stopped with status {status}: {last}{self._advice}")
        return json.loads(line)

    def ask(self, request: Any) -> Any:
        """The process's answer to a request; both are JSON values."""
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """Close the process's stdin and wait for its end, at most a minute."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
        self._log.close()
