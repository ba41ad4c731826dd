"""Distributions in C++ are those of the specification in NumPy, and have the same bits everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.logits import Row
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Distribution, Draft, TargetScores
from outrider.decoding.verifiers.block import BlockVerifier
from outrider.decoding.verifiers.rejection import RejectionVerifier
from outrider.engines.native import _sampler
from tests.native.rows import NATIVE, WIDTHS, agrees, cases, spread


@pytest.mark.grid(2)
@pytest.mark.parametrize("vocab", [1, 2, 255, 256, 257, 1000, 4001])
@pytest.mark.parametrize("wide", [np.float32, np.float64])
def test_distributions_are_the_specified_ones(vocab: int, wide: type[np.floating[Any]]) -> None:
    generator = np.random.default_rng(vocab)
    count = 0
    for row, params, _, _ in cases(vocab, vocab):
        values = row if wide is np.float32 else row * (1.0 + 2.0**-40)  # which no float32 are
        found, best = NATIVE.distribution(values, params)
        assert agrees(found, spread(values, params)), params
        assert best == values.max()
        for token in {int(found.ids[0]), int(row.argmax()), int(generator.integers(vocab))}:
            assert NATIVE.probability(values, params, token) == (found.of(token), best), params
        count += 1
    assert count == 980


def test_distributions_over_a_large_vocabulary() -> None:
    for number, (row, params, _, _) in enumerate(cases(151_936, 6)):
        if number % 23 == 0:
            found, _ = NATIVE.distribution(row, params)
            assert agrees(found, spread(row, params)), params
            assert NATIVE.probability(row, params, 7777)[0] == found.of(7777)


@pytest.mark.parametrize("top_k", [1, 3])
def test_of_values_with_one_score_the_first_are_kept(top_k: int) -> None:
    row = np.full(1000, 1e-199)
    row[0] = 0.0
    params = SamplingParams(temperature=1e300, top_k=top_k)
    found, _ = NATIVE.distribution(row, params)
    assert agrees(found, spread(row, params))
    assert found.ids.tolist() == list(range(top_k))


@settings(max_examples=200)
@given(st.data())
def test_distributions_of_any_row(data: st.DataObject) -> None:
    """Values at the very edges: of the reach, of ties, of what a double can hold."""
    temperature = data.draw(st.sampled_from([1e-300, 1e-6, 0.05, 0.7, 1.0, 3.0, 1e300]))
    edge = 50.0 * temperature
    values = st.one_of(
        st.sampled_from(
            [0.0, -0.0, -np.inf, -edge, np.nextafter(-edge, 0), np.nextafter(-edge, -np.inf), edge]
        ),
        st.floats(-60.0, 60.0),
        st.floats(-1e308, 1e308),
    )
    some = data.draw(st.lists(values, min_size=1, max_size=6))
    row = np.resize(np.array(some), data.draw(st.sampled_from([len(some), 300, 1000])))
    row[data.draw(st.integers(0, len(row) - 1))] = data.draw(st.floats(-1e3, 1e3))
    if data.draw(st.booleans()):
        row = np.clip(row, -3e38, 3e38).astype(np.float32)
    params = SamplingParams(
        temperature=temperature,
        top_k=data.draw(st.sampled_from([0, 0, 1, 3, 256])),
        top_p=data.draw(st.sampled_from([1.0, 1.0, 0.999999, 0.9, 1e-9])),
        min_p=data.draw(st.sampled_from([0.0, 0.0, 5e-324, 0.01, 1.0])),
    )
    with np.errstate(over="ignore"):
        wanted = spread(row, params)
    found, _ = NATIVE.distribution(row, params)
    near = data.draw(st.integers(0, len(row) - 1))
    assert NATIVE.probability(row, params, near)[0] == found.of(near)
    if params.top_p == 1.0:  # among so many equals a sum's last place may decide top_p's edge
        assert agrees(found, wanted)


Spreads: TypeAlias = Callable[..., tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.float64], float]]


def same_bits(weigh: Spreads) -> bool:
    """Whether distributions keep their bits as float64, at another address, with vectors of any width."""
    for number, (row, params, _, _) in enumerate(cases(1500, 11)):
        arguments = (params.temperature, params.min_p, params.top_k, params.top_p)
        shifted = np.concatenate((np.zeros(1 + number % 7, np.float32), row))[1 + number % 7 :]
        first_ids, first, _ = weigh(row, *arguments)
        for values in (row, shifted, row.astype(np.float64)):
            for width in WIDTHS:
                ids, probs, _ = weigh(values, *arguments, width)
                named = [None if i is None else i.tobytes() for i in (ids, first_ids)]
                if probs.tobytes() != first.tobytes() or named[0] != named[1]:
                    return False
    return True


def test_distributions_have_the_same_bits_everywhere() -> None:
    assert same_bits(_sampler.token_distribution)


def test_a_sum_in_another_order_is_noticed() -> None:
    def broken(row: Row, *arguments: Any) -> tuple[Any, Any, float]:
        ids, probs, best = _sampler.token_distribution(row, *arguments)
        return ids, probs / probs.sum() if arguments[4:] == (16,) else probs, best

    assert not same_bits(broken)


SPREAD_TWINS: dict[str, Callable[[Row, SamplingParams], Distribution]] = {
    "no top_k": lambda row, p: NATIVE.distribution(row, replaced(p, top_k=0))[0],
    "one more for top_k": lambda row, p: NATIVE.distribution(row, replaced(p, top_k=p.top_k + 1))[0],
    "no top_p": lambda row, p: NATIVE.distribution(row, replaced(p, top_p=1.0))[0],
    "no min_p": lambda row, p: NATIVE.distribution(row, replaced(p, min_p=0.0))[0],
    "another temperature": lambda row, p: NATIVE.distribution(
        row, replaced(p, temperature=p.temperature * (1 + 1e-10))
    )[0],
    "the last of equals": lambda row, p: NATIVE.distribution(row + 1e-9 * np.arange(len(row)), p)[0],
    "not normalised": lambda row, p: scaled(NATIVE.distribution(row, p)[0], 1 + 1e-12),
}


def replaced(params: SamplingParams, **changes: Any) -> SamplingParams:
    fields = {name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    return SamplingParams(**(fields | changes))


def scaled(distribution: Distribution, by: float) -> Distribution:
    return Distribution(distribution.ids, distribution.probs * by)


@pytest.mark.parametrize("name", SPREAD_TWINS)
def test_a_broken_distribution_is_noticed(name: str) -> None:
    tried = ((row, params) for row, params, _, _ in cases(257, 3))
    assert any(not agrees(SPREAD_TWINS[name](row, params), spread(row, params)) for row, params in tried)


@pytest.mark.parametrize("make", [RejectionVerifier, BlockVerifier])
@pytest.mark.parametrize("stated", [False, True])
def test_verdicts_are_those_of_the_specification(
    make: type[RejectionVerifier] | type[BlockVerifier], stated: bool
) -> None:
    """With and without filters, along chains that are given up at every length."""
    generator = np.random.default_rng(8)
    lengths = set()
    for trial in range(200):
        rows = (generator.normal(0, 1.5, (6, 400))).astype(np.float32)
        params = SamplingParams(temperature=0.7, top_p=[1.0, 0.9][trial % 2], repetition_penalty=1.1)
        plain, fast = (Sampler(params, 400, seed=trial, rows=made) for made in (None, NATIVE))
        context = TokenContext([1, 2])
        draft_rows = rows + generator.normal(0, 0.4, rows.shape).astype(np.float32)  # the draft model's
        tokens, probs, at = [], [], context
        for row in draft_rows[:5]:
            probs.append(plain.distribution(row, at))
            tokens.append(int(generator.choice(probs[-1].ids, p=probs[-1].probs)))
            if not stated:
                tokens[-1] = int(rows[len(tokens) - 1].argmax())
            at = at.then(tokens[-1])
        draft = Draft.chain(tokens, "test", tuple(probs) if stated else None)
        verdict = make().verify(draft, TargetScores(rows), fast, context)
        assert verdict == make().verify(draft, TargetScores(rows), plain, context)
        lengths.add(len(verdict.path))
    assert len(lengths) >= 3
