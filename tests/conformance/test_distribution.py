"""Coupled sampling is also exact in distribution: over seeds, texts have the target's probabilities."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from outrider.decoding.events import TokenEvent
from outrider.decoding.loop import StepLoop
from outrider.decoding.request import Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.verifiers.coupled import CoupledVerifier
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.engines.base import ForwardItem
from outrider.engines.step import CachedStepEngine
from outrider.policy.fixed import FixedController
from tests.conformance.test_broken_twins import AcceptsOneTooMany
from tests.support.toy_model import ToyModel

VOCAB, TEXTS, LENGTH = 4, 600, 3
TARGET = ToyModel(VOCAB, 16, seed=1, sharpness=1.2)
DRAFT = ToyModel(VOCAB, 16, seed=2, sharpness=1.2, like=TARGET, similarity=0.3)
PROMPT = (1, 3)


def probabilities() -> npt.NDArray[np.float64]:
    """float64[VOCAB ** 3]: of each text of three tokens after the prompt, by the chain rule."""
    probs = np.ones(1)
    for size in range(LENGTH):
        rows = []
        for index in range(VOCAB**size):
            text = [*PROMPT, *(index // VOCAB ** (size - 1 - i) % VOCAB for i in range(size))]
            ids, parents = np.array(text, np.int32), np.arange(-1, len(text) - 1, dtype=np.int32)
            item = ForwardItem(TARGET.new_cache(16), ids, parents, np.array([len(text) - 1], np.int32))
            weights = np.exp(TARGET.forward([item])[0][0].astype(np.float64))
            rows.append(weights / weights.sum())
        probs = (probs[:, None] * np.array(rows)).ravel()
    return probs


def excess(verifier: CoupledVerifier) -> float:
    """How many standard deviations Pearson's statistic of the texts lies above its mean."""
    engine = CachedStepEngine(TARGET)
    drafter = DraftModelDrafter(DRAFT)
    loop = StepLoop(engine, drafter, verifier, FixedController(2), clock=lambda: 0.0, max_num_seqs=100)
    params = SamplingParams(max_tokens=LENGTH)
    texts: dict[str, int] = {}
    for event in loop.generate(Request(str(seed), PROMPT, params, seed=seed) for seed in range(TEXTS)):
        if isinstance(event, TokenEvent):
            texts[event.request_id] = texts.get(event.request_id, 0) * VOCAB + event.token_id
    counts = np.bincount(list(texts.values()), minlength=VOCAB**LENGTH)
    expected = TEXTS * probabilities()
    order = np.argsort(expected)
    rare = order[: int(np.searchsorted(np.cumsum(expected[order]), 10.0)) + 1]  # lumped into one cell
    common = np.setdiff1d(order, rare)
    found = np.append(counts[common], counts[rare].sum())
    wanted = np.append(expected[common], expected[rare].sum())
    degrees = len(found) - 1
    return float((((found - wanted) ** 2 / wanted).sum() - degrees) / (2 * degrees) ** 0.5)


def test_texts_come_with_the_targets_probabilities() -> None:
    assert abs(excess(CoupledVerifier())) < 4.0


def test_a_verifier_that_accepts_one_too_many_is_caught() -> None:
    assert excess(AcceptsOneTooMany()) > 20.0
