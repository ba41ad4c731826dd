"""The rotary parameters in config.json: rope_scaling, or rope_parameters (transformers 5).

Scalings are those of transformers: default, linear, dynamic, llama3, yarn and longrope.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.models.checks import check_theta
from outrider.models.families import LIMITS, HuggingFaceClass, shown
from outrider.models.formats.hf_json import Section
from outrider.models.formats.rope import (
    Frequencies,
    Ropes,
    base_frequencies,
    longrope_magnitude,
    scale_linear,
    scale_llama3,
    scale_yarn,
    yarn_magnitude,
)
from outrider.models.spec import RopeSpec

_SCALINGS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def read_ropes(config: Section, kind: HuggingFaceClass, head_dim: int, max_positions: int) -> Ropes:
    """The rotary tables, for at most `max_positions` positions."""
    if kind.local_theta is None:
        return _rope(config, kind, head_dim, max_positions)
    full, local = _both_ropes(config, kind, kind.local_theta, head_dim, max_positions)
    return replace(full, local=local.rope)


def read_query_growth(config: Section, kind: HuggingFaceClass, max_positions: int) -> tuple[float, int]:
    """query_growth and query_growth_positions of every layer, see `LayerSpec`."""
    if not kind.query_growth:
        return 0.0, 1
    rope = next(iter(_sections(config)), Section(config.path, {}))
    return rope.number("llama_4_scaling_beta"), _original(config, rope, kind, max_positions)


def _both_ropes(
    config: Section, kind: HuggingFaceClass, local_theta: float, head_dim: int, max_positions: int
) -> list[Ropes]:
    """Of layers that see all positions, and of those with a window: nested as transformers 5 writes them, or
    flat."""
    given = config.section("rope_parameters") or Section(config.path, {})
    nested = any(isinstance(value, dict) for value in given.values.values())
    found = []
    for layers, key, theta in (
        ("full_attention", "rope_theta", kind.theta),
        ("sliding_attention", "rope_local_base_freq", local_theta),
    ):
        full = layers == "full_attention"
        own = given.section(layers) if nested else given if full else None
        values = dict(own.values) if own is not None else {}
        if full and (scaling := config.section("rope_scaling")) is not None:
            values.update(scaling.values)
        values.setdefault("rope_theta", config.number(key, theta))
        found.append(_rope_of(config, Section(config.path, values), kind, head_dim, max_positions))
    return found


def _rope(config: Section, kind: HuggingFaceClass, head_dim: int, max_positions: int) -> Ropes:
    """Of rope_scaling, as in transformers, or else of rope_parameters. Both may be there if they mean the
    same."""
    found = [_rope_of(config, rope, kind, head_dim, max_positions) for rope in _sections(config)]
    if not found:
        return _rope_of(config, Section(config.path, {}), kind, head_dim, max_positions)
    one, other = found[0].rope, found[-1].rope
    if not np.array_equal(one.inv_freq, other.inv_freq) or one.scale != other.scale:
        raise ModelFileError(f"{config.path}: rope_scaling and rope_parameters say different things")
    return found[0]


def _sections(config: Section) -> list[Section]:
    """Those of the two sections that hold anything."""
    found = (config.section(key) for key in ("rope_scaling", "rope_parameters"))
    return [section for section in found if section is not None and section.values]


def _rope_of(
    config: Section, rope: Section, kind: HuggingFaceClass, head_dim: int, max_positions: int
) -> Ropes:
    """Of one of the two sections; what it leaves out is taken from the configuration."""
    if any(isinstance(value, dict) for value in rope.values.values()):
        raise UnsupportedModelError(f"{config.path}: has other rotary parameters for each kind of layer")
    dim = int(head_dim * _partial(config, rope, kind))
    theta = check_theta(config.path, rope.number("rope_theta", config.number("rope_theta", kind.theta)))
    original = _original(config, rope, kind, max_positions)
    base = base_frequencies(dim, theta)
    inv_freq, scale = base, 1.0
    scaling = rope.text("rope_type", rope.text("type", "default"))
    if kind.original_positions and scaling in ("su", "yarn"):  # what Phi's longrope was called
        scaling = "longrope"
    known = ("default", "longrope") if kind.original_positions else _SCALINGS
    if scaling not in known:
        raise UnsupportedModelError(
            f"{rope.path}: has {shown(scaling)} rotary scaling; supported: {', '.join(known)}"
        )
    if scaling == "dynamic":
        _factor(rope)  # counts in contexts beyond max_position_embeddings, and there are none
    elif scaling == "linear":
        inv_freq = scale_linear(base, _factor(rope))
    elif scaling == "llama3":
        inv_freq = _llama3(rope, base, original)
    elif scaling == "yarn":
        inv_freq, scale = _yarn(rope, base, theta, original, max_positions)
    elif scaling == "longrope":
        return _longrope(rope, dim, base, (original, max_positions))
    return Ropes(RopeSpec(dim, inv_freq.astype(np.float32), scale), max_positions)


def _original(config: Section, rope: Section, kind: HuggingFaceClass, max_positions: int) -> int:
    """The context before it was made longer; beside the rotary parameters it counts first."""
    key = "original_max_position_embeddings"
    if kind.original_positions or config.values.get(key) is not None:
        return config.integer(key, 1, LIMITS["max_positions"], kind.original_positions or max_positions)
    return rope.integer(key, 1, LIMITS["max_positions"], max_positions)


def _partial(config: Section, rope: Section, kind: HuggingFaceClass) -> float:
    """What part of the columns of each head is rotated, the first ones."""
    part = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if part != 1.0 and not kind.partial_rope:
        raise UnsupportedModelError(f"{config.path}: sets partial_rotary_factor, which is not supported")
    if not 0 < part <= 1:
        raise ModelFileError(f"{config.path}: partial_rotary_factor is {part}, not between 0 and 1")
    return part


def _factor(rope: Section, default: float | None = None) -> float:
    factor = rope.number("factor", default)
    if not 1e-3 <= factor <= 1e6:
        raise ModelFileError(f"{rope.path}: the rotary factor is {factor}, not between 0.001 and 1e6")
    return factor


def _llama3(rope: Section, base: Frequencies, original: int) -> Frequencies:
    factor = _factor(rope)
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if not 1e-6 <= low < high <= 1e6:
        raise ModelFileError(f"{rope.path}: low_freq_factor is not between 0 and high_freq_factor")
    return scale_llama3(base, factor, low, high, original)


def _yarn(
    rope: Section, base: Frequencies, theta: float, original: int, max_positions: int
) -> tuple[Frequencies, float]:
    factor = _factor(rope, max_positions / original)
    # transformers takes a 0 of these four for "not set".
    fast, slow = rope.number("beta_fast", 0.0) or 32.0, rope.number("beta_slow", 0.0) or 1.0
    if not 1e-6 <= slow < fast <= 1e6:
        raise ModelFileError(f"{rope.path}: beta_slow is not between 0 and beta_fast")
    mscale, every = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    if not (mscale and every):
        mscale, every = 1.0, 0.0
    scale = _magnitude(rope, yarn_magnitude(factor, mscale, every))
    truncate = rope.flag("truncate", True)
    return scale_yarn(base, theta, factor, original, (fast, slow), truncate=truncate), scale


def _magnitude(rope: Section, usual: float) -> float:
    return usual if rope.values.get("attention_factor") is None else rope.number("attention_factor")


def _longrope(rope: Section, dim: int, base: Frequencies, contexts: tuple[int, int]) -> Ropes:
    """The short factors count in contexts up to the original one, the long ones in all others. transformers
    changes over in the middle of a text, against what earlier tokens have computed; here one table holds for
    a text, as in llama.cpp and vLLM."""
    original, max_positions = contexts
    factor = _factor(rope, max_positions / original)
    scale = _magnitude(rope, longrope_magnitude(factor, original))
    short, long = (
        RopeSpec(dim, (base / _divisors(rope, key, len(base))).astype(np.float32), scale)
        for key in ("short_factor", "long_factor")
    )
    if original >= max_positions or np.array_equal(short.inv_freq, long.inv_freq):
        return Ropes(short, max_positions)
    return Ropes(short, original, long=long, long_positions=max_positions)


def _divisors(rope: Section, key: str, count: int) -> Frequencies:
    given = rope.values.get(key)
    if not isinstance(given, list) or len(given) != count:
        raise ModelFileError(f"{rope.path}: {key} is not a list of {count} numbers")
    found = [Section(rope.path, {key: value}).number(key) for value in given]
    if not all(1e-6 <= value <= 1e6 for value in found):
        raise ModelFileError(f"{rope.path}: {key} holds numbers that are not between 1e-6 and 1e6")
    return np.array(found)
