from __future__ import annotations

import pytest

from outrider.policy.acceptance_rates import AcceptanceRates, RequestRates
from outrider.policy.tree_growth import ModelRates, NodeProbabilities, TreeGrowth
from tests.support.calls import calls_of


def nodes() -> NodeProbabilities:
    return NodeProbabilities(
        ModelRates(AcceptanceRates(0.7), RequestRates(), AcceptanceRates(0.4), RequestRates())
    )


def make(
    draw: float = 1.0, more: float = 0.25, rate: float = 0.4, *, branching: bool = True, max_depth: int = 8
) -> TreeGrowth:
    """Drawing takes `draw` seconds for one token and a tenth more for each further one; verifying `more`."""
    return TreeGrowth(
        nodes(),
        lambda n: 3.0 + more * n,
        lambda n: draw * (0.9 + 0.1 * n),
        rate,
        1,
        branching=branching,
        max_depth=max_depth,
    )


def test_siblings_share_what_chance_there_is() -> None:
    made = nodes()
    chances = [made.add(-1, 0.5), made.add(-1, 0.4), made.add(-1, 0.09)]
    assert sum(chances) < 1.0
    assert made.remaining == pytest.approx(1.0 - sum(chances))
    assert chances[0] > chances[1] > chances[2]
    assert made.confidence == [0.5, pytest.approx(0.8), pytest.approx(0.9)]
    assert (made.ranks, made.sibling_ranks) == ([1, 1, 1], [0, 1, 2])
    made.add(1, 0.9)
    made.add(0, 0.3)
    made.add(0, 0.3)
    assert (made.ranks[3:], made.sibling_ranks[3:]) == ([2, 2, 2], [0, 0, 1])
    assert made.confidence[5] == pytest.approx(0.3 / 0.7)
    silent = nodes()
    assert silent.add(-1, None) == pytest.approx(0.7)
    assert silent.add(-1, None) == pytest.approx(0.3 * 0.4)


def test_it_branches_where_the_first_choice_is_in_doubt() -> None:
    assert make().drew(-1, 0.5)
    assert not make(more=0.5).drew(-1, 0.97), "what is left is not worth its verification"
    assert not make(branching=False).drew(-1, 0.5)
    assert not make(more=2.0).drew(-1, 0.5)


def test_it_draws_on_while_that_pays() -> None:
    made = make()
    made.drew(-1, 0.97)
    assert made.next_node() == 0
    made.drew(0, 0.1)
    assert made.next_node() == -1
    assert made.next_node() == -1, "nothing new"
    short = make(max_depth=2)
    short.drew(-1, 0.97)
    assert short.next_node() == 0
    short.drew(0, 0.97)
    assert short.next_node() == -1


def test_the_likelier_sibling_gets_children() -> None:
    cheap = make(draw=0.2, more=0.05)
    assert cheap.drew(-1, 0.5)
    cheap.drew(-1, 0.45)
    assert cheap.next_node() == 0
    rates = ModelRates(AcceptanceRates(0.3), RequestRates(), AcceptanceRates(0.8), RequestRates())
    doubtful = TreeGrowth(NodeProbabilities(rates), lambda n: 3.0 + 0.05 * n, lambda n: 0.2, 0.4, 1)
    assert doubtful.drew(-1, 0.1)
    doubtful.drew(-1, 0.8)
    assert doubtful.next_node() == 1


def test_a_pass_that_was_made_costs_nothing() -> None:
    made = make(draw=20.0)
    made.drew(-1, 0.9)
    assert made.next_node() == -1
    made = make(draw=20.0)
    made.drew(-1, 0.9)
    assert made.next_node(ready=0) == 0


def grow_tree(levels: int = 8) -> int:
    """A chain of so many tokens with a branch at each place; the number of nodes."""
    made = make(draw=0.01, more=0.01, max_depth=levels)
    nodes = 0
    for _ in range(levels):
        node = made.next_node()
        nodes += 1
        if made.drew(node, 0.6):
            nodes += 1
            made.drew(node, 0.3)
    return nodes


def test_it_costs_little() -> None:
    """(benchmarks/step_overhead.py has the time.)"""
    small, large = calls_of(grow_tree) / grow_tree(), calls_of(lambda: grow_tree(16)) / grow_tree(16)
    assert small < 60, "twice what a node takes today"
    assert large < 1.5 * small, "a larger tree takes no more for each node"
