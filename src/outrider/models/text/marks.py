"""Finding marks in a text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


def first_mark(text: str, marks: Sequence[str]) -> tuple[int, str]:
    """Where the first of several marks is in a text, and which; (-1, "") for none."""
    found = [(at, mark) for mark in marks if (at := text.find(mark)) >= 0]
    return min(found, default=(-1, ""))


def overlap(text: str, mark: str) -> int:
    """Length of the longest suffix of a text that is a prefix of the mark, and not all of it."""
    for size in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-size:]):
            return size
    return 0
