"""The sampler in C++ chooses the tokens that the specification in NumPy chooses, and always the same ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling import rng
from outrider.decoding.sampling.logits import Row
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import RowSampler, Sampler
from outrider.engines.native import _sampler
from outrider.engines.native.sampling import NativeRows, row_sampler
from outrider.errors import ConfigError, ModelError
from tests.native.rows import NATIVE, WIDTHS, Case, agrees, cases, spread

Twin: TypeAlias = Callable[[Row, SamplingParams, int, int], tuple[int, float]]


def specified(row: Row, params: SamplingParams, seed: int, position: int) -> int:
    return Sampler(params, len(row), seed=seed).draw(row, row, position)


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    ("vocab", "rounds"), [(1, 1), (2, 3), (255, 2), (256, 2), (257, 3), (1000, 3), (4001, 2)]
)
def test_chooses_what_the_specification_chooses(vocab: int, rounds: int) -> None:
    count = 0
    for start in range(rounds):
        for row, params, seed, position in cases(vocab, start):
            chosen = NATIVE.token(row, params, seed, position)
            assert chosen == (specified(row, params, seed, position), float(row.max())), (
                params,
                seed,
                position,
            )
            count += 1
    assert count == rounds * 980


def test_a_large_vocabulary() -> None:
    for number, case in enumerate(cases(151_936, 5)):
        if number % 23 == 0:  # steps through every shape, temperature and filter
            row, params, seed, position = case
            chosen, _ = NATIVE.token(row, params, seed, position)
            assert chosen == specified(row, params, seed, position), params


@settings(max_examples=200)
@given(st.data())
def test_the_whole_pipeline_is_the_same_with_and_without(data: st.DataObject) -> None:
    vocab = data.draw(st.sampled_from([1, 2, 5, 255, 256, 257, 3000]))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    logits = (generator.normal(0, 1, vocab) * data.draw(st.sampled_from([0.0, 0.5, 3.0, 12.0]))).astype(
        np.float32
    )
    if data.draw(st.booleans()):
        logits = np.round(logits)
    ids = st.integers(0, vocab - 1)
    params = SamplingParams(
        temperature=data.draw(st.sampled_from([0.0, 1e-300, 1e-6, 0.7, 1.0, 3.0, 1e300])),
        top_k=data.draw(st.sampled_from([0, -1, 1, 3, 50, 10_000])),
        top_p=data.draw(st.sampled_from([1.0, 0.999999, 0.9, 0.3, 1e-9])),
        min_p=data.draw(st.sampled_from([0.0, 5e-324, 0.01, 0.5, 1.0])),
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.3, 0.8])),
        frequency_penalty=data.draw(st.sampled_from([0.0, 0.5, -1.0])),
        logit_bias=data.draw(st.dictionaries(ids, st.sampled_from([-100.0, -1.5, 40.0]), max_size=4)),
        allowed_token_ids=data.draw(st.none() | st.lists(ids, min_size=1, max_size=9)),
    )
    context = TokenContext(data.draw(st.lists(st.integers(0, vocab + 3), min_size=1, max_size=9)))
    for token in data.draw(st.lists(ids, max_size=5)):
        context.append(token)
    seed = data.draw(st.integers(0, 2**64 - 1))
    plain = Sampler(params, vocab, seed=seed)
    fast = Sampler(params, vocab, seed=seed, rows=NATIVE)
    assert fast.token(logits, context) == plain.token(logits, context)
    assert fast.restricted(vocab).token(logits, context) == plain.token(logits, context)


def same_everywhere(choose: Callable[..., int]) -> bool:
    """Whether a token stays the same as float64, at another address, with any vectors, and in threads."""
    for number, (row, params, seed, position) in enumerate(cases(1500, 9)):
        arguments = (params.temperature, params.min_p, params.top_k, params.top_p, seed, position)
        shifted = np.concatenate((np.zeros(1 + number % 7, np.float32), row))[1 + number % 7 :]
        tokens = {
            choose(row, *arguments),
            choose(row.astype(np.float64), *arguments),
            choose(shifted, *arguments),
            *(choose(row, *arguments, width) for width in WIDTHS),
            *(choose(row.astype(np.float64), *arguments, width) for width in WIDTHS),
        }
        if len(tokens) > 1:
            return False
    work = list(cases(1500, 10))

    def one(case: Case) -> int:
        row, params, seed, position = case
        return choose(row, params.temperature, params.min_p, params.top_k, params.top_p, seed, position)

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, work)) == [one(case) for case in work]


def test_agrees_with_itself_always() -> None:
    assert same_everywhere(lambda *arguments: _sampler.choose_token(*arguments)[0])


def test_a_token_that_depends_on_the_rows_type_is_noticed() -> None:
    def broken(row: Row, *arguments: Any) -> int:
        values = row if row.dtype == np.float32 else row + 1e-3 * np.arange(len(row))
        return _sampler.choose_token(values, *arguments)[0]

    assert not same_everywhere(broken)


def wrong_ties(row: Row, params: SamplingParams, seed: int, position: int) -> tuple[int, float]:
    """Prefers the last of equals, where the filters keep the first."""
    return NATIVE.token(row + 1e-9 * np.arange(len(row)), params, seed, position)


def changed(**changes: Any) -> Twin:
    def twin(row: Row, params: SamplingParams, seed: int, position: int) -> tuple[int, float]:
        fields = {name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        for name, change in changes.items():
            if name in fields:
                fields[name] = change(fields[name])
        seed = changes.get("seed", int)(seed)
        return NATIVE.token(row, SamplingParams(**fields), seed, changes.get("position", int)(position))

    return twin


TWINS = {
    "no top_k": changed(top_k=lambda k: 0),
    "one more for top_k": changed(top_k=lambda k: k + 1 if k > 0 else k),
    "no top_p": changed(top_p=lambda p: 1.0),
    "a little more for top_p": changed(top_p=lambda p: min(1.0, p * 1.05)),
    "no min_p": changed(min_p=lambda p: 0.0),
    "another temperature": changed(temperature=lambda t: t * 1.01),
    "the seed's upper half lost": changed(seed=lambda s: s & 0xFFFFFFFF),
    "the position's upper half lost": changed(position=lambda p: p & 0xFFFFFFFF),
    "the next position": changed(position=lambda p: p + 1),
    "the last of equals": wrong_ties,
}


@pytest.mark.parametrize("name", TWINS)
def test_a_broken_twin_is_noticed(name: str) -> None:
    twin = TWINS[name]
    tried = (case for start in range(4) for case in cases(257, start))
    assert any(twin(*case)[0] != specified(*case) for case in tried)


def test_noise_is_the_specified_noise() -> None:
    for seed, position in ((0, 0), (2**64 - 1, 2**40 + 5), (77, 2**32 - 1)):
        ids = np.arange(0, 70_000, dtype=np.int64)
        noise, wanted = _sampler.token_noise(seed, position, ids), rng.gumbel(seed, position, ids)
        assert np.abs(noise - wanted).max() <= 4 * np.spacing(16.0)
        assert np.abs(noise - rng.gumbel(seed, position + 1, ids)).max() > 1.0
        for rows, specified in ((NativeRows(), noise), (None, wanted)):
            sampler = Sampler(SamplingParams(temperature=0.7), 70_000, seed=seed, rows=rows)
            assert (sampler.noise(position, ids) == specified).all()


def test_masses_are_exponentials_to_the_last_place() -> None:
    scores = np.concatenate(
        (-np.random.default_rng(0).random(200_000) * 50, -np.logspace(-300, 2.8, 20_000), [0.0])
    )
    masses = _sampler.token_masses(scores)
    assert (np.abs(masses - np.exp(scores)) <= 2 * np.spacing(np.exp(scores))).all()
    assert masses[-1] == 1.0


def test_tokens_have_the_distribution() -> None:
    logits = np.random.default_rng(3).normal(0, 1.5, 300).astype(np.float32)
    params = SamplingParams(temperature=0.8, top_p=0.9)
    draws = 20_000
    found = np.bincount([NATIVE.token(logits, params, s, 1)[0] for s in range(draws)], minlength=300)
    kept = Sampler(params, 300).distribution(logits, TokenContext([0]))
    expected = np.zeros(300)
    expected[kept.ids] = draws * kept.probs
    assert not found[expected == 0].any()
    likely = expected >= 5

    def deviation(wanted: npt.NDArray[np.float64]) -> float:
        return float(((found - wanted)[likely] ** 2 / wanted[likely]).sum())

    degrees = int(likely.sum())
    assert deviation(expected) < degrees + 5 * (2 * degrees) ** 0.5
    flatter = np.where(expected > 0, expected**0.9, 0)
    assert deviation(flatter * draws / flatter.sum()) > 2 * degrees


@pytest.mark.parametrize("rows", [None, NATIVE])
def test_rows_without_a_greatest_number_are_refused_alike(rows: RowSampler | None) -> None:
    sampler = Sampler(SamplingParams(top_p=0.9), 300, rows=rows)
    for bad in (math.nan, math.inf):
        for where in (0, 7, 255, 256, 299):
            logits = np.zeros(300, np.float32)
            logits[where] = bad
            for use in (sampler.token, sampler.distribution, sampler.lazy_distribution):
                with pytest.raises(ModelError, match="logits at position 3"):
                    use(logits, TokenContext([0, 0, 0]))
    for use in (sampler.token, sampler.distribution, sampler.lazy_distribution):
        with pytest.raises(ModelError, match="logits at position 3"):
            use(np.full(300, -np.inf, np.float32), TokenContext([0, 0, 0]))
    nothing = SamplingParams(allowed_token_ids=[1], stop_token_ids=[1], min_tokens=1)
    with pytest.raises(ConfigError, match="no token is left"):
        Sampler(nothing, 2, rows=rows).token(np.zeros(2, np.float32), TokenContext([0]))
    sampler = Sampler(nothing, 2, rows=rows)
    for use in (sampler.distribution, sampler.lazy_distribution):
        with pytest.raises(ConfigError, match="no token is left"):
            use(np.zeros(2, np.float32), TokenContext([0]))


def test_rows_of_any_make_are_taken() -> None:
    row = np.random.default_rng(1).normal(0, 2, 1200).astype(np.float32)
    params = SamplingParams(temperature=0.9)
    for other in (row[::3], np.stack((row, row), 1)[:, 1], row.astype(np.float16), row.astype(">f8")):
        assert NATIVE.token(other, params, 3, 4) == (specified(other, params, 3, 4), float(other.max()))
        assert agrees(NATIVE.distribution(other, params)[0], spread(other, params))


def test_the_extension_checks_its_arguments() -> None:
    row = np.zeros(4, np.float32)
    good: tuple[Any, ...] = (1.0, 0.0, 0, 1.0, 1, 1)
    assert 0 <= _sampler.choose_token(row, *good)[0] < 4
    distribute: Callable[..., Any] = _sampler.token_distribution
    weigh: Callable[..., Any] = _sampler.token_probability
    assert distribute(row, *good[:4])[1].tolist() == [0.25] * 4
    assert weigh(row, *good[:4], 3) == (0.25, 0.0)
    assert weigh(row, *good[:4], 4) == (0.0, 0.0)
    for at, value in (
        (0, 0.0),
        (0, math.nan),
        (0, math.inf),
        (1, -0.1),
        (1, 1.5),
        (1, math.nan),
        (3, 0.0),
        (3, math.nan),
    ):
        bad_arguments: tuple[Any, ...] = (*good[:at], value, *good[at + 1 :])
        with pytest.raises(ValueError, match="out of range"):
            _sampler.choose_token(row, *bad_arguments)
        with pytest.raises(ValueError, match="out of range"):
            distribute(row, *bad_arguments[:4])
        with pytest.raises(ValueError, match="out of range"):
            weigh(row, *bad_arguments[:4], 0)
    with pytest.raises(ValueError, match="a row has between"):
        _sampler.choose_token(row[:0], *good)
    bad_rows: tuple[Any, ...] = (
        row.astype(np.int32),
        row.astype(np.float16),
        row[::2],
        row.reshape(2, 2),
        None,
    )
    for bad in bad_rows:
        with pytest.raises(TypeError):
            _sampler.choose_token(bad, *good)
        with pytest.raises(TypeError):
            distribute(bad, *good[:4])
        with pytest.raises(TypeError):
            weigh(bad, *good[:4], 0)
    with pytest.raises(ValueError, match="an id is out of range"):
        weigh(row, *good[:4], -1)
    with pytest.raises(ValueError, match="an id is out of range"):
        _sampler.token_noise(1, 1, np.array([-1], np.int64))


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTRIDER_SAMPLER", raising=False)
    assert isinstance(row_sampler(), NativeRows)
    monkeypatch.setenv("OUTRIDER_SAMPLER", "numpy")
    assert row_sampler() is None
    monkeypatch.setenv("OUTRIDER_SAMPLER", "cuda")
    with pytest.raises(ConfigError, match="OUTRIDER_SAMPLER='cuda' is unknown"):
        row_sampler()
