"""Arrays of strings that several files have in common: a target and its draft model of one family have the
same tokens and merges, which take most of the time that opening a GGUF file takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

Strings: TypeAlias = tuple[bytes, ...]


class SharedStrings:
    """The arrays that were read so far."""

    def __init__(self) -> None:
        self._arrays: list[tuple[bytes, Strings]] = []
        self._texts: dict[int, tuple[str, ...]] = {}  # by id() of an array above

    def find(self, count: int, read: Callable[[int], bytes]) -> tuple[int, Strings] | None:
        """(bytes in the file, strings) of an array that is known.

        count: its strings. read: the next so many bytes of the file, or fewer at its end.
        """
        for raw, strings in self._arrays:
            if len(strings) == count and read(len(raw)) == raw:
                return len(raw), strings
        return None

    def add(self, raw: bytes, strings: Strings) -> None:
        self._arrays.append((raw, strings))

    def texts(self, strings: Strings, decode: Callable[[Strings], tuple[str, ...]]) -> tuple[str, ...]:
        """The strings as texts: the same object each time for an array that is known."""
        if not any(strings is known for _, known in self._arrays):
            return decode(strings)
        if id(strings) not in self._texts:
            self._texts[id(strings)] = decode(strings)
        return self._texts[id(strings)]


_current: ContextVar[SharedStrings | None] = ContextVar("shared_strings", default=None)


@contextmanager
def shared_strings() -> Iterator[None]:
    """Inside it, equal arrays of strings are parsed once for all files that this thread opens, and are then
    one object. (Not always: it holds the bytes of every array until its end.)"""
    if _current.get() is not None:
        yield
        return
    token = _current.set(SharedStrings())
    try:
        yield
    finally:
        _current.reset(token)


def current() -> SharedStrings | None:
    return _current.get()
