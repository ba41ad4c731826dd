"""Draft trees: what drafters propose, what the planner chooses, and the arithmetic on both.

A node's path probability is the probability that it and all its ancestors are accepted, so the expected
number of accepted tokens is the sum over the nodes that are verified (OPT-Tree, Wang et al. 2024; EAGLE-2, Li
et al. 2024), and since no child's is above its parent's, the likeliest nodes always form a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from outrider.decoding.controller import Guide

if TYPE_CHECKING:
    from outrider.policy.request_state import RequestState

ROOT = -1  # the parent of the first tokens of a draft: the anchor


class DraftPass(NamedTuple):
    """A pass of a draft model: its tokens, and how many of them were unprocessed tokens of sequences beyond
    those that every step leaves."""

    width: int
    prefilled: int


@dataclass(slots=True, eq=False)
class Lookup:
    """A tree that is ready when it is proposed, of n nodes, parents first, likelier paths before unlikelier.

    tokens, parents: as in `Draft`.
    confidence: the drafter's own probability of each node given its parent, 0..1.
    paths:      the same of the whole path, never above the parent's.
    length:     tokens of the sequence's end that the best match agrees with; 0 without any.
    shared:     whether other requests' outputs alone have a node; empty where no match is in them.
    copied:     tokens at the sequence's end that are copied from earlier in it, as far as is known.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    paths: list[float] = field(default_factory=list)
    length: int = 0
    shared: list[bool] = field(default_factory=list)
    copied: int = 0


@dataclass(slots=True, eq=False)
class Proposal:
    """What one drafter offers for one request in one step, in one of two kinds.

    source:      the drafter's name.
    tree:        a tree that is ready, with the drafter's confidence; its price is its verification alone.
    unprocessed: without a tree: tokens that a draft model would process before the first token of a tree that
                 it grows on demand under a `Guide`. Its price follows from them and the model's cost curve.
    """

    source: str
    tree: Lookup | None = None
    unprocessed: int = 0


@dataclass(slots=True, eq=False)
class DraftQuery:
    """What could be drafted for one request.

    budget:    most nodes.
    proposals: at most one of each drafter; none of a drafter that cannot draft here.
    forced:    tokens that a constraint has drafted already.
    """

    state: RequestState
    budget: int
    proposals: Sequence[Proposal] = ()
    forced: int = 0

    def unprocessed(self, source: str) -> int | None:
        """Of the proposal of one draft model; None without one."""
        for proposal in self.proposals:
            if proposal.source == source and proposal.tree is None:
                return proposal.unprocessed
        return None

    @property
    def has_lookup(self) -> bool:
        """Whether a drafter of ready trees was asked, even if it found nothing."""
        return any(proposal.tree is not None for proposal in self.proposals)


@dataclass(slots=True, eq=False)
class OfferedTree:
    """All ready proposals of one request as one tree, parents first.

    probabilities, path_probabilities: calibrated, given the parent and of the whole path.
    sources: of each node, the drafters that propose it.
    """

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    confidence: Sequence[float] = ()
    probabilities: Sequence[float] = ()
    path_probabilities: Sequence[float] = ()
    sources: Sequence[tuple[str, ...]] = ()


@dataclass(slots=True, eq=False)
class DraftPlan:
    """What is to be drafted for one request.

    offered:      the ready proposals as one tree; `ready` has them one by one.
    nodes:        of that tree, to be verified if nothing else is drafted; ascending.
    source:       the draft model that grows a tree; None for none.
    draft_tokens: most tokens in a row that it draws; 0 for none.
    guide:        directs the growth; None for a chain of `draft_tokens`.
    """

    offered: OfferedTree = field(default_factory=OfferedTree)
    ready: list[WeightedTree] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    source: str | None = None
    draft_tokens: int = 0
    guide: Guide | None = None

    @property
    def expected_accepted(self) -> float:
        """Tokens expected to be accepted of the offered nodes."""
        paths = self.offered.path_probabilities
        return sum([paths[i] for i in self.nodes])


@dataclass(slots=True, eq=False)
class ModelDraft:
    """A tree that a draft model has grown, and its confidence in each token (None where it does not say).

    stated:  the tokens come with the distributions that they were drawn from, so none may be pruned.
    parents: as in `Draft`, siblings in the order in which they were drawn; none for a chain.
    """

    tokens: list[int]
    confidence: list[float | None]
    stated: bool = False
    parents: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.parents:
            self.parents = list(range(-1, len(self.tokens) - 1))

    @property
    def height(self) -> int:
        """Tokens of the longest path; 0 without any."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 1)
        return max(depths, default=0)


@dataclass(slots=True)
class Node:
    """A node of the tree that is to be verified.

    depth:            1 = child of the anchor.
    path_probability: that it and all its ancestors are accepted.
    sources:          the drafters that propose it, in the order of their registration.
    model_rank:       its place in a row that a draft model drew, from 1; 0 if none did.
    model_confidence: of that draft model; None where it does not say.
    sibling_rank:     siblings that the draft model drew before it; its confidence is given that those are
                      wrong.
    """

    token: int
    parent: int
    depth: int
    path_probability: float
    sources: tuple[str, ...] = ()
    model_rank: int = 0
    model_confidence: float | None = None
    sibling_rank: int = 0


@dataclass(slots=True, eq=False)
class WeightedTree:
    """One proposal with calibrated acceptance probabilities, for `merge`.

    probabilities: of each node given its parent; nodes without one are left out.
    confidence:    by the draft model that has grown the tree; None for a tree that was ready.
    """

    source: str
    tokens: Sequence[int]
    parents: Sequence[int]
    probabilities: Sequence[float]
    confidence: Sequence[float | None] | None = None


def agreement(a: float, b: float) -> float:
    """The probability of a token that two drafters propose with these: more than the higher one."""
    high, low = (a, b) if a > b else (b, a)
    return high + (1.0 - high) * low / 2.0


def conflict(a: float, b: float) -> float:
    """The probability of a token that one drafter gives `a` while another gives `b` to another token."""
    return a * (1.0 - b) / (1.0 - a * b)


def merge(proposals: Sequence[WeightedTree]) -> list[Node]:
    """One tree of all proposals, equal prefixes only once, parents first; the nodes of a proposal come after
    those of the ones before it."""
    if len(proposals) == 1:
        return _alone(proposals[0])
    nodes: list[Node] = []
    children: dict[tuple[int, int], int] = {}  # by parent and token, of the proposals merged so far
    for proposal in proposals:
        _add(nodes, children, proposal)
    for node in nodes:  # so far given the parent
        if node.parent >= 0:
            node.path_probability *= nodes[node.parent].path_probability
    return nodes


def _alone(proposal: WeightedTree) -> list[Node]:
    """The tree of one proposal, as `merge` gives it."""
    nodes: list[Node] = []
    sources, confidence = (proposal.source,), proposal.confidence
    last, sibling_rank = -2, 0
    each = zip(proposal.tokens, proposal.parents, proposal.probabilities, strict=False)
    for i, (token, parent, probability) in enumerate(each):
        last, sibling_rank = parent, sibling_rank + 1 if parent == last else 0
        depth, path = 1, probability
        if parent >= 0:
            above = nodes[parent]
            depth, path = above.depth + 1, above.path_probability * probability
        if confidence is None:
            nodes.append(Node(token, parent, depth, path, sources))
        else:
            nodes.append(Node(token, parent, depth, path, sources, depth, confidence[i], sibling_rank))
    return nodes


def _add(nodes: list[Node], children: dict[tuple[int, int], int], proposal: WeightedTree) -> None:
    """Add one proposal; path probabilities are given the parent."""
    source, confidence = proposal.source, proposal.confidence
    before = len(nodes)
    places: list[int] = []  # in `nodes`, of each node of the proposal
    ranks: list[int] = []
    last, sibling_rank = -2, 0
    each = zip(proposal.tokens, proposal.parents, proposal.probabilities, strict=False)
    for i, (token, parent, probability) in enumerate(each):
        above, rank = (places[parent], ranks[parent] + 1) if parent >= 0 else (ROOT, 1)
        last, sibling_rank = parent, sibling_rank + 1 if parent == last else 0
        rivals = _rivals(nodes, before, above, source)
        place = children.get((above, token))
        if place is not None:
            node = nodes[place]
            node.path_probability = agreement(node.path_probability, probability)
            node.sources += (source,)
        else:
            highest = max((rival.path_probability for rival in rivals), default=0.0)
            depth = nodes[above].depth + 1 if above >= 0 else 1
            own = conflict(probability, highest) if before else probability
            node, place = Node(token, above, depth, own, (source,)), len(nodes)
            nodes.append(node)
        for rival in rivals:
            if rival is not node:
                rival.path_probability = conflict(rival.path_probability, probability)
        if confidence is not None:
            node.model_rank, node.model_confidence, node.sibling_rank = rank, confidence[i], sibling_rank
        places.append(place)
        ranks.append(rank)
    for place in places:
        children.setdefault((nodes[place].parent, nodes[place].token), place)


def _rivals(nodes: Sequence[Node], before: int, parent: int, source: str) -> list[Node]:
    """Children of a node, among the `before` first, that this proposal has not confirmed."""
    return [node for node in nodes[:before] if node.parent == parent and source not in node.sources]


def offer(proposals: Sequence[WeightedTree], confidence: Sequence[float]) -> OfferedTree:
    """The ready proposals as one tree. `confidence` of the first one's nodes is kept; of others' nodes the
    calibrated probability takes its place."""
    nodes = merge(proposals)
    given_parent = [
        node.path_probability / (nodes[node.parent].path_probability if node.parent >= 0 else 1.0)
        for node in nodes
    ]
    return OfferedTree(
        [node.token for node in nodes],
        [node.parent for node in nodes],
        [*confidence, *given_parent[len(confidence) :]],
        given_parent,
        [node.path_probability for node in nodes],
        [node.sources for node in nodes],
    )


def subtree(nodes: Sequence[Node], kept: Sequence[int]) -> list[Node]:
    """The nodes at `kept` (ascending, every parent among them), renumbered."""
    number = {ROOT: ROOT}
    out: list[Node] = []
    for i in kept:
        node = nodes[i]
        number[i] = len(out)
        node.parent = number[node.parent]
        out.append(node)
    return out


def chosen(plan: DraftPlan) -> list[Node]:
    """The chosen part of the offered tree."""
    offered = plan.offered
    number = {ROOT: ROOT}
    out: list[Node] = []
    for i in plan.nodes:
        parent = number[offered.parents[i]]
        depth = 1 if parent < 0 else out[parent].depth + 1
        number[i] = len(out)
        path = offered.path_probabilities[i]
        out.append(Node(offered.tokens[i], parent, depth, path, offered.sources[i]))
    return out
