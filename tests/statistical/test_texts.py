"""Over seeds, texts have the target's probabilities, whatever the rule and the drafter.

Each case is one G-test of the joint distribution of all the tokens of a text, which takes more than a step to
write. The seeds are fixed, so a case fails always or never; ALPHA, over all cases together, is the chance
that a sound system would have been given seeds that fail. Power: see `test_the_tests_power`.
"""

from __future__ import annotations

import pytest

from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.sampling.rng import ACCEPT, DRAFT
from outrider.decoding.verifiers.base import VERIFIERS
from outrider.decoding.verifiers.block import BlockVerifier
from outrider.decoding.verifiers.rejection import RejectionVerifier
from outrider.drafters import draft_model
from outrider.verify.gtest import detectable
from tests.conformance.test_broken_twins import AcceptsOneTooMany
from tests.statistical.texts import DRAFTERS, LENGTH, sample

SIZE, TWIN_SIZE = 700, 800
CASES = [
    ("coupled", "coupled", "plain"),
    ("coupled", "tree of the likeliest", "filtered"),
    ("rejection", "independent", "plain"),
    ("rejection", "independent", "filtered"),
    ("rejection", "greedy", "filtered"),
    ("rejection", "ngram", "plain"),
    ("rejection", "tree", "plain"),
    ("rejection", "tree with replacement", "filtered"),
    ("rejection", "tree of the likeliest", "plain"),
    ("block", "independent", "plain"),
    ("block", "independent", "filtered"),
    ("block", "greedy", "plain"),
    ("block", "ngram", "filtered"),
]
ALPHA = 0.01
BAR = ALPHA / len(CASES)  # Bonferroni's correction


@pytest.mark.grid(4)
@pytest.mark.parametrize(("rule", "drafter", "params"), CASES)
def test_texts_come_with_the_targets_probabilities(rule: str, drafter: str, params: str) -> None:
    found = sample(VERIFIERS[rule](), DRAFTERS[drafter](), SIZE, params)
    assert found.counts.sum() == SIZE
    assert 0 < found.accepted < found.drafted
    assert found.accepted / SIZE < LENGTH - 1.2  # so texts take more than 1.2 steps on average
    assert found.test().p > BAR


def test_the_tests_power() -> None:
    """With 95% power a case sees any distribution at a total-variation distance of 0.17 or more."""
    found = sample(VERIFIERS["rejection"](), DRAFTERS["independent"](), SIZE)
    assert detectable(found.test().degrees, SIZE, BAR) < 0.17


# --- Broken twins ------------------------------------------------------------------------------------------


class DraftsAndAcceptsByOneNumber(StepRandomness):
    """Accepts a node by the number that it was drawn with."""

    def uniform(self, purpose: int, number: int) -> float:
        return super().uniform(DRAFT, number)


class OneNumberForAllNodes(StepRandomness):
    def uniform(self, purpose: int, number: int) -> float:
        return super().uniform(purpose, 0)


class RecoversByTheNumberThatRejected(StepRandomness):
    def uniform(self, purpose: int, number: int) -> float:
        return super().uniform(ACCEPT, number)


class TheSameInEveryStep(StepRandomness):
    def __init__(self, seed: int, position: int) -> None:
        super().__init__(seed, 0)


class AcceptsAlways(StepRandomness):
    def accepts(self, probability: float, node: int) -> bool:
        return True


class Generous(StepRandomness):
    """Accepts a little more often than it should."""

    def accepts(self, probability: float, node: int) -> bool:
        return super().accepts(1.5 * probability, node)


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    ("rule", "twin"),
    [
        (RejectionVerifier, DraftsAndAcceptsByOneNumber),
        (BlockVerifier, DraftsAndAcceptsByOneNumber),
        (RejectionVerifier, OneNumberForAllNodes),
        (RejectionVerifier, RecoversByTheNumberThatRejected),
        (RejectionVerifier, TheSameInEveryStep),
        (BlockVerifier, TheSameInEveryStep),
        (BlockVerifier, AcceptsAlways),
        (RejectionVerifier, Generous),
    ],
)
def test_a_rule_with_bad_numbers_is_caught(
    rule: type[RejectionVerifier] | type[BlockVerifier], twin: type[StepRandomness]
) -> None:
    assert sample(rule(twin), DRAFTERS["independent"](), TWIN_SIZE).test().p < BAR


@pytest.mark.parametrize("rule", [RejectionVerifier, BlockVerifier])
def test_a_draft_with_bad_numbers_is_caught(
    rule: type[RejectionVerifier] | type[BlockVerifier], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_model, "StepRandomness", OneNumberForAllNodes)
    assert sample(rule(), DRAFTERS["independent"](), TWIN_SIZE).test().p < BAR


def test_a_draft_that_states_less_than_it_drew_by_is_right_and_more_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A draft model that takes its likeliest token but states the whole distribution."""
    monkeypatch.setattr(StepRandomness, "draft_token", lambda self, q, node: int(q.ids[q.probs.argmax()]))
    assert sample(RejectionVerifier(), DRAFTERS["independent"](), TWIN_SIZE).test().p < BAR
    assert sample(RejectionVerifier(), DRAFTERS["greedy"](), TWIN_SIZE).test().p > BAR


def test_accepting_one_too_many_is_caught() -> None:
    assert sample(AcceptsOneTooMany(), DRAFTERS["coupled"](), TWIN_SIZE).test().p < BAR
