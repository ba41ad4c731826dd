"""What a model's numbers and tensors have to be before anything is computed with them.

A reader of a format calls `check_dimensions` before `make_spec` (families.py) and `check_tensors` after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.models.families import FAMILIES, LIMITS, Dimensions, shown
from outrider.models.source import Tensor
from outrider.models.spec import HeadSpec, LayerSpec, ModelSpec, RopeSpec
from outrider.models.weight_types import FLOAT_TYPES, FOLDER_TYPES, SUPPORTED_TYPES


def check_dimensions(path: Path, d: Dimensions) -> None:
    """Raise ModelFileError, naming the number, unless every one is positive, bounded and consistent."""
    for name, most in LIMITS.items():
        value = getattr(d, name)
        if not 1 <= value <= most:
            raise ModelFileError(f"{path}: {name} is {value}, not between 1 and {most}")
    if d.n_heads % d.n_kv_heads:
        raise ModelFileError(f"{path}: {d.n_heads} heads do not divide among {d.n_kv_heads} key heads")
    if d.rope_dim % 2 or d.rope_dim > d.head_dim:
        raise ModelFileError(f"{path}: rope_dim {d.rope_dim} is odd or above head_dim {d.head_dim}")
    if d.head_dim % 2:
        raise ModelFileError(f"{path}: head_dim {d.head_dim} is odd")
    if not (math.isfinite(d.rms_eps) and 0 < d.rms_eps < 1):
        raise ModelFileError(f"{path}: rms_eps is {d.rms_eps}, not between 0 and 1")
    for rope in (d.rope, d.local_rope, d.long_rope):
        if rope is not None:
            _check_rope(path, rope)
    _check_layers(path, d)


def _check_layers(path: Path, d: Dimensions) -> None:
    """The numbers of what not all families have."""
    for window in d.windows:
        if window is not None and not 1 <= window <= LIMITS["max_positions"]:
            raise ModelFileError(
                f"{path}: the sliding window is {window}, not between 1 and {LIMITS['max_positions']}"
            )
    for each in (d.windows, d.unrotated):
        if each and len(each) != d.n_layers:
            raise ModelFileError(f"{path}: names the kinds of {len(each)} layers, but has {d.n_layers}")
    for what, value in (
        ("scale of attention", 1.0 if d.attention_scale is None else d.attention_scale),
        ("softcap", d.softcap or 1.0),
        ("softcap on attention", d.attention_softcap or 1.0),
        ("scale of embeddings", d.embedding_scale),
        ("scale of what layers add", d.residual_scale),
        ("scale of logits", d.logit_scale),
        ("growth of queries", d.query_growth or 1.0),
    ):
        if not 1e-6 <= value <= 1e6:  # a NaN fails too
            raise ModelFileError(f"{path}: the {what} is {value}, not between 1e-6 and 1e6")


def _check_rope(path: Path, rope: RopeSpec) -> None:
    if not (math.isfinite(rope.scale) and rope.scale > 0):
        raise ModelFileError(f"{path}: the rotary scale is {rope.scale}, not a positive number")
    frequencies = rope.inv_freq
    if (
        frequencies.shape != (rope.dim // 2,)
        or not np.isfinite(frequencies).all()
        or (frequencies <= 0).any()
    ):
        raise ModelFileError(f"{path}: the rotary frequencies are not {rope.dim // 2} positive numbers")


def check_theta(path: Path, theta: float) -> float:
    """`theta`, the base of the rotary frequencies, or ModelFileError unless it is between 1 and 1e12."""
    if not 1 < theta <= 1e12:  # a NaN fails too
        raise ModelFileError(f"{path}: the rotary base is {theta}, not between 1 and 1e12")
    return theta


def check_tensors(
    path: Path,
    spec: ModelSpec,
    tensors: Mapping[str, Tensor],
    file_name: Callable[[str], str] = lambda name: name,
) -> None:
    """Raise unless `tensors` are exactly those of `spec`, each with the right shape and a known type.

    `file_name` turns a tensor's name into the one that its file uses. Raises ModelFileError for a missing
    or misshaped tensor, UnsupportedModelError for one that `spec` has no use for.
    """
    known = set()
    for name, shape, required in expected_tensors(spec):
        known.add(name)
        if name not in tensors and not required:
            continue
        tensor = with_shape(path, file_name(name), tensors.get(name), shape)
        allowed = FLOAT_TYPES if len(shape) == 1 else SUPPORTED_TYPES
        if tensor.type not in allowed and (len(shape) == 1 or tensor.type not in FOLDER_TYPES):
            raise UnsupportedModelError(
                f"{path}: the tensor {file_name(name)} has type {tensor.type}; supported: "
                f"{', '.join(allowed)}"
            )
    for name in tensors:
        if name not in known:
            # Leaving out a weight that somebody trained would change the text without a warning.
            raise UnsupportedModelError(
                f"{path}: the tensor {shown(file_name(name))} is not part of a {spec.name} model "
                f"of {spec.n_layers} layers as it is known here"
            )


def with_shape(path: Path, name: str, tensor: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """The tensor that the file calls `name`, or ModelFileError where it is missing or has another shape."""
    if tensor is None:
        raise ModelFileError(f"{path}: the tensor {name} is missing")
    if tensor.shape != shape:
        raise ModelFileError(f"{path}: the tensor {name} is {_by(tensor.shape)}, not {_by(shape)}")
    return tensor


def expected_tensors(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """(name, shape, whether it must be there) of every tensor of a model. Shapes are (rows, columns)."""
    hidden = spec.hidden_size
    yield "token_embd.weight", (spec.token_count, hidden), spec.head is None
    yield "output_norm.weight", (hidden,), True
    yield "output.weight", (spec.vocab_size, hidden), False
    required_bias, optional_bias = _biases(spec)
    if spec.head is not None:
        yield from _state_weights(hidden, spec.head)
    for i, layer in enumerate(spec.layers):
        weights = layer_weights(spec, layer, reads_state=spec.head is not None and i == 0)
        for part, shape in weights.items():
            yield f"blk.{i}.{part}.weight", shape, True
        for part in required_bias:
            yield f"blk.{i}.{part}.bias", weights[part][:1], True
        for part in optional_bias:
            yield f"blk.{i}.{part}.bias", weights[part][:1], False


def _biases(spec: ModelSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Parts of a layer that must have a bias, and those that may."""
    if spec.head is not None:
        return (), ()
    family = FAMILIES[spec.name]
    return family.required_bias, family.optional_bias


def _state_weights(hidden: int, head: HeadSpec) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """What a head reads hidden states with, as in `expected_tensors`."""
    yield "fc.weight", (hidden, head.width), True
    if head.joint_norm:
        yield "enc.output_norm.weight", (head.width,), True
    for i in range(head.states if head.state_norms else 0):
        yield f"fc_norm.{i}.weight", (head.state_size,), True


def layer_weights(
    spec: ModelSpec, layer: LayerSpec, *, reads_state: bool = False
) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights of a layer, by the names of its parts. reads_state: the first one of a head."""
    hidden, ffn = spec.hidden_size, layer.feed_forward.size
    width = 2 * hidden if reads_state else hidden
    q_rows, kv_rows = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
    norms: dict[str, tuple[int, bool]] = {  # name: columns, whether the layer has it
        "attn_norm": (hidden, layer.norms.attention),
        "attn_norm_2": (hidden, reads_state),
        "attn_q_norm": (q_rows if layer.norms.whole_qk else spec.head_dim, layer.norms.q),
        "attn_k_norm": (kv_rows if layer.norms.whole_qk else spec.head_dim, layer.norms.k),
        "post_attention_norm": (hidden, layer.norms.post_attention),
        "ffn_norm": (hidden, layer.norms.ffn),
        "post_ffw_norm": (hidden, layer.norms.post_ffn),
    }
    return {
        **{name: (columns,) for name, (columns, present) in norms.items() if present},
        "attn_q": (q_rows, width),
        "attn_k": (kv_rows, width),
        "attn_v": (kv_rows, width),
        "attn_output": (hidden, q_rows),
        "ffn_gate": (ffn, hidden),
        "ffn_up": (ffn, hidden),
        "ffn_down": (hidden, ffn),
    }


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a single number"
