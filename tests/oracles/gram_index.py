"""Specification of the C++ GramIndex (gram_index.h): where the last tokens of a text stood before. Slow.

The C++ keeps hash tables of n-grams and chains of their places; here every place is compared.
"""

from __future__ import annotations

from collections.abc import Sequence

SIZES = (1, 2, 4, 8, 16)  # of the n-grams that are indexed
MAX_MATCH = 24  # tokens of agreement beyond which nobody counts
CHAIN = 24  # places of one n-gram that are compared, the latest first


class GramIndex:
    """An index of `tokens`, a list that its owner appends to; `update` takes the new ones in.

    base: index of tokens[0], counted from the first token ever added.
    """

    sizes: tuple[int, ...] = SIZES
    chain = CHAIN

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.base = 0
        self.indexed: list[int] = []

    def update(self) -> None:
        self.indexed = list(self.tokens)

    def find(self, text: Sequence[int], most: int) -> list[tuple[int, int]]:
        """Up to `most` places (start, length) whose last tokens are those of `text`: start is the index of
        the token that followed there, length how many tokens agree, at most MAX_MATCH. First the places of
        the longest n-grams, and of one length the latest."""
        found: dict[int, int] = {}
        for size in reversed(self.sizes):
            if size > len(text):
                continue
            for place in self.places(tuple(text[len(text) - size :]))[: self.chain]:
                found.setdefault(self.base + place, agreement(self.indexed[:place], text))
        return list(found.items())[:most]

    def places(self, gram: tuple[int, ...]) -> list[int]:
        """Where a token followed this n-gram, the latest first."""
        size = len(gram)
        ends = range(len(self.indexed) - 1, size - 1, -1)
        return [place for place in ends if tuple(self.indexed[place - size : place]) == gram]

    def forget(self, count: int) -> None:
        """Drop the oldest `count` tokens. No place before the cut is found, nor one whose n-gram reaches
        across it."""
        self.update()
        count = min(count, len(self.tokens))
        del self.tokens[:count]
        self.indexed = list(self.tokens)
        self.base += count

    @property
    def entries(self) -> int:
        """Number of n-grams that a token followed somewhere."""
        ends = range(len(self.indexed))
        return len({tuple(self.indexed[at - n : at]) for n in self.sizes for at in ends if n <= at})


def agreement(before: Sequence[int], text: Sequence[int]) -> int:
    """How many last tokens the two have in common, at most MAX_MATCH."""
    length = 0
    for a, b in zip(reversed(before), reversed(text), strict=False):
        if a != b or length == MAX_MATCH:
            break
        length += 1
    return length
