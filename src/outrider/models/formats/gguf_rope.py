"""The rotary keys and tensors of a GGUF file, as llama.cpp reads them.

Scalings are none, linear, yarn and longrope, and the factors of `ROPE_TENSORS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.models.checks import check_theta
from outrider.models.families import LIMITS, Family, shown
from outrider.models.formats.dequantize import dequantize
from outrider.models.formats.gguf_metadata import Metadata
from outrider.models.formats.rope import (
    Frequencies,
    Ropes,
    base_frequencies,
    scale_linear,
    scale_yarn,
    yarn_magnitude,
)
from outrider.models.source import Tensor
from outrider.models.spec import RopeSpec

# Divisors of the frequencies: for every context, up to the original one, and beyond it.
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")


def read_ropes(
    metadata: Metadata, family: Family, rope_dim: int, context: int, tensors: Mapping[str, Tensor]
) -> Ropes:
    """The rotary tables, for at most `context` positions.

    tensors: those of ROPE_TENSORS that the file has.
    """
    name = family.name
    theta = check_theta(metadata.path, metadata.number(f"{name}.rope.freq_base", 10000.0))

    def table(divisors: Frequencies) -> RopeSpec:
        base = base_frequencies(rope_dim, theta) / divisors
        inv_freq, scale = _scaled(metadata, family, base, theta, context)
        scale *= metadata.number(f"{name}.rope.scaling.attn_factor", 1.0)
        return RopeSpec(rope_dim, inv_freq.astype(np.float32), scale, family.gguf_interleaved)

    always, short, long = _divisors(metadata, tensors, (rope_dim + 1) // 2)
    original = original_context(metadata, family, context)
    if ROPE_TENSORS[0] in tensors:
        return _with_local(metadata, family, Ropes(table(always), context))
    if original >= context or np.array_equal(short, long):
        return _with_local(metadata, family, Ropes(table(short), context))
    found = Ropes(table(short), original, long=table(long), long_positions=context)
    return _with_local(metadata, family, found)


def _with_local(metadata: Metadata, family: Family, ropes: Ropes) -> Ropes:
    """With the table of layers with a window, in a family where these have their own."""
    if family.local_theta is None:
        return ropes
    theta = metadata.number(f"{family.name}.rope.freq_base_swa", family.local_theta)
    inv_freq = base_frequencies(ropes.rope.dim, check_theta(metadata.path, theta))
    local = RopeSpec(ropes.rope.dim, inv_freq.astype(np.float32), interleaved=family.gguf_interleaved)
    return replace(ropes, local=local)


def original_context(metadata: Metadata, family: Family, context: int) -> int:
    """The context before it was made `context` long."""
    key = f"{family.name}.rope.scaling.original_context_length"
    return metadata.integer(key, 1, LIMITS["max_positions"], default=context)


def _divisors(metadata: Metadata, tensors: Mapping[str, Tensor], count: int) -> list[Frequencies]:
    """What the frequencies are divided by, for each of ROPE_TENSORS; ones for a tensor that is not there."""
    found = []
    for name in ROPE_TENSORS:
        tensor = tensors.get(name)
        if tensor is None:
            found.append(np.ones(count))
            continue
        if tensor.type != "F32" or tensor.shape != (count,):
            raise ModelFileError(f"{metadata.path}: the tensor {name} is not a vector of {count} F32 values")
        divisors = dequantize(tensor).astype(np.float64)
        if not (np.isfinite(divisors) & (divisors > 1e-6)).all():
            raise ModelFileError(f"{metadata.path}: the tensor {name} holds numbers that are not positive")
        found.append(divisors)
    return found


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
