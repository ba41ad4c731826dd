"""Counts texts of a toy target from the whole loop, and compares them with their exact probabilities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from outrider.decoding.context import TokenContext
from outrider.decoding.events import TokenEvent
from outrider.decoding.loop import StepLoop
from outrider.decoding.request import Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import FloatArray
from outrider.decoding.verifiers.base import Verifier
from outrider.decoding.verifiers.distributions import siblings
from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.ngram import NgramDrafter
from outrider.engines.base import ForwardItem
from outrider.engines.step import CachedStepEngine
from outrider.policy.fixed import FixedController
from outrider.verify.gtest import GTest, g_test
from tests.conformance.drafters import TreeDrafter
from tests.support.enumeration import likeliest, with_replacement
from tests.support.toy_model import ToyModel

VOCAB, LENGTH, WIDTH = 3, 4, 3  # tokens that there are, that are written, that are drafted in a step


class QuickToy(ToyModel):
    """Remembers what it has said: there are few texts."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._said: dict[tuple[bytes, bytes], FloatArray] = {}

    def _logits(self, tokens: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> FloatArray:
        key = tokens.tobytes(), positions.tobytes()
        if key not in self._said:
            self._said[key] = super()._logits(tokens, positions)
        return self._said[key]


TARGET = QuickToy(VOCAB, 16, seed=1, sharpness=1.0)
DRAFT = QuickToy(VOCAB, 16, seed=2, sharpness=1.0, like=TARGET, similarity=0.3)
PROMPT = (0, 1, 2, 0, 1)

PARAMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "filtered": {"temperature": 1.3, "top_p": 0.9, "frequency_penalty": 0.4, "logit_bias": {1: 0.5}},
}
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "independent": lambda: DraftModelDrafter(DRAFT, draws="independent"),
    "coupled": lambda: DraftModelDrafter(DRAFT, draws="coupled"),
    "greedy": lambda: DraftModelDrafter(DRAFT, draws="greedy"),
    "ngram": lambda: NgramDrafter(2, 1),
    "tree": lambda: TreeDrafter(DRAFT, (2, 1), siblings),
    "tree with replacement": lambda: TreeDrafter(DRAFT, (2, 1), with_replacement),
    "tree of the likeliest": lambda: TreeDrafter(DRAFT, (2, 1), likeliest),
}


@cache
def probabilities(params: str) -> npt.NDArray[np.float64]:
    """float64[VOCAB ** LENGTH]: of each text after the prompt, by the chain rule."""
    sampler = Sampler(SamplingParams(**PARAMS[params]), VOCAB)
    probs = np.ones(1)
    for size in range(LENGTH):
        rows = np.zeros((VOCAB**size, VOCAB))
        for index, row in enumerate(rows):
            context = TokenContext(PROMPT)
            for i in range(size):
                context.append(index // VOCAB ** (size - 1 - i) % VOCAB)
            ids, parents = np.array(context.tokens, np.int32), np.arange(-1, len(PROMPT) + size - 1)
            last = np.array([len(ids) - 1], np.int32)
            item = ForwardItem(TARGET.new_cache(16), ids, parents.astype(np.int32), last)
            some, mass = sampler.distribution(TARGET.forward([item])[0][0], context)
            row[some] = mass
        probs = (probs[:, None] * rows).ravel()
    return probs


@dataclass(frozen=True)
class Sample:
    """counts: int64[VOCAB ** LENGTH] of each text; drafted, accepted: tokens of all texts together."""

    params: str
    counts: npt.NDArray[np.int64]
    drafted: int
    accepted: int

    def test(self) -> GTest:
        return g_test(self.counts, probabilities(self.params))


def sample(verifier: Verifier, drafter: Drafter, size: int, params: str = "plain") -> Sample:
    """Write `size` texts, each with a seed of its own."""
    engine = CachedStepEngine(TARGET)
    loop = StepLoop(engine, drafter, verifier, FixedController(WIDTH), clock=lambda: 0.0, max_num_seqs=100)
    wanted = SamplingParams(max_tokens=LENGTH, **PARAMS[params])
    texts: dict[str, int] = {}
    drafted = accepted = 0
    for event in loop.generate(Request(str(seed), PROMPT, wanted, seed=seed) for seed in range(size)):
        if isinstance(event, TokenEvent):
            texts[event.request_id] = texts.get(event.request_id, 0) * VOCAB + event.token_id
        else:
            assert event.error is None
            drafted += event.metrics.drafts.num_draft_tokens
            accepted += event.metrics.drafts.num_accepted_tokens
    counts = np.bincount(list(texts.values()), minlength=VOCAB**LENGTH)
    return Sample(params, counts, drafted, accepted)
