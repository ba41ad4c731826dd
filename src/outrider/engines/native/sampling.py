"""Filtering, sampling and probabilities in C++ (csrc/sampler/); `decoding.sampling.sampler` specifies them.

Against NumPy a logarithm, an exponential or a sum may differ in its last place: probabilities by parts in
1e-14, and the token where two sums come so close to each other, in practice never. The C++ path agrees with
itself always, on every machine, and a process samples with one of the two only, for target and draft, with
speculation and without.
"""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import numpy.typing as npt

from outrider.decoding.sampling.logits import Row
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.rng import Floats, Ids
from outrider.decoding.sampling.sampler import RowSampler
from outrider.decoding.types import Distribution
from outrider.engines.native import _sampler
from outrider.errors import ConfigError

VARIABLE = "OUTRIDER_SAMPLER"


class NativeRows:
    """A `RowSampler`. Rows are float32[vocab] or float64[vocab]; other types are widened."""

    def token(self, row: Row, params: SamplingParams, seed: int, position: int) -> tuple[int, float]:
        return _sampler.choose_token(_plain(row), *_filters(params), seed, position)

    def distribution(self, row: Row, params: SamplingParams) -> tuple[Distribution, float]:
        ids, probs, best = _sampler.token_distribution(_plain(row), *_filters(params))
        return Distribution(_every(len(probs)) if ids is None else ids, probs), best

    def probability(self, row: Row, params: SamplingParams, token: int) -> tuple[float, float]:
        return _sampler.token_probability(_plain(row), *_filters(params), token)

    def noise(self, seed: int, position: int, ids: Ids) -> Floats:
        return _sampler.token_noise(seed, position, ids)


def _plain(row: Row) -> Row:
    if row.dtype != np.float32:
        row = row.astype(np.float64, copy=False)
    return np.ascontiguousarray(row)


def _filters(params: SamplingParams) -> tuple[float, float, int, float]:
    return params.temperature, params.min_p, params.top_k, params.top_p


@cache
def _every(size: int) -> npt.NDArray[np.int64]:
    """The ids of a whole row: one array for all distributions that leave none out."""
    ids = np.arange(size)
    ids.flags.writeable = False
    return ids


def row_sampler() -> RowSampler | None:
    """What samplers use with the native engine: the C++ path, or None for the specification when the
    environment has OUTRIDER_SAMPLER=numpy. Raises ConfigError for a value other than "numpy" or "native".
    """
    name = os.environ.get(VARIABLE, "native")
    if name not in ("native", "numpy"):
        raise ConfigError(f"{VARIABLE}={name!r} is unknown; use 'native' or 'numpy'")
    return NativeRows() if name == "native" else None
