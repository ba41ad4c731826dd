"""Runs a command and ends it, with all processes that it started, when whoever runs this is gone.

    python supervise.py SECONDS COMMAND…

stdin is a pipe whose other end the caller holds: when it closes, because the caller closed it or has died,
the command's process group gets SIGTERM, and SIGKILL after so many seconds. The exit status is the command's,
128 + N after a signal N. It is a program of its own, so that no death of the caller leaves a server behind
that holds a card's memory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

_BYTES = 4096


def main() -> int:
    """Run the command of the arguments; returns its exit status."""
    seconds, command = float(sys.argv[1]), sys.argv[2:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the pipe says when to end
        signal.signal(number, lambda *_: None)  # unlike SIG_IGN, the command does not inherit it
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"{command[0]} cannot be run: {error.strerror}", file=sys.stderr, flush=True)
        return 127
    threading.Thread(target=_end_with_pipe, args=(child, seconds), daemon=True).start()
    status = child.wait()
    _signal(child.pid, signal.SIGKILL)  # what it left behind
    return status if status >= 0 else 128 - status


def _end_with_pipe(child: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for the pipe's end, then end the command's process group."""
    while os.read(0, _BYTES):
        pass
    _signal(child.pid, signal.SIGTERM)
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        _signal(child.pid, signal.SIGKILL)


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


if __name__ == "__main__":
    sys.exit(main())
