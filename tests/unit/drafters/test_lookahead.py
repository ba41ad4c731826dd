from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from outrider.decoding.context import TokenContext
from outrider.decoding.controller import DraftLimits
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Draft
from outrider.drafters.lookahead import DraftLookahead
from outrider.drafters.suffix import SuffixDrafter
from outrider.policy.cost_model import CostModel
from outrider.policy.draft_model import DraftModelSource, DraftModelState
from outrider.policy.tree import Lookup, OfferedTree
from outrider.policy.tuning import DEFAULT
from tests.support.controllers import make_auto

TEXT = [7, 8, 9, 1, 2, 3, 7, 8]
FLAT = CostModel({1: 0.004, 8: 0.0041})  # tokens beside another cost next to nothing


class Recording(DraftModelSource):
    """Writes down what became of the predictions."""

    def __init__(self, cost: CostModel = FLAT) -> None:
        super().__init__("draft_model", cost)
        self.seen: list[tuple[int, float, bool]] = []

    def observe_lookahead(
        self, state: DraftModelState, rank: int, confidence: float, predicted: bool
    ) -> None:
        self.seen.append((rank, confidence, predicted))
        super().observe_lookahead(state, rank, confidence, predicted)


def make(
    lookup: Lookup | None = None,
    source: DraftModelSource | None = None,
    text: Sequence[int] = TEXT,
) -> tuple[DraftLookahead, TokenContext]:
    drafter, context = SuffixDrafter(), TokenContext(text)
    drafter.begin(Request("r", tuple(text), SamplingParams()))
    drafter.lookup(ProposeJob("r", context, 1, Sampler(SamplingParams(), 64)), 1)  # into its index
    source = source or Recording()
    controller = make_auto(CostModel({1: 0.05}), source.cost)
    state = controller.begin()
    controller.choose([DraftLimits(state, 16, len(text))])
    offered = OfferedTree()
    if lookup is not None:
        offered = OfferedTree(lookup.tokens, lookup.parents, lookup.confidence)
    follow = partial(drafter.likely_path, "r")
    lookahead = DraftLookahead(source, state, offered, follow, context, sharers=1)
    return lookahead, context


def draft(tokens: list[int], parents: list[int]) -> Draft:
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32), None, "draft_model")


def test_lookups_foretell_along_their_tree_and_anew_beside_it() -> None:
    tree = Lookup([9, 1, 4, 5], [-1, 0, -1, 2], [0.9, 0.9, 0.4, 0.9])
    lookahead, context = make(tree)
    assert lookahead(context) == [9, 1], "the likeliest path"
    assert lookahead(context.along([4])) == [5], "the draft went along another one"
    assert lookahead(context.along([9, 1])) == [2, 3, 7, 8], "behind the tree as behind any text"
    assert lookahead(context.along([6])) == [], "what never was"


def test_no_more_is_foretold_than_saves_time() -> None:
    steep = Recording(CostModel({1: 0.004, 2: 0.0079, 8: 0.03}))
    tree = Lookup([9, 1], [-1, 0], [0.9, 0.9])
    assert make(tree, source=steep)[0](TokenContext(TEXT)) == []
    useless = Recording()
    state = DraftModelState(DEFAULT)
    for _ in range(200):
        useless.observe_lookahead(state, 1, 0.9, predicted=False)
    assert make(tree, source=useless)[0](TokenContext(TEXT)) == []


def test_it_learns_from_first_choices_as_far_as_they_were_drawn() -> None:
    source = Recording()
    lookahead, context = make(Lookup([9, 1, 2], [-1, 0, 1], [0.9, 0.8, 0.7]), source=source)
    assert lookahead(context) == [9, 1, 2]
    lookahead.learn(draft([9, 4, 1], [-1, -1, 0]))
    assert source.seen == [(1, 0.9, True), (2, 0.8, True)], "of the third nothing is known"
    source.seen.clear()
    lookahead.learn(draft([4, 9], [-1, -1]))
    assert source.seen == [(1, 0.9, False)], "a second choice is not what was drawn"
    source.seen.clear()
    lookahead.learn(draft([], []))
    assert source.seen == []
