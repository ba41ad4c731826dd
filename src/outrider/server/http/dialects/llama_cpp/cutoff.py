"""llama.cpp's rules for the end of a text, by which editors get no more than they can show."""

from __future__ import annotations

import time
from collections.abc import Callable


class Cutoff:
    """Follows one text, token by token.

    indent:  a new line that begins with fewer blanks ends the text, before its first other character.
    seconds: of generating, counted from the first token; a token with a line break that comes later ends the
             text. None: no limit.
    """

    def __init__(
        self, indent: int, seconds: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._indent, self._seconds, self._clock = indent, seconds, clock
        self._blanks: int | None = None  # that the line begins with so far; None: it is told by now
        self._began: float | None = None

    def __call__(self, text: str) -> int | None:
        """How many characters of the next token's text belong to a text that ends there; None for one that
        goes on."""
        now = self._clock()
        if self._began is None:
            self._began = now
        for place, character in enumerate(text):
            if self._blanks is not None:
                if character in " \t":
                    self._blanks += 1
                    continue
                if self._blanks < self._indent:
                    return place
            self._blanks = 0 if character == "\n" else None
        late = self._seconds is not None and now - self._began > self._seconds
        return len(text) if late and "\n" in text else None
