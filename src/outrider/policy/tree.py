"""What one step may draft: the nouns between drafters and the controller, and the arithmetic on trees.

A node's path probability is the chance that it and all above it are accepted, so the expected number of
accepted tokens is the sum over the nodes that are verified (OPT-Tree, Wang et al. 2024; EAGLE-2, Li et al.
2024), and since no child is likelier than its parent, the likeliest nodes always form a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from outrider.decoding.controller import Guide

# Of a pass of a draft model: its tokens, and how many of them it had missed of texts since it last drew.
DraftPass: TypeAlias = tuple[int, int]


@dataclass(slots=True, eq=False)
class Lookup:
    """A tree of n nodes that a lookup drafter offers, parents first, likelier paths before unlikelier ones.

    tokens, parents: as in `Draft`.
    confidence: chance of each node given its parent, by the drafter's own reckoning, 0..1.
    paths:      chance of the whole path to the node, never above the parent's.
    length:     tokens of the text that the best place agrees with; 0 without any.
    copied:     tokens at the text's end that are copied from further up, as far as is known.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    paths: list[float] = field(default_factory=list)
    length: int = 0
    copied: int = 0


@dataclass(slots=True, eq=False)
class DraftQuery:
    """What could be drafted for one request.

    room:    most nodes.
    context: tokens of its text.
    lookup:  what a lookup drafter offers, or None.
    behind:  tokens that a draft model would be fed before its first draw; None when it cannot draft here.
    ahead:   tokens that are drafted already, by a constraint.
    """

    request_id: str
    room: int
    context: int
    lookup: Lookup | None = None
    behind: int | None = None
    ahead: int = 0


@dataclass(slots=True, eq=False)
class DraftPlan:
    """What is to be drafted for one request.

    nodes: of the lookup, ascending, to be verified if nothing else is drafted.
    chances, paths: of the lookup's nodes, calibrated: given the parent, and of the whole path.
    draft: most tokens for the draft model to draw in a row; 0 leaves it alone.
    after: the lookup's node behind which it goes on; -1 for the anchor.
    guide: when to stop before that, and where to branch; None for a chain of `draft` tokens.
    """

    nodes: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    paths: list[float] = field(default_factory=list)
    draft: int = 0
    after: int = -1
    guide: Guide | None = None

    @property
    def looked(self) -> float:
        """Tokens expected to be accepted of the lookup's nodes."""
        return sum([self.paths[i] for i in self.nodes])


@dataclass(slots=True, eq=False)
class ModelDraft:
    """What a draft model drew: a tree of tokens, and its confidence in each (None where it does not say).

    stated:  they come with the distributions that they were drawn from, so none may be left out.
    parents: as in `Draft`, siblings in the order in which they were drawn; none for a chain.
    """

    tokens: list[int]
    confidence: list[float | None]
    stated: bool = False
    parents: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.parents:
            self.parents = list(range(-1, len(self.tokens) - 1))


@dataclass(slots=True)
class Node:
    """A node of the tree that is to be verified.

    depth: 1 = child of the anchor.
    path:  chance of the whole path.
    by_lookup: whether the lookup drafter proposed it.
    drawn, model: whether the draft model did, and with what confidence; `drawn` is 1 for the first of a row
           that it drew, 0 for none.
    beside: of its siblings, how many the draft model drew before it; `model` is then given that those are
           wrong.
    """

    token: int
    parent: int
    depth: int
    path: float
    by_lookup: bool = False
    drawn: int = 0
    model: float | None = None
    beside: int = 0


def agreed(a: float, b: float) -> float:
    """The chance of a token that two drafters propose with these chances: more than the higher one."""
    high, low = (a, b) if a > b else (b, a)
    return high + (1.0 - high) * low / 2.0


def contested(a: float, b: float) -> float:
    """The chance of a token that one drafter gives `a` while the other gives `b` to another token."""
    return a * (1.0 - b) / (1.0 - a * b)


def merge(
    lookup: Lookup | None,
    chances: Sequence[float],
    drawn: ModelDraft,
    drawn_chances: Sequence[float],
    after: int = -1,
) -> list[Node]:
    """One tree of a lookup's and a draft model's nodes, equal prefixes only once, parents first.

    chances, drawn_chances: of each node given its parent, calibrated.
    after: the lookup's node that the drawn ones hang from; -1 for the anchor.
    """
    nodes: list[Node] = []
    place: list[int] = []  # the tree's node for each of the lookup's
    children: dict[tuple[int, int], int] = {}
    if lookup is not None:
        for i, (token, parent) in enumerate(zip(lookup.tokens, lookup.parents, strict=True)):
            if i >= len(chances):
                break
            above = place[parent] if parent >= 0 else -1
            depth = nodes[above].depth + 1 if above >= 0 else 1
            children[above, token] = len(nodes)
            place.append(len(nodes))
            node = Node(token, above, depth, chances[i], by_lookup=True)
            nodes.append(node)
    start = place[after] if after >= 0 else -1
    spots: list[int] = []  # the tree's node for each of the drawn ones
    ranks: list[int] = []
    last, beside = -2, 0
    each = zip(drawn.tokens, drawn.parents, drawn.confidence, drawn_chances, strict=True)
    for token, parent, confidence, chance in each:
        at, rank = (spots[parent], ranks[parent] + 1) if parent >= 0 else (start, 1)
        last, beside = parent, beside + 1 if parent == last else 0
        siblings = [node for node in nodes if node.parent == at and not node.drawn]
        own = children.get((at, token))
        if own is not None:
            node = nodes[own]
            node.path = agreed(node.path, chance)
        else:
            rivals = max((s.path for s in siblings), default=0.0)
            depth = nodes[at].depth + 1 if at >= 0 else 1
            own = len(nodes)
            node = Node(token, at, depth, contested(chance, rivals))
            nodes.append(node)
        for sibling in siblings:
            if sibling is not node:
                sibling.path = contested(sibling.path, chance)
        node.drawn, node.model, node.beside = rank, confidence, beside
        spots.append(own)
        ranks.append(rank)
    for node in nodes:  # so far the chances given the parent
        if node.parent >= 0:
            node.path *= nodes[node.parent].path
    return nodes


def subtree(nodes: Sequence[Node], kept: Sequence[int]) -> list[Node]:
    """The nodes at `kept` (ascending, every parent among them), renumbered."""
    number = {-1: -1}
    out: list[Node] = []
    for i in kept:
        node = nodes[i]
        number[i] = len(out)
        node.parent = number[node.parent]
        out.append(node)
    return out


def chosen(lookup: Lookup | None, choice: DraftPlan) -> list[Node]:
    """The chosen part of a lookup's tree."""
    if lookup is None or not choice.nodes:
        return []
    number = {-1: -1}
    out: list[Node] = []
    for i in choice.nodes:
        parent = number[lookup.parents[i]]
        depth = 1 if parent < 0 else out[parent].depth + 1
        number[i] = len(out)
        out.append(Node(lookup.tokens[i], parent, depth, choice.paths[i], by_lookup=True))
    return out


def path_to(lookup: Lookup, node: int) -> list[int]:
    """The tokens of a lookup from the anchor's child to `node`; none for -1."""
    tokens: list[int] = []
    while node >= 0:
        tokens.append(lookup.tokens[node])
        node = lookup.parents[node]
    return tokens[::-1]


def refed(parents: Sequence[int], frontier: Sequence[int]) -> tuple[list[int], list[int]]:
    """What a draft model is fed to draw on from `frontier`, nodes of one depth of the tree that it draws.

    Returns (kept, fed), both ascending: the path above all of them, which its cache holds as a chain, and
    the rest of their paths. A token can only hang from the whole cache or from tokens of the same pass, so
    all that differs is fed again.
    """
    paths = [_path(parents, node) for node in frontier]
    first = paths[0]
    common = len(first) - 1
    for path in paths[1:]:
        common = next((i for i in range(common) if path[i] != first[i]), common)
    kept = first[:common]
    if len(paths) == 1:
        return kept, first[common:]
    return kept, sorted({node for path in paths for node in path[common:]})


def passes(parents: Sequence[int]) -> list[list[int]]:
    """The nodes of a drawn tree that were drawn on from, pass by pass after the first."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    levels: list[list[int]] = [[] for _ in range(max(depths, default=0))]
    for node in sorted({parent for parent in parents if parent >= 0}):
        levels[depths[node]].append(node)
    return levels


def _path(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from the top to `node`."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]
