"""The target's hidden states that a head has not read yet."""

from __future__ import annotations

import numpy as np

from outrider.decoding.types import FloatArray, IntArray

SPARE_ROWS = 64  # for which there is room beyond those that wait


class WaitingStates:
    """Rows of states of one request, first in, first out; float32[n, columns] where they go in.

    columns: which of them the head reads, in its order; None for all as they are.

    A prompt's rows stay in the arrays in which they came. Later ones are copied into memory that is there
    already: that is done in every step, also where the head drafts nothing.
    """

    def __init__(self, columns: IntArray | None = None) -> None:
        self._columns = columns
        self._prompt: list[FloatArray] = []  # before those in `_held`
        self._held: FloatArray | None = None
        self._first = self._kept = 0  # rows of `_held`
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are held for them."""
        return sum([part.nbytes for part in self._prompt]) + (0 if self._held is None else self._held.nbytes)

    def add_prompt(self, hidden: FloatArray) -> None:
        """These rows come next; before any of `add`. The array must not change any more."""
        assert not self._kept, "a prompt comes before its output"
        if len(hidden):
            self._prompt.append(hidden)
            self._count += len(hidden)

    def add(self, hidden: FloatArray, rows: list[int]) -> None:
        """These rows of what a pass gave come next."""
        if not rows:
            return
        end = self._first + self._kept
        if self._held is None or end + len(rows) > len(self._held):
            self._move(2 * self._kept + len(rows), hidden.shape[1])  # each row is moved about once
            end = self._kept
        assert self._held is not None
        hidden.take(rows, axis=0, out=self._held[end : end + len(rows)], mode="clip")  # "raise" copies twice
        self._kept += len(rows)
        self._count += len(rows)

    def together(self, count: int) -> int:
        """Of the first `count` rows, those that `take` gives without a copy of them; at least one."""
        first = len(self._prompt[0]) if self._prompt else self._kept
        return min(count, first)

    def take(self, count: int) -> FloatArray:
        """The first `count` rows as the head reads them; of all if there are fewer."""
        parts, left = [], min(count, self._count)
        for part in self._prompt:
            if left:
                parts.append(part[:left])
                left -= len(parts[-1])
        if left:
            assert self._held is not None
            parts.append(self._held[self._first : self._first + left])
        found = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return found if self._columns is None else found[:, self._columns]

    def drop(self, count: int) -> None:
        """The first `count` rows have been read."""
        self._count -= count
        while count and self._prompt:
            part = self._prompt.pop(0)
            if len(part) > count:
                self._prompt.insert(0, part[count:].copy() if 2 * count > len(part) else part[count:])
            count = max(0, count - len(part))
        self._first += count
        self._kept -= count
        if self._held is not None and len(self._held) > 4 * (self._kept + SPARE_ROWS):
            self._move(self._kept, self._held.shape[1])

    def clear(self) -> None:
        """None waits any longer."""
        self._prompt, self._held = [], None
        self._first = self._kept = self._count = 0

    def _move(self, rows: int, width: int) -> None:
        """Hold what waits of the output in memory for so many rows and the spare ones."""
        held = np.empty((rows + SPARE_ROWS, width), np.float32)
        if self._held is not None:
            held[: self._kept] = self._held[self._first : self._first + self._kept]
        self._held, self._first = held, 0
