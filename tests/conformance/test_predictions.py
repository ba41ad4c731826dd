"""A prediction changes nothing but the speed: any one, beside any drafter, under every acceptance rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding.verifiers.base import VERIFIERS, Verifier
from outrider.drafters.auto import AutoDrafter
from outrider.drafters.base import Drafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.prediction import PredictionDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.drafters.with_prediction import WithPrediction
from outrider.policy.cost_model import CostModel
from outrider.policy.planner import Planner
from tests.conformance.engines import Models, toy_models
from tests.conformance.harness import PARAMS, PROMPTS, Output, requests, run, tick, visible
from tests.conformance.test_broken_twins import AcceptsOneTooMany, RowsOfTheWrongNode, TrustsTheDraft

VOCAB = 48
EXACT = [(rule, params) for params in PARAMS for rule in VERIFIERS if rule == "coupled" or "greedy" in params]


def auto() -> Drafter:
    """With costs that make drafting worth its while."""
    planner = Planner(CostModel({1: 1e-2, 16: 1.1e-2}))
    planner.add_lookup("prediction", optional=True)
    planner.add_lookup("suffix")
    return AutoDrafter(planner, [PredictionDrafter(), SuffixDrafter()], clock=tick())


def chains(rule: str) -> bool:
    return not VERIFIERS[rule]().trees


MAKERS: dict[str, Callable[[bool], Drafter]] = {
    "alone": lambda tree: PredictionDrafter(tree=tree),
    "ngram": lambda tree: WithPrediction(NgramDrafter(3, 1), PredictionDrafter(tree=tree)),
    "suffix": lambda tree: WithPrediction(SuffixDrafter(tree=tree), PredictionDrafter(tree=tree)),
    "auto": lambda tree: auto(),
}


@cache
def models() -> Models:
    return toy_models()


@cache
def plain(params: str, seed: int, rule: str) -> dict[str, Output]:
    made = [replace(request, seed=request.seed + seed) for request in requests(PARAMS[params])]
    return run(models().engine(), None, made, verifier=VERIFIERS[rule]())


def predicted(
    params: str, seed: int, predictions: Sequence[Sequence[int]], drafter: Drafter, verifier: Verifier
) -> dict[str, Output]:
    made = [
        replace(request, seed=request.seed + seed, prediction=tuple(prediction))
        for request, prediction in zip(requests(PARAMS[params]), predictions, strict=True)
    ]
    return run(models().engine(), drafter, made, length=5, verifier=verifier)


tokens = st.lists(st.integers(0, VOCAB - 1), max_size=40)


@st.composite
def edits(draw: st.DrawFn, text: list[int]) -> list[int]:
    """A text with parts of it replaced, left out, put in, or said twice."""
    found = list(text)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(found)))
        to = draw(st.integers(at, min(len(found), at + 8)))
        part = draw(st.one_of(tokens, st.just(found[at:to] * 3), st.just([3, 5])))  # 3 and 5 end texts
        found[at:to] = part[:12]
    return found


@pytest.mark.grid(4)
@pytest.mark.parametrize(("rule", "params"), EXACT)
@pytest.mark.parametrize("maker", MAKERS)
@settings(max_examples=2, deadline=None)
@given(data=st.data())
def test_no_prediction_changes_a_text(maker: str, rule: str, params: str, data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 3))
    expected = plain(params, seed, rule)
    texts = [expected[str(i)].tokens for i in range(len(PROMPTS))]
    predictions = [data.draw(st.one_of(tokens, edits(text))) for text in texts]
    drafter = MAKERS[maker](not chains(rule) and maker != "ngram")
    found = predicted(params, seed, predictions, drafter, VERIFIERS[rule]())
    assert visible(found) == visible(expected)


@pytest.mark.parametrize("maker", MAKERS)
def test_a_right_prediction_saves_passes_and_is_counted(maker: str) -> None:
    expected = plain("temperature", 0, "coupled")
    texts = [expected[str(i)].tokens for i in range(len(PROMPTS))]
    for predictions, right in ((texts, True), ([[(t + 1) % VOCAB for t in text] for text in texts], False)):
        found = predicted("temperature", 0, predictions, MAKERS[maker](True), VERIFIERS["coupled"]())
        assert visible(found) == visible(expected)
        for output in found.values():
            assert output.end is not None
            metrics = output.end.metrics
            size = len(output.tokens)
            accepted, rejected = metrics.accepted_prediction_tokens, metrics.rejected_prediction_tokens
            if right:
                assert metrics.num_passes <= -(-size // 3)
                assert accepted >= size // 2
                assert accepted <= output.kinds.count("accepted")
            else:
                assert rejected > 0 or maker == "auto", "which soon drafts no more of it"
                assert accepted < size // 2


def test_an_end_within_a_draft_counts_no_token_beyond_it() -> None:
    """A text that ends in the middle of an accepted draft: only what was emitted is accepted."""
    expected = plain("stop strings", 0, "coupled")
    texts = [[*expected[str(i)].tokens, 1, 2, 3] for i in range(len(PROMPTS))]
    found = predicted("stop strings", 0, texts, PredictionDrafter(), VERIFIERS["coupled"]())
    for output in found.values():
        assert output.end is not None
        assert output.end.metrics.accepted_prediction_tokens == output.kinds.count("accepted")


@pytest.mark.parametrize("verifier", [AcceptsOneTooMany(), TrustsTheDraft(), RowsOfTheWrongNode()])
def test_a_broken_verifier_is_caught_with_predictions_alone(verifier: Verifier) -> None:
    """Else the property above would say nothing."""
    expected = plain("temperature", 0, "coupled")
    texts = [expected[str(i)].tokens for i in range(len(PROMPTS))]
    mixed = [[t if i % 5 else (t + 1) % VOCAB for i, t in enumerate(text)] for text in texts]
    caught = False
    for predictions in (texts, mixed):
        try:
            found = predicted("temperature", 0, predictions, PredictionDrafter(), verifier)
        except ValueError:
            caught = True
        else:
            caught = caught or visible(found) != visible(expected)
    assert caught
