"""Specification of the C++ SuffixTree (suffix_tree.h): what may follow a text, by where it stood like this
before (SuffixDecoding, Oliaro et al. 2024). Slow.

Each place where the text's end stood before continues in its own way. The tokens that follow at the places
form a tree; a child's chance is its share of the places' weights, where longer agreement weighs more, times
how far agreement of such a length can be trusted to go on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tests.oracles.gram_index import MAX_MATCH, GramIndex

SHARED_LEAST = 2  # tokens of agreement that a place in others' outputs needs
SHARED_DISCOUNT = 6  # tokens by which agreement there counts as shorter: a text repeats itself more often
EVEN_ODDS = 1.5  # tokens of agreement after which a single place goes on agreeing in half of all cases

Match = tuple[int, int]  # (start, length), as GramIndex.find gives it
Copy = tuple[int, list[int], int]  # (start, path, sure): see CopyTracker


@dataclass(frozen=True)
class Place:
    """Where to continue from: `tokens` from `at` on. After its end a text goes round in a loop of `period`
    tokens; 0: nothing follows. `length` tokens of agreement; `weight` is the square of those that really
    agree. `shared`: whether it is in another request's output."""

    tokens: Sequence[int]
    at: int
    period: int
    length: int
    weight: float
    shared: bool = False

    def token(self, depth: int) -> int | None:
        """What follows `depth` tokens on; None for nothing, or where outputs are separated."""
        step = self.at + depth
        if step >= len(self.tokens):
            if not self.period:
                return None
            step = self.at + depth % self.period
        return self.tokens[step] if self.tokens[step] >= 0 else None


@dataclass(frozen=True)
class Child:
    token: int
    chance: float  # given its parent
    places: list[Place]  # that go on with it


@dataclass(frozen=True, eq=False)
class Node:
    """A node of the tree that is drafted, or may be."""

    path: float  # probability of the path
    parent: int  # its index, or -1
    depth: int
    child: Child


def own_places(index: GramIndex, matches: Sequence[Match], without: int = -1) -> list[Place]:
    """Of the text itself, but the one that starts at `without`. A continuation that reaches the end of the
    text goes on with itself."""
    end = len(index.indexed)
    return [
        Place(index.indexed, start - index.base, end - (start - index.base), length, float(length * length))
        for start, length in matches
        if start != without
    ]


def shared_places(index: GramIndex, matches: Sequence[Match]) -> list[Place]:
    """Of others' outputs."""
    return [
        Place(
            *(index.indexed, start - index.base, 0),
            *(max(1, length - SHARED_DISCOUNT), float(length * length), True),
        )
        for start, length in matches
        if length >= SHARED_LEAST
    ]


@dataclass(frozen=True)
class SuffixTree:
    """What may follow a text, as a tree or a row.

    depth:    most tokens of a path.
    factor:   a path has at most so many times the tokens of its place's agreement.
    least:    paths that are less likely are left out.
    branches: else only the likeliest child each time.
    """

    depth: int
    factor: float
    least: float
    branches: bool

    def grow(
        self,
        text: GramIndex,
        matches: Sequence[Match],
        others: GramIndex | None,
        theirs: Sequence[Match] | None,
        copy: Copy | None,
        *,
        budget: int,
        most: int,
        stop_ids: Collection[int],
    ) -> tuple[list[int], list[int], list[float], list[float], int, list[bool]]:
        """(tokens, parents, chances given the parent, probabilities of paths, longest agreement, whether only
        others' outputs have a node: [] if none count) of up to `budget` nodes, the likeliest paths first and
        of equal ones the first that was seen. Nothing follows one of `stop_ids`. With others' outputs only
        the `most` places of longest agreement count."""
        places = []
        if copy is not None:
            _, path, sure = copy
            places.append(Place(path, 0, 0, sure, float(sure * sure)))
        places += own_places(text, matches, -1 if copy is None else copy[0])
        if others is not None and theirs is not None:
            places += shared_places(others, theirs)
            places = sorted(places, key=lambda place: -place.length)[:most]
        any_shared = any(place.shared for place in places)
        candidates = self._nodes(places, 1.0, -1, 0)
        nodes: list[Node] = []
        while candidates and len(nodes) < budget:
            node = max(candidates, key=lambda candidate: candidate.path)  # the first of equal ones
            candidates.remove(node)
            if not self.branches:
                candidates.clear()
            nodes.append(node)
            if node.child.token not in stop_ids:
                candidates += self._nodes(node.child.places, node.path, len(nodes) - 1, node.depth)
        return (
            [node.child.token for node in nodes],
            [node.parent for node in nodes],
            [node.child.chance for node in nodes],
            [node.path for node in nodes],
            max((place.length for place in places), default=0),
            [all(place.shared for place in node.child.places) for node in nodes if any_shared],
        )

    def row(
        self,
        text: GramIndex,
        matches: Sequence[Match],
        others: GramIndex | None,
        theirs: Sequence[Match] | None,
        *,
        most: int,
        stop_ids: Collection[int],
    ) -> tuple[list[int], list[float]]:
        """(tokens, chances) of up to `most` tokens in a row, the likeliest child each time."""
        places = own_places(text, matches)
        if others is not None and theirs is not None:
            places += shared_places(others, theirs)
        chosen: list[Child] = []
        while len(chosen) < most and (children := self.children(places, len(chosen))):
            chosen.append(max(children, key=lambda child: child.chance))
            places = chosen[-1].places
            if chosen[-1].token in stop_ids:
                break
        return [child.token for child in chosen], [child.chance for child in chosen]

    def _nodes(self, places: Sequence[Place], path: float, parent: int, depth: int) -> list[Node]:
        if depth >= self.depth:
            return []
        children = [Node(path * c.chance, parent, depth + 1, c) for c in self.children(places, depth)]
        return [node for node in children if node.path >= self.least]

    def children(self, places: Sequence[Place], depth: int) -> list[Child]:
        """What follows `depth` tokens on, in the order of the places."""
        following: dict[int, list[Place]] = {}
        total = 0.0
        for place in places:
            token = place.token(depth)
            if depth < place.length * self.factor and token is not None:
                following.setdefault(token, []).append(place)
                total += place.weight
        return [Child(token, chance_of(group, total, depth), group) for token, group in following.items()]


def chance_of(group: Sequence[Place], total: float, depth: int) -> float:
    """Of a token that follows at these places, out of a total weight of `total`."""
    weight = 0.0
    for place in group:  # (`sum` rounds otherwise)
        weight += place.weight
    agreed = min(max(place.length for place in group) + depth, MAX_MATCH) * len(group)
    return weight / total * agreed / (agreed + EVEN_ODDS)
