from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.randomness import StepRandomness, sample_inverse_cdf
from outrider.decoding.sampling.rng import ACCEPT, DRAFT, NEXT, gumbel, uniforms
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Distribution
from outrider.decoding.verifiers.distributions import positive_excess, ratio, residual, siblings
from outrider.errors import ConfigError, ModelError
from tests.unit.decoding.test_rng import one_block
from tests.unit.decoding.test_sampler import cases, context_of

VOCAB = 7
MOST = 1.0 - 2.0**-53  # the greatest uniform
WEIGHTS = st.lists(st.sampled_from([0.0, 0.0, 1e-300, 1e-16, 0.3, 1.0, 5.0]), min_size=VOCAB, max_size=VOCAB)
UNIFORMS = st.floats(0.0, MOST) | st.sampled_from([0.0, MOST])


@st.composite
def distributions(draw: st.DrawFn) -> Distribution:
    """Some of the tokens 0 .. VOCAB - 1, some of them with probability 0."""
    weights = np.array(draw(WEIGHTS.filter(lambda w: max(w) > 0.1)))
    ids = np.flatnonzero((weights > 0) | (np.arange(VOCAB) % 2 == draw(st.integers(0, 2))))
    return Distribution(ids, weights[ids] / weights.sum())


def dense(distribution: Distribution) -> npt.NDArray[np.float64]:
    row = np.zeros(VOCAB)
    row[distribution.ids] = distribution.probs
    return row


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (2**64 - 1, 2**40 + 3), (12345, 77)])
def test_uniforms_match_the_docstring(seed: int, position: int) -> None:
    for purpose in (DRAFT, ACCEPT, NEXT):
        found = uniforms(seed, position, purpose, np.array([0, 9]))
        for number, value in zip((0, 9), found.tolist(), strict=True):
            high, low = one_block(seed, purpose, position, number)[:2]
            assert value == ((high // 32) * 2**26 + low // 64) / 2**53


def test_uniforms_are_uniform_and_below_one() -> None:
    values = np.sort(uniforms(3, 8, ACCEPT, np.arange(50_000)))
    assert values[0] >= 0.0
    assert values[-1] < 1.0
    assert np.abs(values - (np.arange(50_000) + 0.5) / 50_000).max() * 50_000**0.5 < 1.95


def test_each_draw_of_each_step_has_its_own_number() -> None:
    asked = [(purpose, number) for purpose in (DRAFT, ACCEPT, NEXT) for number in range(40)]
    steps = [StepRandomness(seed, position) for seed in (1, 2) for position in (5, 6)]
    found = [step.uniform(*which) for step in steps for which in asked]
    assert len(set(found)) == len(found)
    again = StepRandomness(1, 5)
    assert [again.uniform(*which) for which in asked] == found[:120]


def test_chance_decides_by_its_numbers() -> None:
    randomness, even = StepRandomness(7, 3), Distribution(np.arange(1000), np.full(1000, 0.001))
    for node in range(40):
        assert randomness.draft_token(even, node) == int(randomness.uniform(DRAFT, node) * 1000)
        at = randomness.uniform(ACCEPT, node)
        assert not randomness.accepts(at, node)
        assert randomness.accepts(float(np.nextafter(at, 1.0)), node)
        assert randomness.accepts(1.0, node)
        assert not randomness.accepts(0.0, node)
    assert randomness.next_token(even) == int(randomness.uniform(NEXT, 0) * 1000)


@given(distributions(), UNIFORMS)
def test_pick_lays_shares_out_by_id(distribution: Distribution, uniform: float) -> None:
    token = sample_inverse_cdf(distribution, uniform)
    assert distribution.of(token) > 0.0
    before, upto = dense(distribution)[:token].sum(), dense(distribution)[: token + 1].sum()
    assert before - 1e-15 <= uniform <= upto + 1e-15


@pytest.mark.parametrize("size", [1023, 1024, 1025, 5000])
def test_pick_lays_out_many_shares_too(size: int) -> None:
    """Wherever blocks begin and end, with tokens of probability 0 in between and wholly empty stretches."""
    generator = np.random.default_rng(size)
    for empty in (0.0, 0.5, 0.999):
        probs = generator.random(size) ** 9
        probs[generator.random(size) < empty] = 0.0
        probs[[0, -1]] = 0.0
        probs[int(generator.integers(1, size - 1))] += 0.1
        many = Distribution(np.arange(size) * 3, probs / probs.sum())
        ends = many.probs.cumsum()
        edges = ends[generator.integers(0, size, 200)] / ends[-1]
        below = np.nextafter(1.0, 0.0)
        for uniform in (0.0, below, *generator.random(200), *edges, *np.nextafter(edges, 0.0)):
            at = sample_inverse_cdf(many, min(float(uniform), float(below))) // 3
            assert many.probs[at] > 0.0
            assert ends[at] - many.probs[at] - 1e-13 <= uniform <= ends[at] + 1e-13


@given(distributions(), distributions(), st.sampled_from([1.0, 0.4, 0.0]))
def test_the_residual_is_what_is_left_over(p: Distribution, q: Distribution, scale: float) -> None:
    left = np.maximum(scale * dense(p) - dense(q), 0.0)
    np.testing.assert_array_equal(positive_excess(p, q, scale), left[p.ids])
    rest = residual(p, q, scale)
    if left.sum() == 0.0:
        assert rest is p
    else:
        np.testing.assert_allclose(dense(rest), left / left.sum(), rtol=1e-12)
        assert (rest.probs > 0).all()
    for token in range(VOCAB):
        assert p.of(token) == dense(p)[token]
        if q.of(token) > 0:
            assert ratio(p, q, token) == dense(p)[token] / dense(q)[token]


@given(distributions(), st.integers(1, 9), st.integers(0, 99))
def test_siblings_differ_and_state_their_distributions(q: Distribution, count: int, seed: int) -> None:
    tokens, drawn_from = siblings(q, count, StepRandomness(seed, 1), 5)
    assert len(set(tokens)) == len(tokens) == min(count, np.count_nonzero(q.probs))
    left = dense(q)
    for node, (token, stated) in enumerate(zip(tokens, drawn_from, strict=True), start=5):
        np.testing.assert_allclose(dense(stated), left / left.sum(), rtol=1e-9, atol=1e-300)
        assert token == StepRandomness(seed, 1).draft_token(stated, node)
        left[token] = 0.0


# --- The sampler's distribution ------------------------------------------------------------------------


@settings(max_examples=150)
@given(cases())
def test_the_distribution_is_the_one_that_tokens_are_sampled_from(
    case: tuple[SamplingParams, npt.NDArray[np.float32], list[int], int, int],
) -> None:
    """With the sampler's own noise, log-probability plus noise is greatest for the sampler's token."""
    params, logits, tokens, prompt, seed = case
    sampler, context = Sampler(params, len(logits), seed=seed), context_of(tokens, prompt)
    ids, probs = sampler.distribution(logits, context)
    assert (np.diff(ids) > 0).all()
    assert probs.sum() == pytest.approx(1.0, abs=1e-12)
    assert ((probs >= 0.0) & (probs <= 1.0)).all()
    token = sampler.token(logits, context)
    if params.temperature == 0.0:
        assert (ids.tolist(), probs.tolist()) == ([token], [1.0])
    else:
        with np.errstate(divide="ignore"):
            heights = np.log(probs) + gumbel(seed, context.position, ids)
        assert heights[ids.searchsorted(token)] >= heights.max() - 1e-9


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [0.1, 0.2, 0.4, 0.3]),
        ({"temperature": 0.5}, [1 / 30, 4 / 30, 16 / 30, 9 / 30]),
        ({"top_k": 2}, [0, 0, 4 / 7, 3 / 7]),
        ({"top_p": 0.75}, [0, 2 / 9, 4 / 9, 3 / 9]),
        ({"min_p": 0.6}, [0, 0, 4 / 7, 3 / 7]),
        ({"allowed_token_ids": [0, 1]}, [1 / 3, 2 / 3, 0, 0]),
        ({"presence_penalty": float(np.log(2.0))}, [0.1 / 0.8, 0.2 / 0.8, 0.2 / 0.8, 0.3 / 0.8]),
        ({"min_tokens": 9, "stop_token_ids": [3]}, [1 / 7, 2 / 7, 4 / 7, 0]),
    ],
)
def test_the_distribution_after_each_stage(arguments: dict[str, Any], expected: list[float]) -> None:
    logits = np.log(np.array([0.1, 0.2, 0.4, 0.3])).astype(np.float32)
    context = TokenContext([9]).then(2)
    ids, probs = Sampler(SamplingParams(**arguments), 4).distribution(logits, context)
    row = np.zeros(4)
    row[ids] = probs
    np.testing.assert_allclose(row, expected, atol=1e-6)


def test_a_distribution_that_cannot_be_sampled_is_refused() -> None:
    for temperature in (0.0, 1.0):
        with pytest.raises(ModelError, match="nan"):
            Sampler(SamplingParams(temperature=temperature), 3).distribution(
                np.array([0.0, np.nan, 0.0], np.float32), TokenContext([0])
            )
        only = Sampler(SamplingParams(temperature=temperature, allowed_token_ids=[1]), 3)
        with pytest.raises(ConfigError, match="no token is left"):
            only.distribution(np.array([0.0, -np.inf, 0.0], np.float32), TokenContext([0]))
