"""Rows of logits with parameters, and their results by the specification in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.logits import Row
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Distribution
from outrider.engines.native.sampling import NativeRows

Floats: TypeAlias = npt.NDArray[np.float32]
Case: TypeAlias = tuple[Floats, SamplingParams, int, int]  # row, parameters, seed, position

NATIVE = NativeRows()
WIDTHS = (64, 32, 16)  # bytes of a vector; the last is portable

TEMPERATURES = (1e-6, 0.05, 0.7, 1.0, 1.5, 10.0, 1e3)
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"top_p": 0.95},
    {"top_p": 0.5},
    {"top_p": 1e-9},
    {"top_p": 0.99999},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 300},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"min_p": 1e-12},
    {"min_p": 1e-12, "top_p": 0.9},
    {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
    {"top_k": 5000, "top_p": 0.8},
)


def shapes(generator: np.random.Generator, vocab: int) -> Iterator[Floats]:
    """Rows of every character that a model's have, and some that none has."""
    for spread in (0.0, 0.1, 1.0, 3.0, 12.0):
        yield (generator.normal(0, 1, vocab) * spread + 5.0).astype(np.float32)
    yield np.round(generator.normal(0, 2, vocab)).astype(np.float32)  # ties
    peaked = generator.normal(0, 1, vocab).astype(np.float32)
    peaked[generator.integers(vocab)] = 30.0
    yield peaked
    cliff = np.full(vocab, -16.2, np.float32)  # the mass of many unlikely tokens decides
    cliff[generator.integers(vocab, size=5)] = -generator.random(5, np.float32)
    yield cliff
    masked = generator.normal(-1e4, 4, vocab).astype(np.float32)
    masked[generator.random(vocab) < 0.7] = -np.inf
    masked[generator.integers(vocab)] = -1e4
    yield masked
    yield generator.gumbel(0, 3, vocab).astype(np.float32)  # one far ahead now and then


def cases(vocab: int, start: int) -> Iterator[Case]:
    generator = np.random.default_rng(start)
    for row in shapes(generator, vocab):
        for temperature in TEMPERATURES:
            for filters in FILTERS:
                params = SamplingParams(temperature=temperature, **filters)
                yield row, params, int(generator.integers(2**63)) * 2 + 1, int(generator.integers(1, 2**35))


def spread(row: Row, params: SamplingParams) -> Distribution:
    return Sampler(params, len(row)).distribution(row, TokenContext([0]))


def agrees(found: Distribution, wanted: Distribution) -> bool:
    return (
        [found.ids.dtype, found.probs.dtype] == [np.int64, np.float64]
        and np.array_equal(found.ids, wanted.ids)
        and bool((np.abs(found.probs - wanted.probs) <= 2e-14 * wanted.probs).all())
        and abs(found.probs.sum() - 1.0) < 1e-13
    )
