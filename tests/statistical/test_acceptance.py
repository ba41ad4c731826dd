"""The acceptance rate of each rule, against its known value.

Of one drafted token, with D the total-variation distance between target p and draft q:
`rejection` and `block` accept 1 - D, which no rule can exceed; `coupled` accepts
sum over x of 1 / sum over y of max(p(y) / p(x), q(y) / q(x)), which is at least (1 - D) / (1 + D), and no
rule whose two draws do not know of each other's distribution can promise more (Daliri, Musco and Suresh,
"Coupling without communication and drafter-invariant speculative decoding", 2024).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Draft, TargetScores
from outrider.decoding.verifiers.base import VERIFIERS
from tests.statistical.texts import DRAFTERS, sample

Floats = npt.NDArray[np.float64]
DRAWS = 1000


def coupled(p: Floats, q: Floats) -> float:
    """The chance that Gumbel noise, shared, makes both draw the same token."""
    both = np.flatnonzero((p > 0) & (q > 0))
    return sum((1.0 / float(np.maximum(p / p[x], q / q[x]).sum()) for x in both), 0.0)


def overlap(p: Floats, q: Floats) -> float:
    return float(np.minimum(p, q).sum())


def pair(seed: int, vocab: int, spread: float) -> tuple[Floats, Floats]:
    logits = spread * np.random.default_rng(seed).normal(size=(2, vocab))
    mass = np.exp(logits - logits.max(axis=1, keepdims=True))
    p, q = mass / mass.sum(axis=1, keepdims=True)
    return np.asarray(p), np.asarray(q)


@given(st.integers(0, 10**6), st.integers(1, 40), st.sampled_from([0.1, 1.0, 3.0, 10.0]))
def test_coupling_lies_between_its_bounds(seed: int, vocab: int, spread: float) -> None:
    p, q = pair(seed, vocab, spread)
    most = overlap(p, q)
    assert most / (2.0 - most) - 1e-12 <= coupled(p, q) <= most + 1e-12
    assert coupled(p, p) == pytest.approx(1.0)


def far(accepted: int, probability: float, size: int = DRAWS) -> float:
    """How many standard deviations a count of accepted tokens lies from its mean."""
    return abs(accepted - size * probability) / math.sqrt(size * probability * (1.0 - probability))


@pytest.mark.parametrize("spread", [0.7, 2.0])
def test_each_rule_accepts_as_often_as_it_should(spread: float) -> None:
    p, q = pair(11, 6, spread)
    scores = TargetScores(np.log(np.stack([p, p])).astype(np.float32))
    draft_row = np.log(q).astype(np.float32)
    rules = {name: make() for name, make in VERIFIERS.items()}
    accepted = dict.fromkeys([*rules, "coupled, another noise"], 0)
    context = TokenContext([0])
    stated = Sampler(SamplingParams(), 6).distribution(draft_row, context)
    for seed in range(DRAWS):
        sampler = Sampler(SamplingParams(), 6, seed=seed)
        shared, own = sampler.token(draft_row, context), StepRandomness(seed, 1).draft_token(stated, 0)
        for name, rule in rules.items():
            drawn, probs = (own, (stated,)) if rule.draft_probs else (shared, None)
            draft = Draft.chain([drawn], "test", probs)
            accepted[name] += len(rule.verify(draft, scores, sampler, context).path)
        free = rules["coupled"].verify(Draft.chain([own], "test"), scores, sampler, context)
        accepted["coupled, another noise"] += len(free.path)
    assert far(accepted["coupled"], coupled(p, q)) < 4.0
    assert far(accepted["rejection"], overlap(p, q)) < 4.0
    assert far(accepted["block"], overlap(p, q)) < 4.0
    assert far(accepted["coupled, another noise"], float(p @ q)) < 4.0  # the twin: a draft with its own noise
    assert far(accepted["coupled, another noise"], coupled(p, q)) > 4.0


def test_of_longer_drafts_block_keeps_most() -> None:
    kept = {}
    for rule, drafter in (("coupled", "coupled"), ("rejection", "independent"), ("block", "independent")):
        found = sample(VERIFIERS[rule](), DRAFTERS[drafter](), 700)
        kept[rule] = found.accepted / found.drafted
    assert kept["coupled"] < kept["rejection"] < kept["block"]
