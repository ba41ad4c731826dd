from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.policy.tree import (
    DraftPlan,
    Lookup,
    ModelDraft,
    Node,
    OfferedTree,
    WeightedTree,
    agreement,
    chosen,
    conflict,
    merge,
    offer,
    subtree,
)
from tests.support.controllers import LOOKUP, MODEL

chances = st.floats(0.01, 0.99)


@st.composite
def trees(draw: st.DrawFn) -> tuple[Lookup, list[float]]:
    """A lookup's tree without equal siblings, and calibrated chances."""
    size = draw(st.integers(0, 8))
    out = Lookup()
    edges: set[tuple[int, int]] = set()
    for node in range(size):
        parent, token = draw(st.integers(-1, node - 1)), draw(st.integers(0, 3))
        if (parent, token) in edges or parent >= len(out.tokens):
            continue
        edges.add((parent, token))
        out.tokens.append(token)
        out.parents.append(parent)
        out.confidence.append(draw(chances))
    size = len(out.tokens)
    return out, draw(st.lists(chances, min_size=size, max_size=size))


@given(chances, chances)
def test_two_opinions(a: float, b: float) -> None:
    assert max(a, b) <= agreement(a, b) == agreement(b, a) < 1.0
    assert 0.0 < conflict(a, b) <= a
    assert conflict(a, b) + conflict(b, a) <= 1.0 + 1e-9, "only one of two tokens can be right"


def offered(lookup: Lookup) -> OfferedTree:
    """As a lookup alone is offered, its confidence taken for calibrated."""
    sources = [(LOOKUP,)] * len(lookup.tokens)
    return OfferedTree(
        lookup.tokens, lookup.parents, lookup.confidence, lookup.confidence, lookup.paths, sources
    )


def ready(lookup: Lookup, probabilities: list[float], source: str = LOOKUP) -> WeightedTree:
    return WeightedTree(source, lookup.tokens, lookup.parents, probabilities)


def grown(draft: ModelDraft, probabilities: list[float]) -> WeightedTree:
    return WeightedTree(MODEL, draft.tokens, draft.parents, probabilities, draft.confidence)


def path_to(tree: Lookup, node: int) -> tuple[int, ...]:
    """The tokens from the anchor's child to a node."""
    above = path_to(tree, tree.parents[node]) if tree.parents[node] >= 0 else ()
    return (*above, tree.tokens[node])


def prefixes(nodes: list[Node]) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for node in nodes:
        paths.append((*(paths[node.parent] if node.parent >= 0 else ()), node.token))
    return paths


@given(trees(), st.lists(st.integers(0, 3), max_size=5), st.data())
def test_a_merged_tree_has_every_prefix_once(
    tree: tuple[Lookup, list[float]], tokens: list[int], data: st.DataObject
) -> None:
    lookup, own = tree
    hopes = data.draw(st.lists(chances, min_size=len(tokens), max_size=len(tokens)))
    nodes = merge([ready(lookup, own), grown(ModelDraft(tokens, [0.5] * len(tokens)), hopes)])
    found = prefixes(nodes)
    looked = [path_to(lookup, i) for i in range(len(lookup.tokens))]
    drawn = [tuple(tokens[: i + 1]) for i in range(len(tokens))]
    assert len(set(found)) == len(found)
    assert set(found) == set(looked) | set(drawn)
    for path, node in zip(found, nodes, strict=True):
        assert node.depth == len(path)
        assert (LOOKUP in node.sources) == (path in looked)
        assert bool(node.model_rank) == (path in drawn)
        assert node.model_rank == (len(path) if path in drawn else 0)
        above = nodes[node.parent].path_probability if node.parent >= 0 else 1.0
        assert 0.0 < node.path_probability <= above
    for parent in {node.parent for node in nodes}:
        drawn_too = [n for n in nodes if n.parent == parent and n.model_rank]
        others = [n for n in nodes if n.parent == parent and not n.model_rank]
        above = nodes[parent].path_probability if parent >= 0 else 1.0
        for one, other in itertools.product(drawn_too, others):
            assert LOOKUP in one.sources or one.path_probability + other.path_probability <= above * (
                1 + 1e-9
            )


def test_agreement_raises_and_rivalry_lowers() -> None:
    lookup = Lookup([1, 2], [-1, -1], [0.5, 0.4], [0.5, 0.4], 3)
    alone = merge([ready(lookup, [0.5, 0.4])])
    assert [node.path_probability for node in alone] == [0.5, 0.4]
    both = merge([ready(lookup, [0.5, 0.4]), grown(ModelDraft([1, 3], [0.7, 0.6]), [0.7, 0.6])])
    assert [node.token for node in both] == [1, 2, 3]
    assert both[0].path_probability > 0.7
    assert both[1].path_probability < 0.4
    assert both[2].path_probability == pytest.approx(both[0].path_probability * 0.6)
    assert [((LOOKUP in node.sources), node.model_confidence) for node in both] == [
        (True, 0.7),
        (True, None),
        (False, 0.6),
    ]


def test_a_part_of_a_tree() -> None:
    lookup = Lookup([1, 2, 3, 4], [-1, 0, -1, 2], [0.9, 0.8, 0.5, 0.4], [0.9, 0.72, 0.5, 0.2], 3)
    whole = merge([ready(lookup, lookup.confidence)])
    part = subtree(whole, [0, 2, 3])
    assert [(node.token, node.parent) for node in part] == [(1, -1), (3, -1), (4, 1)]
    plan = DraftPlan(offered(lookup), nodes=[0, 2, 3])
    same = chosen(plan)
    assert [(n.token, n.parent, n.depth, n.path_probability) for n in same] == [
        (1, -1, 1, 0.9),
        (3, -1, 1, 0.5),
        (4, 1, 2, 0.2),
    ]
    assert chosen(DraftPlan()) == chosen(DraftPlan(offered(lookup))) == []


def test_only_nodes_with_a_chance_are_merged() -> None:
    """There is no room for the rest of a lookup."""
    lookup = Lookup([1, 2, 3], [-1, 0, 1], [0.9] * 3, [0.9, 0.81, 0.73], 3)
    assert len(merge([ready(lookup, [0.9, 0.9])])) == 2


def test_siblings_that_the_model_drew_are_merged_with_the_lookups() -> None:
    lookup = Lookup([1, 2], [-1, -1], [0.5, 0.2], [0.5, 0.2], 3)
    drawn = ModelDraft([3, 2, 4, 5], [0.6, 0.5, 0.9, 0.8], parents=[-1, -1, 0, 1])
    nodes = merge([ready(lookup, [0.5, 0.2]), grown(drawn, [0.6, 0.2, 0.9, 0.8])])
    assert [(n.token, n.parent, n.model_rank, n.sibling_rank) for n in nodes] == [
        (1, -1, 0, 0),
        (2, -1, 1, 1),
        (3, -1, 1, 0),
        (4, 2, 2, 0),
        (5, 1, 2, 0),
    ]
    assert nodes[1].path_probability > conflict(0.2, 0.6), "both drafters propose it"
    assert nodes[4].path_probability == pytest.approx(nodes[1].path_probability * 0.8)


def test_a_tree_is_as_high_as_its_longest_path() -> None:
    assert ModelDraft([1, 2, 3], [None] * 3).height == 3
    assert ModelDraft([1, 2, 3, 4, 5], [None] * 5, False, [-1, -1, 0, 1, 3]).height == 3
    assert ModelDraft([], []).height == 0


@given(st.lists(trees(), min_size=3, max_size=3))
def test_any_number_of_proposals_make_one_tree(drafters: list[tuple[Lookup, list[float]]]) -> None:
    proposals = [ready(tree, own, name) for (tree, own), name in zip(drafters, "abc", strict=True)]
    nodes = merge(proposals)
    found = prefixes(nodes)
    assert len(set(found)) == len(found)
    for (tree, _), name in zip(drafters, "abc", strict=True):
        looked = {path_to(tree, i) for i in range(len(tree.tokens))}
        assert looked == {path for path, node in zip(found, nodes, strict=True) if name in node.sources}
    for node in nodes:
        above = nodes[node.parent].path_probability if node.parent >= 0 else 1.0
        assert 0.0 < node.path_probability <= above
    first = merge(proposals[:2])
    assert prefixes(first) == found[: len(first)], "later proposals leave the numbers of earlier ones"
    joined = offer(proposals, drafters[0][0].confidence)
    assert list(joined.path_probabilities) == [node.path_probability for node in nodes]


@pytest.mark.parametrize("confident", [True, False])
def test_one_proposal_alone_makes_the_tree_that_it_makes_among_others(confident: bool) -> None:
    parents = [-1, -1, 0, 0, 2, 1]
    tree = WeightedTree(
        "model",
        [5, 6, 7, 8, 9, 5],
        parents,
        [0.5, 0.3, 0.6, 0.2, 0.9, 0.4],
        [0.5, 0.6, 0.7, None, 0.2, 0.1] if confident else None,
    )
    among = merge([tree, WeightedTree("other", [], [], [])])
    assert merge([tree]) == among
    assert [node.parent for node in among] == parents
    assert [node.sibling_rank for node in among] == ([0, 1, 0, 1, 0, 0] if confident else [0] * 6)
