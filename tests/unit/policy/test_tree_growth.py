from __future__ import annotations

import pytest

from outrider.policy.acceptance_rates import AcceptanceRates, RequestRates
from outrider.policy.cost_model import WIDEST, CostCurve
from outrider.policy.tree_growth import ModelRates, TreeGrowth
from tests.support.calls import calls_of


def rates(first: float = 0.7, sibling: float = 0.4) -> ModelRates:
    return ModelRates(AcceptanceRates(first), RequestRates(), AcceptanceRates(sibling), RequestRates())


def curve(first: float, more: float) -> CostCurve:
    """A pass takes `first` seconds for one token and `more` for each further one."""
    return CostCurve({n: first + more * (n - 1) for n in range(1, WIDEST + 1)})


def make(
    draw: float = 1.0,
    more: float = 0.25,
    rate: float = 0.4,
    *,
    known: ModelRates | None = None,
    branching: bool = True,
    max_depth: int = 8,
    sharers: int = 1,
) -> TreeGrowth:
    """Drawing takes `draw` seconds for one token and a tenth more for each further one; verifying `more`."""
    return TreeGrowth(
        known or rates(),
        curve(3.0 + more, more),
        curve(draw, 0.1 * draw),
        rate,
        1,
        sharers=sharers,
        branching=branching,
        max_depth=max_depth,
    )


def test_siblings_share_what_chance_there_is() -> None:
    parents, confidence = [-1, -1, -1, 1, 0, 0], [0.5, 0.4, 0.09, 0.9, 0.3, 0.3]
    chances, given_wrong = rates().of_tree(parents, confidence)
    assert sum(chances[:3]) < 1.0
    assert chances[0] > chances[1] > chances[2]
    assert given_wrong[:3] == [0.5, pytest.approx(0.8), pytest.approx(0.9)]
    assert given_wrong[5] == pytest.approx(0.3 / 0.7)
    assert rates().of_tree([-1, 0], [0.5, 0.9])[0] == [chances[0], chances[3]], "a sibling takes nothing"
    silent, _ = rates().of_tree([-1, -1], [None, None])
    assert silent == [pytest.approx(0.7), pytest.approx(0.3 * 0.4)]


def test_the_expected_tokens_of_a_row() -> None:
    assert rates().expected(0) == [0.0]
    assert rates(0.5).expected(3) == pytest.approx([0.0, 0.5, 0.75, 0.875])


def test_a_parent_that_is_not_there_is_refused() -> None:
    for parents in ([0], [-1, 1], [-2]):
        with pytest.raises(ValueError, match="parent"):
            rates().of_tree(parents, [0.5] * len(parents))
    for parent in (0, 1, -2):
        with pytest.raises(ValueError, match="parent"):
            make().drew(parent, 0.5)
    with pytest.raises(ValueError, match="each node"):
        rates().of_tree([-1], [])
    with pytest.raises(ValueError, match="at least one request"):
        make(sharers=0)


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
    doubtful = make(draw=0.2, more=0.05, known=rates(0.3, 0.8))
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
