"""Lookups in texts, in C++ (csrc/gram_index.h, csrc/suffix_tree.h)."""

from collections.abc import Container
from typing import final

SIZES: list[int]  # of the n-grams that are indexed
MAX_MATCH: int  # agreement beyond this many tokens tells nothing more
CHAIN: int  # places looked at for one size, the latest first

@final
class Matches:
    """Places that agree with the end of a text, as (start, length): the index of what followed there, and how
    many tokens agree, 1 .. MAX_MATCH."""

    def __len__(self) -> int: ...
    def list(self) -> list[tuple[int, int]]: ...
    def longest(self) -> tuple[int, int]:
        """The first of those that agree longest; (-1, 0) without any."""

@final
class GramIndex:
    """Indexes `tokens`, a list that its owner appends to; `update` takes the new ones in.

    Indices count from the first token ever added: `forget` drops old ones without moving the others. Adding
    and forgetting cost O(1) per token, amortized; a search costs O(CHAIN) however long the text is. Tokens
    are 32-bit integers. Raises ValueError for others, and where tokens that are indexed have left the list.

    base:    index of tokens[0].
    entries: n-grams whose latest place is known.
    nbytes:  bytes held, about, the tokens counted.
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
        """Up to `most` places that agree with the end of `text`, longer size classes first and the latest
        first within a class. `text` may be the indexed list itself; its last MAX_MATCH tokens are enough."""

    def forget(self, count: int) -> None:
        """Drop the oldest `count` tokens and every place at them."""

@final
class SuffixTree:
    """What may follow a text by the places where it stood before, ranked by frequency.

    depth:    most tokens of a path.
    factor:   a path is at most so many times as long as its match.
    least:    paths less likely than this are left out.
    branches: else the likeliest child each time.
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
    ) -> tuple[list[int], list[int], list[float], list[float], int]:
        """The fields of a `Lookup` of up to `budget` nodes, but the last; nothing follows one of `stop_ids`.

        The places are what is copied (see `Copy`), `matches` in the text itself, and `theirs` in others'
        outputs; with those, only the `most` that agree longest.
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
        """(tokens, the chance of each given those before) of the likeliest row, up to `most`."""
