"""Drafters continue after tokens that are drafted already (a job's context with a path)."""

from __future__ import annotations

import pytest

from outrider.decoding.context import TokenContext
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.suffix import SuffixDrafter
from tests.support.toy_model import ToyModel

PARAMS = SamplingParams(temperature=0.7, max_tokens=40, ignore_eos=True)
PROMPT = (1, 2, 3, 4, 1, 2, 5, 6)


def model_drafter() -> DraftModelDrafter:
    return DraftModelDrafter(ToyModel(16, 64, seed=3, sharpness=2.0), chunk=3)


def begun(drafter: Drafter, text: tuple[int, ...] = PROMPT) -> tuple[Drafter, TokenContext]:
    drafter.begin(Request("r", text, PARAMS))
    return drafter, TokenContext(text)


def proposed(drafter: Drafter, context: TokenContext, budget: int = 5) -> list[int]:
    (draft,) = drafter.propose([ProposeJob("r", context, budget, Sampler(PARAMS, 16, seed=9))])
    return [int(token) for token in draft.tokens]


def test_a_lookup_includes_the_path() -> None:
    drafter, context = begun(NgramDrafter(2, 2))
    assert proposed(drafter, context.along([1, 2]), 3) == [5, 6, 1]
    assert proposed(drafter, context.along([2, 3]), 1) == [4]
    assert proposed(drafter, context.along([7]), 3) == []
    assert proposed(drafter, context.along([1]), 3) == []


def test_a_suffix_is_looked_up_with_the_path() -> None:
    drafter, context = begun(SuffixDrafter(tree=False))
    assert proposed(drafter, context.along([2, 3]), 1) == [4]
    assert proposed(drafter, context.along([3, 4, 1]), 2) == [2, 5]
    assert proposed(drafter, context.along([7]), 3) == []


def test_a_lookup_may_match_across_the_end_of_the_text() -> None:
    drafter, context = begun(NgramDrafter(3, 1), (7, 8, 9, 4, 7))
    assert proposed(drafter, context.along([8]), 6) == [9, 4, 7, 8, 9, 4]


@pytest.mark.parametrize("make", [model_drafter, lambda: NgramDrafter(3, 1), SuffixDrafter])
def test_a_path_that_was_not_kept_has_no_effect(make: type[Drafter]) -> None:
    drafter, context = begun(make())
    proposed(drafter, context.along([3, 4, 1]))
    proposed(drafter, context.along([9]))
    for token in (2, 3):
        context.append(token)
    fresh, same = begun(make())
    for token in (2, 3):
        same.append(token)
    assert proposed(drafter, context) == proposed(fresh, same) != []


def test_a_draft_model_drafts_after_offered_tokens_as_if_they_were_emitted() -> None:
    drafter, context = begun(model_drafter())
    continued = proposed(drafter, context.along([9, 3]))
    fresh, same = begun(model_drafter())
    for token in (9, 3):
        same.append(token)
    assert continued == proposed(fresh, same)
    for token in (9, 3):  # they did come: its cache has them already
        context.append(token)
    assert proposed(drafter, context) == continued


def test_a_draft_model_keeps_within_its_context() -> None:
    drafter, context = begun(DraftModelDrafter(ToyModel(16, 10, seed=3)))
    assert len(proposed(drafter, context)) == 3
    assert len(proposed(drafter, context.along([1, 2]))) == 1
    assert proposed(drafter, context.along([1, 2, 3])) == []
