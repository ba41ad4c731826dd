from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from outrider.decoding.context import TokenContext
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Draft
from outrider.drafters.lookahead import MOST, OF_A_REST, DraftLookahead, LastDraft
from outrider.drafters.suffix import SuffixDrafter
from outrider.policy.auto import AutoController
from outrider.policy.cost_model import CostModel
from outrider.policy.tree import DraftQuery, Lookup, path_to

TEXT = [7, 8, 9, 1, 2, 3, 7, 8]
FLAT = CostModel({1: 0.004, 8: 0.0041})  # tokens beside another cost next to nothing


class Told(AutoController):
    """Writes down what became of what was foretold."""

    def __init__(self, model: CostModel | None = FLAT) -> None:
        super().__init__(CostModel({1: 0.05}), model)
        self.told: list[tuple[int, float, bool]] = []

    def foretold(self, request_id: str, rank: int, confidence: float, drawn: bool) -> None:
        self.told.append((rank, confidence, drawn))
        super().foretold(request_id, rank, confidence, drawn)


def make(
    lookup: Lookup | None = None,
    after: int = -1,
    rest: LastDraft | None = None,
    controller: AutoController | None = None,
    text: Sequence[int] = TEXT,
) -> tuple[DraftLookahead, TokenContext]:
    drafter, context = SuffixDrafter(), TokenContext(text)
    drafter.begin(Request("r", tuple(text), SamplingParams()))
    drafter.lookup(ProposeJob("r", context, 1, Sampler(SamplingParams(), 64)), 1)  # into its index
    ask = DraftQuery("r", 16, len(text), lookup, 1)
    start = context if lookup is None else context.along(path_to(lookup, after))
    teller = DraftLookahead(controller or Told(), drafter, ask, start, after, rest=rest, sharers=1)
    return teller, context


def draft(tokens: list[int], parents: list[int]) -> Draft:
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32), None, "draft_model")


def test_lookups_foretell_along_their_tree_and_anew_beside_it() -> None:
    tree = Lookup([9, 1, 4, 5], [-1, 0, -1, 2], [0.9, 0.9, 0.4, 0.9])
    teller, context = make(tree)
    assert teller(context) == [9, 1], "the likeliest path"
    assert teller(context.along([4])) == [5], "the draft went along another one"
    assert teller(context.along([9, 1])) == [2, 3, 7, 8], "behind the tree as behind any text"
    assert teller(context.along([6])) == [], "what never was"
    teller, context = make(tree, after=0)
    assert teller(context.along([9])) == [1], "behind the node that the draft is to follow"


def test_no_more_is_foretold_than_saves_time() -> None:
    steep = Told(CostModel({1: 0.004, 2: 0.0079, 8: 0.03}))
    tree = Lookup([9, 1], [-1, 0], [0.9, 0.9])
    assert make(tree, controller=steep)[0](TokenContext(TEXT)) == []
    assert make(tree, controller=Told(None))[0](TokenContext(TEXT)) == [], "no model, no draft"
    useless = Told()
    for _ in range(200):
        useless.foretold("r", 1, 0.9, drawn=False)
    assert make(tree, controller=useless)[0](TokenContext(TEXT)) == []


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ([1, 2, 20], [], [32, 33]),  # 31 was replaced
        ([1, 2, 20, 32], [], [33]),
        ([1, 2, 20, 31], [], [32, 33]),  # something came before it
        ([1, 2, 32], [], [33]),  # it was left out
        ([1, 2, 20], [32], [33]),
        ([1, 2, 20], [21], []),  # the draft itself goes elsewhere
        ([1, 2, 31, 32, 33, 5], [], []),  # nothing is left
        ([1, 2], [], []),  # it has not come to that
    ],
)
def test_the_rest_of_a_draft_goes_on_behind_what_replaced_its_tokens(
    text: list[int], path: list[int], expected: list[int]
) -> None:
    rest = LastDraft(2, [31, 32, 33])
    found = rest.after(TokenContext(text).along(path))
    assert found == expected
    teller, context = make(rest=rest, text=text)
    assert teller(context.along(path)) == expected
    assert len(LastDraft(0, list(range(40))).after(TokenContext([0]))) == MOST


def test_a_lookup_that_is_surer_comes_before_the_rest_of_a_draft() -> None:
    rest = LastDraft(len(TEXT) - 1, [60, 61, 62])
    sure, unsure = (Lookup([9], [-1], [said]) for said in (0.9, OF_A_REST / 2))
    assert make(sure, rest=rest)[0](TokenContext(TEXT)) == [9]
    assert make(unsure, rest=rest)[0](TokenContext(TEXT)) == [61, 62]
    assert make(unsure)[0](TokenContext(TEXT)) == [9]


def test_it_learns_from_first_choices_as_far_as_they_were_drawn() -> None:
    controller = Told()
    teller, context = make(Lookup([9, 1, 2], [-1, 0, 1], [0.9, 0.8, 0.7]), controller=controller)
    assert teller(context) == [9, 1, 2]
    found = teller.learn(draft([9, 4, 1], [-1, -1, 0]))
    assert controller.told == [(1, 0.9, True), (2, 0.8, True)], "of the third nothing is known"
    assert (found.start, found.tokens) == (len(TEXT), [9, 1])
    controller.told.clear()
    found = teller.learn(draft([4, 9], [-1, -1]))
    assert controller.told == [(1, 0.9, False)], "a second choice is not what was drawn"
    assert found.tokens == [4]
    assert teller.learn(draft([], [])).tokens == []


def test_a_row_is_covered_as_far_as_lookups_find_it_once_the_text_has_come_to_it() -> None:
    teller, context = make()
    assert teller(context.along([60])) == []
    assert teller(context.along([60, 9, 1]))[:2] == [2, 3]
    assert teller.covered([60, 9, 1, 2, 3]) == 2, "two tokens that were found, behind three that were not"
    assert teller.covered([60, 9, 1, 2, 60]) == 1, "another one was drawn"
    assert teller.covered([61, 9, 1, 2, 3]) == 0, "this was never looked up"
    assert teller.covered([]) == 0
    teller(context.along([60, 9, 1, 2]))
    assert teller.covered([60, 9, 1, 2, 3]) == 2, "a token counts once, however often it was found"


def test_what_is_found_before_the_draft_or_too_unsurely_covers_nothing() -> None:
    teller, context = make(Lookup([9, 1, 2], [-1, 0, 1], [0.9, 0.9, 0.9]))
    assert teller(context) == [9, 1, 2]
    assert teller.covered([9, 1, 2]) == 0, "the step had that anyway"
    often = [5, 6, 5, 7, 5, 8, 5, 9, 5]
    teller, context = make(text=often)
    tokens = teller(context)
    assert tokens
    assert teller.covered(tokens) == 0, "one of many that followed"
