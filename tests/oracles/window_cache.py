"""Specification of the C++ Cache (cache.h) of one layer with a sliding window: which positions it holds.

The C++ computes the first block that is needed; here every length that a sequence may go back to is asked for
what the window shows after it. Each position holds the token that was written there.
"""

from __future__ import annotations

from collections.abc import Sequence

BLOCK = 16  # positions that are given back together
ROLLBACK = 128  # positions that a sequence can always go back from where its last pass began


class WindowCache:
    """What a layer holds whose tokens see `window` positions, their own among them.

    first:  the first position that is held; a multiple of BLOCK.
    length: positions of the sequence.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.first = 0
        self.length = 0
        self._tokens: dict[int, int] = {}  # by position, those that were not given back

    def sees(self, position: int) -> range:
        """The positions that the token at `position` sees, its own the last."""
        return range(max(0, position + 1 - self.window), position + 1)

    def can_go_back(self, length: int) -> bool:
        """Whether a token may follow the first `length` positions."""
        held = all(position in self._tokens for position in self.sees(length)[:-1])
        return length == 0 or (held and length >= self.first)

    @property
    def rollback_floor(self) -> int:
        """The shortest length, other than 0, that it can go back to; 0 for any."""
        if not self.first:
            return 0
        return next(length for length in range(1, self.length + 1) if self.can_go_back(length))

    def first_needed(self) -> int:
        """The first position that any token sees which may come after a rollback."""
        return min(self.sees(max(0, self.length - back)).start for back in range(ROLLBACK + 1))

    def forward(self, tokens: Sequence[int]) -> list[list[int]]:
        """One pass. Returns for each token those that it sees, in order. Raises KeyError if one is gone."""
        self.first = max(self.first, self.first_needed() // BLOCK * BLOCK)
        self._tokens = {at: token for at, token in self._tokens.items() if at >= self.first}
        seen = []
        for token in tokens:
            self._tokens[self.length] = token
            seen.append([self._tokens[at] for at in self.sees(self.length)])
            self.length += 1
        return seen

    def truncate(self, length: int) -> None:
        """Go back. Raises ValueError where the window would show what is gone."""
        if not self.can_go_back(length):
            raise ValueError(f"cannot go back to {length}")
        self.length = length
        self._tokens = {at: token for at, token in self._tokens.items() if at < length}
        if length == 0:
            self.first = 0
