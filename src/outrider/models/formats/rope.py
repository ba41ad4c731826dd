"""Rotary frequencies with their scaling variants applied (Su et al. 2021, RoFormer).

Everything is computed in float64 and rounded once: the result is within two units in the last place
of transformers' float32 arithmetic, and does not depend on a CPU's float32 `pow`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.models.spec import RopeSpec

Frequencies = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Ropes:
    """The rotary tables of a model.

    rope, positions: of all layers, and for how many positions.
    local:           of layers with a window, where these have their own, which no scaling changes.
    long, long_positions: of all layers in longer contexts, where it is another one.
    """

    rope: RopeSpec
    positions: int
    local: RopeSpec | None = None
    long: RopeSpec | None = None
    long_positions: int = 0


def base_frequencies(dim: int, theta: float) -> Frequencies:
    """theta ** (-2i / dim) for i in 0..dim/2-1, in radians per position: float64[dim // 2]."""
    return np.power(theta, -np.arange(0, dim, 2, dtype=np.float64) / dim)


def scale_linear(frequencies: Frequencies, factor: float) -> Frequencies:
    """Position interpolation (Chen et al. 2023): every frequency divided by `factor`."""
    return frequencies / factor


def scale_llama3(
    frequencies: Frequencies,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_positions: int,
) -> Frequencies:
    """Llama 3.1's scaling: long waves divided by `factor`, short ones kept, a smooth blend between.

    A wave is long when it is longer than original_max_positions / low_freq_factor, and short below
    original_max_positions / high_freq_factor. Wants 0 < low_freq_factor < high_freq_factor.
    """
    wavelength = 2 * math.pi / frequencies
    blend = (original_max_positions / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor)
    keep = np.clip(blend, 0.0, 1.0)  # 0 for long waves, 1 for short ones
    return (1 - keep) * frequencies / factor + keep * frequencies


def scale_yarn(
    frequencies: Frequencies,
    theta: float,
    factor: float,
    original_max_positions: int,
    betas: tuple[float, float],
    *,
    truncate: bool = True,
) -> Frequencies:
    """YaRN (Peng et al. 2023): long waves divided by `factor`, short ones kept, and a ramp over the indices
    of the frequencies between.

    betas are beta_fast and beta_slow: a wave is short when it turns more than beta_fast times in
    original_max_positions, and long when it turns less than beta_slow times. Wants theta > 1 and
    0 < beta_slow < beta_fast. truncate: the ramp's ends are rounded outwards to whole indices.
    """
    dim = 2 * len(frequencies)

    def index(turns: float) -> float:
        """Of the frequency that turns so many times, rarely a whole number."""
        return dim * math.log(original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = (index(beta) for beta in betas)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 1e-3), 0.0, 1.0)  # 1 for long waves
    return np.asarray(ramp * frequencies / factor + (1 - ramp) * frequencies)


def yarn_magnitude(factor: float, mscale: float = 1.0, mscale_all_dim: float = 0.0) -> float:
    """What YaRN multiplies cos and sin with: 1 + mscale / 10 * ln(factor), divided by the same of
    mscale_all_dim. Infinite where that is 0."""
    growth = math.log(max(factor, 1.0)) / 10
    divisor = 1 + mscale_all_dim * growth
    return (1 + mscale * growth) / divisor if divisor else math.inf


def longrope_magnitude(factor: float, original_max_positions: int) -> float:
    """What LongRoPE (Ding et al. 2024) multiplies cos and sin with, for a context that is `factor` times the
    original one. Infinite for an original context of one token."""
    growth, original = math.log(max(factor, 1.0)), math.log(original_max_positions)
    if not growth:
        return 1.0
    return math.sqrt(1 + growth / original) if original else math.inf
