"""One request's errors stay its own."""

from __future__ import annotations

from collections.abc import Callable


class Guard:
    """A context manager: an Exception inside is handed to `end` and goes no further. (A generator would be
    slower, and there are several in each step.)"""

    __slots__ = ("_end",)

    def __init__(self, end: Callable[[Exception], None]) -> None:
        self._end = end

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._end(error)
        return True
