"""Lookup of earlier occurrences of tokens, in C++ (csrc/lookup/gram_index.h, csrc/lookup/suffix_tree.h)."""

from collections.abc import Container
from typing import final

SIZES: list[int]  # lengths of the indexed n-grams, in tokens
MAX_MATCH: int  # longest match that is measured, in tokens
CHAIN: int  # most places compared for one n-gram length, the latest first

@final
class Matches:
    """Places that match the end of a sequence, as (start, length): the index of the token that follows the
    match, and how many tokens match, 1 .. MAX_MATCH."""

    def __len__(self) -> int: ...
    def list(self) -> list[tuple[int, int]]: ...
    def longest(self) -> tuple[int, int]:
        """The first of the longest matches; (-1, 0) if there are none."""

@final
class GramIndex:
    """Indexes the n-grams of `tokens`, a list that its owner appends to; `update` indexes the new tokens.

    Indices count from the first token ever added: `forget` drops the oldest tokens and keeps the indices of
    the others. Adding and dropping cost O(1) per token, amortized; a search costs O(CHAIN) whatever the
    length. Tokens are 32-bit integers. Raises ValueError for others, and when indexed tokens were removed
    from the list.

    base:    index of tokens[0].
    entries: n-grams in the index.
    nbytes:  approximate bytes held, the tokens included.
    """

    def __init__(self, tokens: list[int]) -> None: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def base(self) -> int: ...
    @property
    def entries(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def update(self) -> None: ...
    def find(self, text: list[int], most: int) -> Matches:
        """Up to `most` places that match the end of `text`: those of longer n-grams first, and the latest
        first for each length. `text` may be the indexed list itself; its last MAX_MATCH tokens are enough."""

    def forget(self, count: int) -> None:
        """Drop the oldest `count` tokens and all places at them."""

@final
class SuffixTree:
    """Builds a tree of the tokens that followed earlier matches, ranked by frequency.

    depth:    most tokens of a path.
    factor:   a path is at most this many times as long as its match.
    least:    least path probability of a node.
    branches: build a tree; else a chain of the likeliest children.
    """

    def __init__(self, depth: int, factor: float, least: float, branches: bool) -> None: ...
    def grow(
        self,
        text: GramIndex,
        matches: Matches,
        others: GramIndex | None,
        theirs: Matches | None,
        copy: tuple[int, list[int], int] | None,
        budget: int,
        most: int,
        stop_ids: Container[int],
    ) -> tuple[list[int], list[int], list[float], list[float], int, list[bool]]:
        """The fields of a `Lookup` of up to `budget` nodes, except the last one. Nodes with one of `stop_ids`
        have no children.

        The continuations are those of the copy (see `Copy`), of `matches` in `text`, and of `theirs` in
        `others`, the shared outputs; of the latter two together only the `most` longest matches.
        """

    def row(
        self,
        text: GramIndex,
        matches: Matches,
        others: GramIndex | None,
        theirs: Matches | None,
        most: int,
        stop_ids: Container[int],
    ) -> tuple[list[int], list[float]]:
        """(tokens, the probability of each given those before it) of the likeliest path, up to `most`."""
