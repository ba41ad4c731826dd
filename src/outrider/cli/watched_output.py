"""stdout and stderr that remember whether they could be written: a disk may be full, a reader gone."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any


class WatchedStream:
    """A text stream, with the first error of writing to it.

    An error is raised as always, but who catches it (argparse, logging) need not tell; `error` does.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        with self._noting():
            return int(self._stream.write(text) or 0)

    def flush(self) -> None:
        with self._noting():
            self._stream.flush()

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = self.error or error
            raise

    def give_up(self) -> None:
        """What is left in the buffer goes nowhere: the flush at exit must not fail."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


@contextlib.contextmanager
def watched_output() -> Iterator[list[WatchedStream]]:
    """Watch sys.stdout and sys.stderr (where one is closed, nothing is written); as they were afterwards."""
    before = sys.stdout, sys.stderr
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    watched = [WatchedStream(sys.stdout), WatchedStream(sys.stderr)]
    for stream in watched:
        if hasattr(stream, "reconfigure"):  # characters outside the terminal's encoding must not raise
            stream.reconfigure(errors="replace")
    sys.stdout, sys.stderr = watched
    try:
        yield watched
    finally:
        for stream in watched:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
            if stream.error is not None:
                stream.give_up()
        sys.stdout, sys.stderr = before
