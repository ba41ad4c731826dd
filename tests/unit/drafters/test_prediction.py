from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.config.speculative import parse_speculative
from outrider.decoding.context import TokenContext
from outrider.decoding.controller import DraftLimits
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Draft, StepRecord
from outrider.decoding.verifiers.base import check_draft
from outrider.drafters.auto import AutoDrafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.output_pool import SEPARATOR
from outrider.drafters.prediction import PredictionDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.drafters.with_prediction import PREFERRED, WithPrediction
from outrider.drafting import make_drafting, make_lookup
from outrider.policy.auto import AutoController
from outrider.policy.cost_model import CostModel
from outrider.policy.tree import Lookup

SAMPLER = Sampler(SamplingParams(), 256)
PROMPT = [200, 201, 202]
tokens = st.lists(st.integers(0, 5), min_size=1, max_size=60)


def start(
    drafter: Any, prediction: Sequence[int], name: str = "r", prompt: Sequence[int] = PROMPT
) -> TokenContext:
    drafter.begin(Request(name, tuple(prompt), SamplingParams(), prediction=tuple(prediction)))
    return TokenContext(prompt)


def write(context: TokenContext, written: Sequence[int]) -> TokenContext:
    for token in written:
        context.append(token)
    return context


def look(drafter: PredictionDrafter, context: TokenContext, budget: int = 8, name: str = "r") -> Lookup:
    found = drafter.lookup(ProposeJob(name, context, budget, SAMPLER), budget)
    assert found is not None
    return found


def test_the_first_draft_is_the_predictions_beginning() -> None:
    drafter = PredictionDrafter()
    found = look(drafter, start(drafter, range(1, 40)))
    assert found.tokens == [*range(1, 9)]
    assert found.parents == [*range(-1, 7)]
    assert min(found.confidence) > 0.9, "nothing agrees yet, but it is said to be the answer"


def test_a_text_is_followed_and_only_new_tokens_are_read() -> None:
    drafter = PredictionDrafter()
    context = start(drafter, range(1, 40))
    look(drafter, context)
    assert look(drafter, write(context, [1, 2, 3])).tokens == [*range(4, 12)]
    assert look(drafter, context).tokens == [*range(4, 12)], "to look again changes nothing"
    assert look(drafter, write(context, range(4, 38)), 8).tokens == [38, 39]
    assert look(drafter, write(context, [38, 39])).tokens == [], "it is used up"


def test_the_place_is_found_again_behind_a_change() -> None:
    drafter = PredictionDrafter()
    context = start(drafter, range(1, 40))
    assert look(drafter, write(context, [1, 2, 3, 4, 99])).tokens == [], "a token that is not in it"
    replaced = look(drafter, write(context, [6]))
    assert replaced.tokens[:2] == [7, 8]
    assert replaced.confidence[0] < 0.9, "one token that agrees is no proof"
    assert look(drafter, write(context, [7, 8, 9])).tokens[:3] == [10, 11, 12]
    left_out = look(drafter, write(context, [30, 31, 32]))
    assert left_out.tokens[:3] == [33, 34, 35]
    inserted = write(context, [*range(100, 140), 33, 34])
    assert look(drafter, inserted).tokens[:3] == [35, 36, 37]


@pytest.mark.parametrize(("left_at", "expected"), [(1, 50), (2, 60), (3, 70)])
def test_of_places_that_look_alike_the_nearest_counts(left_at: int, expected: int) -> None:
    """The same line stands three times; the text changes the line before it."""
    same = [*range(10, 16)]
    prediction = [1, 21, *same, 50, 51, 52, 2, 22, *same, 60, 61, 62, 3, 23, *same, 70, 71, 72]
    drafter = PredictionDrafter(tree=False)
    at = prediction.index(left_at)
    context = write(start(drafter, prediction), [*prediction[: at + 1], 99, *same])
    assert look(drafter, context).tokens[0] == expected


def test_places_that_look_alike_are_branches() -> None:
    drafter = PredictionDrafter()
    context = start(drafter, [1, 2, 3, 4, 7, 8, 1, 2, 3, 5])
    found = look(drafter, write(context, [9, 1, 2, 3]))
    roots = [t for t, parent in zip(found.tokens, found.parents, strict=True) if parent < 0]
    assert roots == [4, 5], "the nearest first"
    chain = PredictionDrafter(tree=False)
    assert chain.needs == frozenset()
    found = look(chain, write(start(chain, [1, 2, 3, 4, 7, 8, 1, 2, 3, 5]), [9, 1, 2, 3]))
    assert found.parents == [*range(-1, len(found.tokens) - 1)]


def test_tokens_that_a_constraint_drafts_are_gone_along() -> None:
    drafter = PredictionDrafter()
    context = write(start(drafter, range(1, 40)), [1, 2])
    assert look(drafter, context.along([3, 4])).tokens[0] == 5
    assert look(drafter, context.along([3, 77])).tokens == []
    assert look(drafter, context.along([77, 20, 21])).tokens[0] == 22
    assert look(drafter, context).tokens[0] == 3, "they are not the text's yet"


def test_nothing_follows_the_end_of_a_text() -> None:
    drafter = PredictionDrafter()
    context = start(drafter, [1, 2, 3, 4])
    ending = Sampler(SamplingParams(), 256, eos_ids=[2])
    found = drafter.lookup(ProposeJob("r", context, 8, ending), 8)
    assert found is not None
    assert found.tokens == [1, 2]


def test_a_request_without_a_prediction_is_left_alone() -> None:
    drafter = PredictionDrafter()
    context = start(drafter, [])
    assert drafter.lookup(ProposeJob("r", context, 8, SAMPLER), 8) is None
    (draft,) = drafter.propose([ProposeJob("r", context, 8, SAMPLER)])
    assert len(draft) == 0
    assert drafter.nbytes == 0


def test_predictions_are_their_requests_own_and_forgotten_at_the_end() -> None:
    drafter = PredictionDrafter()
    context, other = start(drafter, range(1, 9), "a"), start(drafter, range(50, 60), "b")
    assert look(drafter, context, name="a").tokens[0] == 1
    assert look(drafter, write(other, [2, 3, 4]), name="b").tokens == []
    one = drafter.nbytes
    assert one > 0
    drafter.end("a")
    drafter.end("a")  # ends are forgiven
    assert 0 < drafter.nbytes < one
    assert drafter.lookup(ProposeJob("a", context, 8, SAMPLER), 8) is None


@given(tokens, tokens, st.integers(1, 20), st.booleans())
def test_any_prediction_gives_drafts_that_an_engine_can_score(
    prediction: list[int], written: list[int], budget: int, tree: bool
) -> None:
    drafter = PredictionDrafter(tree=tree)
    context = start(drafter, prediction)
    for token in written:
        (draft,) = drafter.propose([ProposeJob("r", context, budget, SAMPLER)])
        assert len(check_draft(draft, 256, budget, tree=tree)) == len(draft)
        assert set(draft.tokens.tolist()) <= set(prediction)
        context.append(token)


@given(tokens, st.data())
def test_what_repeats_the_prediction_is_all_drafted(prediction: list[int], data: st.DataObject) -> None:
    """Whatever is in it, and however far each step gets: the cursor never loses a text that follows it."""
    drafter = PredictionDrafter(tree=False)
    context = start(drafter, prediction)
    while len(context.output) < len(prediction):
        left = prediction[len(context.output) :]
        found = look(drafter, context).tokens
        assert found
        assert found == left[: len(found)]
        write(context, left[: data.draw(st.integers(1, 9))])


# --- Under `auto` ------------------------------------------------------------------------------------------


def test_the_first_step_drafts_from_it_and_others_are_not_told_of_it() -> None:
    choice = parse_speculative("auto")
    costs = CostModel({1: 0.05, 2: 0.055, 4: 0.065, 8: 0.08, 16: 0.12})  # of a 1.5B target on two cores
    ticks = itertools.count()
    made = make_drafting(choice, lambda: costs, None, make_lookup(choice), lambda: next(ticks) / 1e4)
    assert made.names == ("suffix",), "what a request can choose"
    assert isinstance(made.controller, AutoController)
    assert isinstance(made.drafter, AutoDrafter)
    for name, prediction in (("a", range(1, 40)), ("b", [])):
        context = start(made.drafter, prediction, name)
        state = made.controller.begin()
        (budget,) = made.controller.choose([DraftLimits(state, 39, len(PROMPT))])
        job = ProposeJob(name, context, budget, SAMPLER, state=state)
        (draft,) = made.drafter.propose([job])
        made.controller.record(state, StepRecord(draft.source, len(draft), 0, 1, 0.0, 0.05, 0.0))
        told = made.controller.explain(state)
        if prediction:
            assert draft.tokens.tolist() == [*range(1, 1 + len(draft))]
            assert len(draft) >= 5
            assert draft.source == "prediction"
            assert "prediction in 1" in told
        else:
            assert len(draft) == 0
            assert "suffix found nothing" in told
            assert "prediction" not in told


# --- Beside other drafters ---------------------------------------------------------------------------------


def shared() -> SuffixDrafter:
    return SuffixDrafter(namespace=lambda _: "all")


class Leaks(WithPrediction):
    """A broken twin: the other drafter reads the prediction as if it had been written."""

    def begin(self, request: Request) -> None:
        super().begin(request)
        self._mixed, self._taken = TokenContext([*request.prompt, *request.prediction]), len(request.prompt)

    def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
        (job,) = jobs
        write(self._mixed, job.context.tokens[self._taken :])
        self._taken = len(job.context.tokens)
        return self._drafter.propose([replace(job, context=self._mixed)])


def leaks(kind: type[WithPrediction]) -> bool:
    """Whether a prediction reaches the shared outputs or what counts as a request's own text."""
    lookup = shared()
    drafter = kind(lookup, PredictionDrafter())
    context = start(drafter, range(100, 140), "a")
    for token in [7, *range(100, 120), 8]:
        drafter.propose([ProposeJob("a", context, 8, SAMPLER)])
        context.append(token)
    drafter.propose([ProposeJob("a", context, 8, SAMPLER)])
    copied = lookup._sequences["a"].tracker.copied
    drafter.end("a")
    pool = lookup.pool.get("all")
    assert pool is not None
    return copied > 0 or pool.tokens != [*PROMPT, 7, *range(100, 120), 8, SEPARATOR]


def test_a_prediction_reaches_neither_shared_outputs_nor_the_requests_own_text() -> None:
    assert not leaks(WithPrediction)
    lookup = shared()
    drafter = WithPrediction(lookup, PredictionDrafter())
    context = start(drafter, range(100, 140), "a")
    drafter.propose([ProposeJob("a", context, 8, SAMPLER)])
    write(context, [1, 2, 3])
    drafter.end("a")
    other = start(drafter, [], "b", [*range(100, 120)])
    (draft,) = drafter.propose([ProposeJob("b", other, 8, SAMPLER)])
    assert len(draft) == 0


def test_a_drafter_that_leaks_is_caught() -> None:
    assert leaks(Leaks)


def test_tokens_after_the_last_lookup_are_shared_too() -> None:
    lookup = shared()
    drafter = WithPrediction(lookup, PredictionDrafter())
    context = start(drafter, range(100, 140), "a")
    drafter.propose([ProposeJob("a", context, 8, SAMPLER)])
    write(context, range(100, 110))
    drafter.end("a")
    pool = lookup.pool.get("all")
    assert pool is not None
    assert pool.tokens == [*PROMPT, *range(100, 110), SEPARATOR]


def test_the_other_drafter_drafts_where_the_text_does_not_follow() -> None:
    drafter = WithPrediction(NgramDrafter(2, 1), PredictionDrafter())
    assert drafter.name == "ngram"
    assert drafter.needs == {"tree_attention"}
    context = start(drafter, range(1, 40), "r", [200, 201, 202, 203, 204])

    def draft() -> tuple[str, list[int]]:
        (found,) = drafter.propose([ProposeJob("r", context, 3, SAMPLER)])
        return found.source, found.tokens.tolist()

    assert draft() == ("prediction", [1, 2, 3])
    write(context, [200, 201])
    assert draft() == ("ngram", [202, 203, 204])
    write(context, [202, 7])
    assert draft() == ("prediction", [8, 9, 10]), "the other has no idea"
    context.append(201)  # as in the prompt
    assert draft()[0] == "ngram"
    write(context, range(20, 20 + PREFERRED))
    assert draft()[0] == "prediction"
    chosen = ProposeJob("r", context, 3, SAMPLER, drafters=frozenset({"ngram"}))
    assert drafter.propose([chosen])[0].source == "ngram"
