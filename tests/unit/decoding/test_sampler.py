from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.rng import gumbel
from outrider.decoding.sampling.sampler import Sampler, top_probability
from outrider.errors import ConfigError, ModelError

Floats = npt.NDArray[np.float64]


def reference(
    params: SamplingParams, logits: npt.ArrayLike, tokens: list[int], prompt: int, seed: int
) -> int:
    """The whole pipeline written out: every token, every stage, nothing saved."""
    row = np.array(logits, np.float64)
    if params.allowed_token_ids is not None:
        row[~np.isin(np.arange(len(row)), list(params.allowed_token_ids))] = -np.inf
    if len(tokens) - prompt < params.min_tokens:
        row[[i for i in params.stop_token_ids or () if i < len(row)]] = -np.inf
    for token, bias in (params.logit_bias or {}).items():
        row[token] += bias
    for token in {t for t in tokens if t < len(row)}:
        count = tokens[prompt:].count(token)
        penalty = params.repetition_penalty
        row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
        row[token] = row[token] - params.frequency_penalty * count
        row[token] = row[token] - params.presence_penalty * (count > 0)
    if params.temperature == 0.0:
        return int(row.argmax())
    scores = (row - row.max()) / params.temperature
    scores[scores < (math.log(params.min_p) if params.min_p else -np.inf)] = -np.inf
    order = sorted(range(len(row)), key=lambda i: (-scores[i], i))
    if params.top_k > 0:
        order = order[: params.top_k]
    mass = np.exp(scores[order])
    before = np.concatenate(([0.0], np.cumsum(mass)[:-1])) / mass.sum()
    kept = [i for i, b in zip(order, before, strict=True) if b < params.top_p or params.top_p == 1.0]
    noise = gumbel(seed, len(tokens), np.arange(len(row)))
    return min(kept, key=lambda i: (-(scores[i] + noise[i]), i))


@st.composite
def cases(draw: st.DrawFn) -> tuple[SamplingParams, npt.NDArray[np.float32], list[int], int, int]:
    vocab = draw(st.sampled_from([1, 2, 5, 255, 256, 257, 3000]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.0, 0.5, 3.0, 12.0]))
    logits = (generator.normal(0, 1, vocab) * spread + draw(st.sampled_from([0.0, 30.0, -1e4]))).astype(
        np.float32
    )
    if draw(st.booleans()):
        logits = np.round(logits)  # ties
    if draw(st.booleans()) and vocab > 2:
        logits[generator.random(vocab) < 0.3] = -np.inf
        logits[0] = 0.0
    ids = st.integers(0, vocab - 1)
    arguments: dict[str, Any] = {
        "temperature": draw(st.sampled_from([0.0, 1e-300, 0.05, 0.7, 1.0, 3.0, 1e300])),
        "top_k": draw(st.sampled_from([0, -1, 1, 3, 50, 10_000])),
        "top_p": draw(st.sampled_from([1.0, 0.999999, 0.999, 0.9, 0.3, 1e-9])),
        "min_p": draw(st.sampled_from([0.0, 0.01, 0.5, 1.0])),
    }
    if draw(st.booleans()):
        arguments |= {
            "repetition_penalty": draw(st.sampled_from([1.0, 1.3, 0.8])),
            "frequency_penalty": draw(st.sampled_from([0.0, 0.5, -1.0])),
            "presence_penalty": draw(st.sampled_from([0.0, 0.7])),
            "logit_bias": draw(st.dictionaries(ids, st.sampled_from([-100.0, -1.5, 2.0, 40.0]), max_size=4)),
        }
    tokens = draw(st.lists(st.integers(0, vocab + 3), min_size=1, max_size=12))
    return (
        SamplingParams(**arguments),
        logits,
        tokens,
        draw(st.integers(1, len(tokens))),
        draw(st.integers(0, 99)),
    )


def context_of(tokens: list[int], prompt: int) -> TokenContext:
    context = TokenContext(tokens[:prompt])
    for token in tokens[prompt:]:
        context.append(token)
    return context


@settings(max_examples=200)
@given(cases())
def test_the_sampler_equals_the_pipeline_written_out(
    case: tuple[SamplingParams, npt.NDArray[np.float32], list[int], int, int],
) -> None:
    params, logits, tokens, prompt, seed = case
    untouched = logits.copy()
    with np.errstate(over="ignore"):
        expected = reference(params, logits, tokens, prompt, seed)
    assert Sampler(params, len(logits), seed=seed).token(logits, context_of(tokens, prompt)) == expected
    assert (logits == untouched).all()


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("top_p", [1.0, 0.95])
def test_pruning_a_large_vocabulary_changes_nothing(spread: float, top_p: float) -> None:
    generator = np.random.default_rng(int(spread * 10))
    params = SamplingParams(temperature=0.9, top_p=top_p)
    for seed in range(2):
        logits = generator.normal(0, spread, 30_000).astype(np.float32)
        context = TokenContext([1, 2, 3])
        assert Sampler(params, 30_000, seed=seed).token(logits, context) == reference(
            params, logits, [1, 2, 3], 3, seed
        )


@pytest.mark.parametrize("top_p", [0.99, 0.9971, 0.9985, 0.9999])
def test_top_p_counts_the_mass_of_the_very_unlikely(top_p: float) -> None:
    """30,000 tokens at e^-16.2 of the best: together they hold 0.27% and decide what top_p reaches."""
    logits = np.full(30_000, -16.2, np.float32)
    logits[777] = 0.0
    logits[778] = -6.0
    params = SamplingParams(top_p=top_p, temperature=1.0)
    sampler = Sampler(params, 30_000)
    tops = np.maximum.reduceat(logits, np.arange(0, 30_000, 256))
    mass = np.exp(logits.astype(np.float64))
    order = np.argsort(-logits, kind="stable")
    size = int((np.cumsum(mass[order]) < top_p * mass.sum()).sum()) + 1
    assert sampler._kept(logits, tops, 0.0).tolist() == sorted(order[:size].tolist())


def test_the_position_and_the_seed_decide() -> None:
    logits = np.zeros(1000, np.float32)
    sampler = Sampler(SamplingParams(), 1000, seed=1)
    assert len({sampler.token(logits, TokenContext([0] * size)) for size in range(1, 30)}) > 25
    assert (
        len({Sampler(SamplingParams(), 1000, seed=s).token(logits, TokenContext([0])) for s in range(30)})
        > 25
    )


def test_greedy_takes_the_lowest_of_equals() -> None:
    sampler = Sampler(SamplingParams(temperature=0.0, top_k=1, top_p=0.1), 5)
    assert sampler.token(np.array([0, 3, 1, 3, 3], np.float32), TokenContext([0])) == 1


def test_min_tokens_forbids_every_end() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=[1, 900])
    sampler = Sampler(params, 4, eos_ids=[2])
    logits = np.array([0, 3, 2, 1], np.float32)
    context = TokenContext([0])
    assert sampler.token(logits, context) == 3
    assert sampler.token(logits, context.then(3)) == 3
    assert sampler.token(logits, context.then(3).then(3)) == 1


def test_the_path_counts_for_penalties() -> None:
    sampler = Sampler(SamplingParams(temperature=0.0, frequency_penalty=1.0), 3)
    logits = np.array([0.0, 1.5, 1.0], np.float32)
    context = TokenContext([1])
    assert sampler.token(logits, context) == 1
    assert sampler.token(logits, context.then(1)) == 2
    assert sampler.token(logits, context.then(1).then(2)) == 1


def test_ids_outside_the_vocabulary_are_refused() -> None:
    for arguments in ({"logit_bias": {4: 1.0}}, {"allowed_token_ids": [0, 4]}):
        with pytest.raises(ConfigError, match="has the id 4; the vocabulary ends at 3"):
            Sampler(SamplingParams(**arguments), 4)


def test_padding_after_the_vocabulary_is_never_sampled() -> None:
    logits = np.array([0, 1, 2, 50], np.float32)
    for temperature in (0.0, 1.0):
        assert Sampler(SamplingParams(temperature=temperature), 3).token(logits, TokenContext([0])) < 3


def test_a_restricted_twin_draws_with_the_same_noise() -> None:
    params = SamplingParams(allowed_token_ids=range(0, 600, 2), logit_bias={599: 5.0}, repetition_penalty=1.2)
    sampler = Sampler(params, 600, seed=11)
    twin = sampler.restricted(300)
    logits = np.random.default_rng(0).normal(0, 1, 600).astype(np.float32)
    logits[300:] = -50.0
    for size in range(1, 20):
        context = TokenContext([4] * size + [580])
        assert twin.token(logits, context) == sampler.token(logits, context)


def test_logits_that_are_no_numbers_are_the_models_fault() -> None:
    for bad in ([0.0, math.nan], [0.0, math.inf], [-math.inf, -math.inf]):
        for temperature in (0.0, 1.0):
            with pytest.raises(ModelError, match="logits at position 3"):
                Sampler(SamplingParams(temperature=temperature), 2).token(
                    np.array(bad, np.float32), TokenContext([0, 0, 0])
                )


def test_parameters_that_leave_nothing_are_the_users() -> None:
    params = SamplingParams(allowed_token_ids=[1], stop_token_ids=[1], min_tokens=1)
    with pytest.raises(ConfigError, match="no token is left"):
        Sampler(params, 2).token(np.zeros(2, np.float32), TokenContext([0]))


def chi_square(counts: npt.NDArray[np.int64], expected: Floats) -> float:
    """How many standard deviations the statistic lies above its mean, cells under 5 lumped together."""
    small = expected < 5
    found = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    if expected[-1] < 5:
        found, expected = found[:-1], expected[:-1]
    degrees = len(expected) - 1
    statistic = float(((found - expected) ** 2 / expected).sum())
    return float((statistic - degrees) / (2 * degrees) ** 0.5)


@pytest.mark.parametrize("vocab", [6, 300])
def test_frequencies_over_seeds_are_the_softmax(vocab: int) -> None:
    logits = np.random.default_rng(vocab).normal(0, 1.5, vocab).astype(np.float32)
    draws = 1500
    params = SamplingParams(temperature=0.8)
    tokens = [Sampler(params, vocab, seed=s).token(logits, TokenContext([0])) for s in range(draws)]
    found = np.bincount(tokens, minlength=vocab)
    probs = np.exp(logits.astype(np.float64) / 0.8)
    expected = draws * probs / probs.sum()
    assert chi_square(found, expected) < 4.0
    # Its broken twin: a sampler that forgets the temperature gives another distribution, and is seen.
    wrong = np.exp(logits.astype(np.float64))
    assert chi_square(found, draws * wrong / wrong.sum()) > 8.0


def test_top_probability_is_the_likeliest_tokens_share() -> None:
    row = np.random.default_rng(3).normal(0.0, 3.0, 5000).astype(np.float32)
    row[7] = row.max() + 2.0
    assert top_probability(row) == pytest.approx(1.0 / np.exp(row - row[7]).sum(), rel=0.1)
    assert top_probability(np.zeros(4, np.float32)) == pytest.approx(0.25)
    assert top_probability(np.array([-np.inf, 3.0], np.float32)) == pytest.approx(1.0)
    for broken in (np.full(4, -np.inf), np.array([0.0, np.nan]), np.array([0.0, np.inf])):
        assert top_probability(broken.astype(np.float32)) == 0.0
