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
    agreed,
    chosen,
    contested,
    merge,
    passes,
    path_to,
    refed,
    subtree,
)

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
    assert max(a, b) <= agreed(a, b) == agreed(b, a) < 1.0
    assert 0.0 < contested(a, b) <= a
    assert contested(a, b) + contested(b, a) <= 1.0 + 1e-9, "only one of two tokens can be right"


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
    after = data.draw(st.integers(-1, len(lookup.tokens) - 1))
    hopes = data.draw(st.lists(chances, min_size=len(tokens), max_size=len(tokens)))
    nodes = merge(lookup, own, ModelDraft(tokens, [0.5] * len(tokens)), hopes, after)
    found = prefixes(nodes)
    looked = [tuple(path_to(lookup, i)) for i in range(len(lookup.tokens))]
    start = tuple(path_to(lookup, after))
    drawn = [start + tuple(tokens[: i + 1]) for i in range(len(tokens))]
    assert len(set(found)) == len(found)
    assert set(found) == set(looked) | set(drawn)
    for path, node in zip(found, nodes, strict=True):
        assert node.depth == len(path)
        assert node.by_lookup == (path in looked)
        assert bool(node.drawn) == (path in drawn)
        assert node.drawn == (len(path) - len(start) if path in drawn else 0)
        above = nodes[node.parent].path if node.parent >= 0 else 1.0
        assert 0.0 < node.path <= above
    for parent in {node.parent for node in nodes}:
        drawn_too = [n for n in nodes if n.parent == parent and n.drawn]
        others = [n for n in nodes if n.parent == parent and not n.drawn]
        above = nodes[parent].path if parent >= 0 else 1.0
        for one, other in itertools.product(drawn_too, others):
            assert one.by_lookup or one.path + other.path <= above * (1 + 1e-9)


def test_agreement_raises_and_rivalry_lowers() -> None:
    lookup = Lookup([1, 2], [-1, -1], [0.5, 0.4], [0.5, 0.4], 3)
    alone = merge(lookup, [0.5, 0.4], ModelDraft([], []), [])
    assert [node.path for node in alone] == [0.5, 0.4]
    both = merge(lookup, [0.5, 0.4], ModelDraft([1, 3], [0.7, 0.6]), [0.7, 0.6])
    assert [node.token for node in both] == [1, 2, 3]
    assert both[0].path > 0.7
    assert both[1].path < 0.4
    assert both[2].path == pytest.approx(both[0].path * 0.6)
    assert [(node.by_lookup, node.model) for node in both] == [(True, 0.7), (True, None), (False, 0.6)]


def test_a_part_of_a_tree() -> None:
    lookup = Lookup([1, 2, 3, 4], [-1, 0, -1, 2], [0.9, 0.8, 0.5, 0.4], [0.9, 0.72, 0.5, 0.2], 3)
    whole = merge(lookup, lookup.confidence, ModelDraft([], []), [])
    part = subtree(whole, [0, 2, 3])
    assert [(node.token, node.parent) for node in part] == [(1, -1), (3, -1), (4, 1)]
    choice = DraftPlan([0, 2, 3], paths=[0.9, 0.72, 0.5, 0.2])
    same = chosen(lookup, choice)
    assert [(n.token, n.parent, n.depth, n.path) for n in same] == [
        (1, -1, 1, 0.9),
        (3, -1, 1, 0.5),
        (4, 1, 2, 0.2),
    ]
    assert chosen(None, choice) == chosen(lookup, DraftPlan()) == []


def test_only_nodes_with_a_chance_are_merged() -> None:
    """There is no room for the rest of a lookup."""
    lookup = Lookup([1, 2, 3], [-1, 0, 1], [0.9] * 3, [0.9, 0.81, 0.73], 3)
    assert len(merge(lookup, [0.9, 0.9], ModelDraft([], []), [])) == 2


def test_siblings_that_the_model_drew_are_merged_with_the_lookups() -> None:
    lookup = Lookup([1, 2], [-1, -1], [0.5, 0.2], [0.5, 0.2], 3)
    drawn = ModelDraft([3, 2, 4, 5], [0.6, 0.5, 0.9, 0.8], parents=[-1, -1, 0, 1])
    nodes = merge(lookup, [0.5, 0.2], drawn, [0.6, 0.2, 0.9, 0.8])
    assert [(n.token, n.parent, n.drawn, n.beside) for n in nodes] == [
        (1, -1, 0, 0),
        (2, -1, 1, 1),
        (3, -1, 1, 0),
        (4, 2, 2, 0),
        (5, 1, 2, 0),
    ]
    assert nodes[1].path > contested(0.2, 0.6), "both drafters propose it"
    assert nodes[4].path == pytest.approx(nodes[1].path * 0.8)


def test_what_is_fed_again() -> None:
    chain = [-1, 0, 1, 2]
    assert refed(chain, [3]) == ([0, 1, 2], [3])
    # 0 with 1 and 2 below; 3, 4 below 1; 5 below 2
    parents = [-1, 0, 0, 1, 1, 2]
    assert refed(parents, [1, 2]) == ([0], [1, 2])
    assert refed(parents, [4, 3]) == ([0, 1], [3, 4])
    assert refed(parents, [3, 5]) == ([0], [1, 2, 3, 5])
    assert refed([-1, -1], [0, 1]) == ([], [0, 1])
    assert passes(parents) == [[0], [1, 2]]
    assert passes(chain) == [[0], [1], [2]]
    assert passes([-1, -1]) == passes([]) == []
