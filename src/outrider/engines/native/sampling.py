"""Filtering and drawing in C++ (csrc/sample.h); `outrider.decoding.sampler` is the specification.

Against NumPy a logarithm, an exponential or a sum may differ in its last place, so the two may choose
different tokens where two sums come within about 1e-14 of each other: in practice never seen. The C++ path
agrees with itself always, on every machine, and a process draws with one of the two only, for target and
draft, with speculation and without.
"""

from __future__ import annotations

import os

import numpy as np

from outrider.decoding.adjust import Row
from outrider.decoding.params import SamplingParams
from outrider.decoding.sampler import RowSampler
from outrider.engines.native import _sampler
from outrider.errors import ConfigError

VARIABLE = "OUTRIDER_SAMPLER"


def choose_token(row: Row, params: SamplingParams, seed: int, position: int) -> tuple[int, float]:
    """See `RowSampler`. `row` is float32[vocab] or float64[vocab]; other types are widened."""
    if row.dtype != np.float32:
        row = row.astype(np.float64, copy=False)
    return _sampler.choose_token(
        np.ascontiguousarray(row),
        params.temperature,
        params.min_p,
        params.top_k,
        params.top_p,
        seed,
        position,
    )


def row_sampler() -> RowSampler | None:
    """What samplers draw with beside the native engine: the C++ path, or None for the specification when the
    environment has OUTRIDER_SAMPLER=numpy. Raises ConfigError for a value other than "numpy" or "native".
    """
    name = os.environ.get(VARIABLE, "native")
    if name not in ("native", "numpy"):
        raise ConfigError(f"{VARIABLE}={name!r} is unknown; use 'native' or 'numpy'")
    return choose_token if name == "native" else None
