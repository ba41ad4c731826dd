"""The rotary keys and tensors of a GGUF file, as llama.cpp reads them.

Scalings are none, linear, yarn and longrope, and the factors of `ROPE_TENSORS`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.models.checks import check_theta
from outrider.models.families import LIMITS, Family, shown
from outrider.models.formats.dequantize import dequantize
from outrider.models.formats.gguf_metadata import Metadata
from outrider.models.formats.rope import (
    Frequencies,
    base_frequencies,
    scale_linear,
    scale_yarn,
    warn_of_limit,
    yarn_magnitude,
)
from outrider.models.source import Tensor
from outrider.models.spec import RopeSpec

# Divisors of the frequencies: for every context, up to the original one, and beyond it.
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")


def read_ropes(
    metadata: Metadata, family: Family, rope_dim: int, context: int, tensors: Mapping[str, Tensor]
) -> tuple[RopeSpec, RopeSpec | None, int]:
    """The rotary table of all layers; or, in a family whose layers with a window have their own, of the
    others and of them, which no scaling changes. And for how many positions they hold, at most `context`.

    tensors: those of ROPE_TENSORS that the file has.
    """
    name = family.name
    theta = check_theta(metadata.path, metadata.number(f"{name}.rope.freq_base", 10000.0))
    base, positions = _divided(metadata, family, base_frequencies(rope_dim, theta), tensors, context)
    inv_freq, scale = _scaled(metadata, family, base, theta, context)
    scale *= metadata.number(f"{name}.rope.scaling.attn_factor", 1.0)
    rope = RopeSpec(rope_dim, inv_freq.astype(np.float32), scale, family.gguf_interleaved)
    if family.local_theta is None:
        return rope, None, positions
    theta = check_theta(metadata.path, metadata.number(f"{name}.rope.freq_base_swa", family.local_theta))
    inv_freq = base_frequencies(rope_dim, theta)
    local = RopeSpec(rope_dim, inv_freq.astype(np.float32), interleaved=family.gguf_interleaved)
    return rope, local, positions


def original_context(metadata: Metadata, family: Family, context: int) -> int:
    """The context before it was made `context` long."""
    key = f"{family.name}.rope.scaling.original_context_length"
    return metadata.integer(key, 1, LIMITS["max_positions"], default=context)


def _divided(
    metadata: Metadata, family: Family, base: Frequencies, tensors: Mapping[str, Tensor], context: int
) -> tuple[Frequencies, int]:
    """The frequencies divided by the factors in the file, and the positions that these are for. llama.cpp
    takes the long factors for contexts beyond the original one; here that is the limit."""
    always, short, long = (
        _divisors(metadata, name, tensors[name], len(base)) if name in tensors else np.ones(len(base))
        for name in ROPE_TENSORS
    )
    if ROPE_TENSORS[0] in tensors:
        return base / always, context
    if np.array_equal(short, long) or (original := original_context(metadata, family, context)) >= context:
        return base / short, context
    warn_of_limit(metadata.path, original)
    return base / short, original


def _divisors(metadata: Metadata, name: str, tensor: Tensor, count: int) -> Frequencies:
    if tensor.type != "F32" or tensor.shape != (count,):
        raise ModelFileError(f"{metadata.path}: the tensor {name} is not a vector of {count} F32 values")
    divisors = dequantize(tensor).astype(np.float64)
    if not (np.isfinite(divisors) & (divisors > 1e-6)).all():
        raise ModelFileError(f"{metadata.path}: the tensor {name} holds numbers that are not positive")
    return divisors


def _scaled(
    metadata: Metadata, family: Family, base: Frequencies, theta: float, context: int
) -> tuple[Frequencies, float]:
    """The frequencies with the file's scaling applied, and what cos and sin are multiplied with."""
    path, name = metadata.path, family.name
    kind = metadata.text(f"{name}.rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise UnsupportedModelError(
            f"{path}: has {shown(kind)} rotary scaling; supported: none, linear, yarn, longrope"
        )
    if kind == "none":
        return base, 1.0
    # The older key is rope.scale_linear; 0 means "not set" in both.
    old = metadata.number(f"{name}.rope.scale_linear", 0.0)
    factor = metadata.number(f"{name}.rope.scaling.factor", old) or 1.0
    if not 1e-3 <= factor <= 1e6:
        raise ModelFileError(f"{path}: the rotary scaling factor is {factor}, not between 0.001 and 1e6")
    if kind != "yarn":
        return scale_linear(base, factor), 1.0

    def option(key: str, default: float) -> float:
        """A number of YaRN's that llama.cpp reads for some families; for others it takes the default."""
        value = metadata.number(f"{name}.{key}", default)
        if value != default and key not in family.options:
            raise UnsupportedModelError(f"{path}: sets {name}.{key}, which is not supported")
        return value

    for key in ("rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"):
        option(key, 1.0)
    fast, slow = option("rope.scaling.yarn_beta_fast", 32.0), option("rope.scaling.yarn_beta_slow", 1.0)
    if not 1e-6 <= slow < fast <= 1e6:
        raise ModelFileError(
            f"{path}: {name}.rope.scaling.yarn_beta_slow is not between 0 and yarn_beta_fast"
        )
    magnitude = yarn_magnitude(factor, 1.0, option("rope.scaling.yarn_log_multiplier", 0.0))
    original = original_context(metadata, family, context)
    return scale_yarn(base, theta, factor, original, (fast, slow)), magnitude
