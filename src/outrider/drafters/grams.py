"""Where the last tokens of a text stood before: an index of n-grams that grows and forgets with the text.

For each size in SIZES a hash table leads to the latest place that an n-gram was followed at, and each
place leads to the one before it (the hash chains of LZ77 coders, at several sizes). Matching goes from
the longest size down, and measures how far each place really agrees.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

SIZES = (1, 2, 4, 8, 16)
MAX_MATCH = 24  # agreement beyond this many tokens tells nothing more
CHAIN = 24  # places looked at for one size, the latest first
_ENTRY = 100  # bytes of a hash table's entry with its two numbers, about
_PLACE = 36  # bytes of a number in a list, about


class Match(NamedTuple):
    """A place whose tokens before it are the text's last: `start` is the index of what followed there,
    `length` how many tokens agree, 1 .. MAX_MATCH."""

    start: int
    length: int


class GramIndex:
    """Indexes `tokens`, which may be a list that its owner appends to; `update` takes the new ones in.

    Indices count from the first token ever added: `forget` drops old ones without moving the others. Adding
    and forgetting cost O(1) per token, amortized; a search costs O(CHAIN) however long the text is.
    """

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens  # those not forgotten
        self.base = 0  # index of tokens[0]
        self._indexed = 0  # index up to which places are in the tables
        self._latest: tuple[dict[int, int], ...] = tuple({} for _ in SIZES)
        self._before: tuple[list[int], ...] = tuple([] for _ in SIZES)  # by place - base; -1: none

    def update(self) -> None:
        """Index the tokens that were appended since the last time."""
        tokens, base = self.tokens, self.base
        for at in range(self._indexed - base, len(tokens)):
            place = base + at
            for size, latest, before in zip(SIZES, self._latest, self._before, strict=True):
                if size > at:
                    before.append(-1)
                    continue
                key = tokens[at - 1] if size == 1 else hash(tuple(tokens[at - size : at]))
                before.append(latest.get(key, -1))
                latest[key] = place
        self._indexed = base + len(tokens)

    def find(self, text: Sequence[int], most: int) -> list[Match]:
        """Up to `most` places that agree with the end of `text`, longer size classes first and the latest
        first within a class. `text` may be the indexed list itself."""
        found: list[Match] = []
        tokens, base, end = self.tokens, self.base, len(text)
        # From the shortest up to the first without a place: a longer n-gram has none either.
        starts: list[int] = []
        for size, latest in zip(SIZES, self._latest, strict=True):
            if size > end:
                break
            place = latest.get(text[-1] if size == 1 else hash(tuple(text[end - size :])), -1)
            if place < base:
                break
            starts.append(place)
        seen: set[int] = set()
        for which in range(len(starts) - 1, -1, -1):
            size, place, before, left = SIZES[which], starts[which], self._before[which], CHAIN
            while place >= base and left:
                left -= 1
                if place not in seen:
                    seen.add(place)
                    at = place - base
                    length, limit = size, min(MAX_MATCH, at, end)
                    while length < limit and tokens[at - length - 1] == text[end - length - 1]:
                        length += 1
                    found.append(Match(place, length))
                    if len(found) == most:
                        return found
                place = before[place - base]
        return found

    def forget(self, count: int) -> None:
        """Drop the oldest `count` tokens and every place at them."""
        tokens, base = self.tokens, self.base
        for at in range(min(count, self._indexed - base)):
            for size, latest in zip(SIZES, self._latest, strict=True):
                if size <= at:
                    key = tokens[at - 1] if size == 1 else hash(tuple(tokens[at - size : at]))
                    if latest.get(key) == base + at:
                        del latest[key]
        # What now follows the cut keeps its places; n-grams that reach across it can no longer be removed
        # by what they were, so their entries go now.
        for at in range(count, min(count + SIZES[-1], self._indexed - base)):
            for size, latest in zip(SIZES, self._latest, strict=True):
                if at - count < size <= at:
                    key = tokens[at - 1] if size == 1 else hash(tuple(tokens[at - size : at]))
                    if latest.get(key) == base + at:
                        del latest[key]
        del tokens[:count]
        for before in self._before:
            del before[:count]
        self.base = base + count
        self._indexed = max(self._indexed, self.base)

    @property
    def nbytes(self) -> int:
        """Bytes held, about, the tokens counted."""
        entries = sum(map(len, self._latest))
        places = sum(map(len, self._before)) + len(self.tokens)
        return sys.getsizeof(self) + _ENTRY * entries + _PLACE * places
