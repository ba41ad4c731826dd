"""What a model of a known architecture must look like, whatever format it came in.

`check_architecture` bounds the numbers, `check_tensors` holds the tensors against them. To add an
architecture, add a line to `FAMILIES` (and its rotation style to the reader of each format).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.models.source import Architecture, RopeStyle, Tensor

SUPPORTED_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
VECTOR_TYPES = ("F32", "F16", "BF16")

# Ids of these pieces end a turn when the vocabulary has them as special tokens.
END_OF_TURN = frozenset(
    ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "</s>")
) | {"<end_of_turn>"}


@dataclass(frozen=True, slots=True)
class Family:
    """What sets one architecture apart: its rotation in GGUF files, and which biases it has."""

    gguf_rope: RopeStyle
    required_bias: tuple[str, ...] = ()
    optional_bias: tuple[str, ...] = ()


FAMILIES: Mapping[str, Family] = {
    "llama": Family("interleaved", optional_bias=("attn_q", "attn_k", "attn_v", "attn_output")),
    "qwen2": Family("half", required_bias=("attn_q", "attn_k", "attn_v")),
}

# Far above any model that exists; they keep every later product inside 64 bits.
LIMITS: Mapping[str, int] = {
    "n_layers": 1024,
    "hidden_size": 1 << 17,
    "n_heads": 4096,
    "n_kv_heads": 4096,
    "head_dim": 1024,
    "ffn_size": 1 << 20,
    "vocab_size": 1 << 22,
    "max_positions": 1 << 26,
    "rope_dim": 1024,
}


def shown(text: str) -> str:
    """A name from a file, fit for one line of an error: quoted, escaped, at most 80 characters."""
    short = text if len(text) <= 80 else text[:77] + "..."
    return ascii(short)


def check_architecture(path: Path, arch: Architecture) -> None:
    """Raise ModelFileError, naming the number, unless every one is positive, bounded and consistent."""
    for name, most in LIMITS.items():
        value = getattr(arch, name)
        if not 1 <= value <= most:
            raise ModelFileError(f"{path}: {name} is {value}, not between 1 and {most}")
    if arch.n_heads % arch.n_kv_heads:
        raise ModelFileError(f"{path}: {arch.n_heads} heads do not divide among {arch.n_kv_heads} key heads")
    if arch.rope_dim % 2 or arch.rope_dim > arch.head_dim:
        raise ModelFileError(f"{path}: rope_dim {arch.rope_dim} is odd or above head_dim {arch.head_dim}")
    if arch.head_dim % 2:
        raise ModelFileError(f"{path}: head_dim {arch.head_dim} is odd")
    if not (math.isfinite(arch.rms_eps) and 0 < arch.rms_eps < 1):
        raise ModelFileError(f"{path}: rms_eps is {arch.rms_eps}, not between 0 and 1")
    if not (math.isfinite(arch.rope_scale) and arch.rope_scale > 0):
        raise ModelFileError(f"{path}: the rotary scale is {arch.rope_scale}, not a positive number")
    inv_freq = arch.inv_freq
    if inv_freq.shape != (arch.rope_dim // 2,) or not np.isfinite(inv_freq).all() or (inv_freq <= 0).any():
        raise ModelFileError(f"{path}: the rotary frequencies are not {arch.rope_dim // 2} positive numbers")


def check_theta(path: Path, theta: float) -> float:
    """`theta`, the base of the rotary frequencies, or ModelFileError unless it is between 1 and 1e12."""
    if not 1 < theta <= 1e12:  # a NaN fails too
        raise ModelFileError(f"{path}: the rotary base is {theta}, not between 1 and 1e12")
    return theta


def check_tensors(
    path: Path,
    arch: Architecture,
    tensors: Mapping[str, Tensor],
    called: Callable[[str], str] = lambda name: name,
) -> None:
    """Raise unless `tensors` are exactly those of `arch`, each with the right shape and a known type.

    `called` turns a tensor's name into the one that its file uses. Raises ModelFileError for a missing
    or misshaped tensor, UnsupportedModelError for one that `arch` has no use for.
    """
    known = set()
    for name, shape, required in _expected(arch):
        known.add(name)
        tensor = tensors.get(name)
        if tensor is None:
            if required:
                raise ModelFileError(f"{path}: the tensor {called(name)} is missing")
            continue
        if tensor.shape != shape:
            raise ModelFileError(
                f"{path}: the tensor {called(name)} is {_by(tensor.shape)}, not {_by(shape)}"
            )
        allowed = VECTOR_TYPES if len(shape) == 1 else SUPPORTED_TYPES
        if tensor.type not in allowed:
            raise UnsupportedModelError(
                f"{path}: the tensor {called(name)} has type {tensor.type}; supported: {', '.join(allowed)}"
            )
    for name in tensors:
        if name not in known:
            # Leaving out a weight that somebody trained would change the text without a word.
            raise UnsupportedModelError(
                f"{path}: the tensor {shown(called(name))} is not part of a {arch.name} model "
                f"of {arch.n_layers} layers as it is known here"
            )


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _expected(arch: Architecture) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    hidden, ffn = arch.hidden_size, arch.ffn_size
    q_rows, kv_rows = arch.n_heads * arch.head_dim, arch.n_kv_heads * arch.head_dim
    family = FAMILIES[arch.name]
    yield "token_embd.weight", (arch.vocab_size, hidden), True
    yield "output_norm.weight", (hidden,), True
    yield "output.weight", (arch.vocab_size, hidden), False
    weights: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "attn_q": (q_rows, hidden),
        "attn_k": (kv_rows, hidden),
        "attn_v": (kv_rows, hidden),
        "attn_output": (hidden, q_rows),
        "ffn_norm": (hidden,),
        "ffn_gate": (ffn, hidden),
        "ffn_up": (ffn, hidden),
        "ffn_down": (hidden, ffn),
    }
    for layer in range(arch.n_layers):
        for part, shape in weights.items():
            yield f"blk.{layer}.{part}.weight", shape, True
        for part in family.required_bias:
            yield f"blk.{layer}.{part}.bias", weights[part][:1], True
        for part in family.optional_bias:
            yield f"blk.{layer}.{part}.bias", weights[part][:1], False
