"""Ctrl-C that ends an output, not the process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """Record the first Ctrl-C in the list, so that the output can end with its summary; a second one raises
    KeyboardInterrupt."""
    seen: list[int] = []

    def note(number: int, _: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    try:
        before = signal.signal(signal.SIGINT, note)
    except ValueError:  # outside the main thread no handler can be set
        yield seen
        return
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)
