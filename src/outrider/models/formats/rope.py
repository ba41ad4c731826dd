"""Rotary frequencies with their scaling variants applied (Su et al. 2021, RoFormer).

Everything is computed in float64 and rounded once: the result is within two units in the last place
of transformers' float32 arithmetic, and does not depend on a CPU's float32 `pow`.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Frequencies = npt.NDArray[np.float64]


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
