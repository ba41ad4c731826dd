"""Models that are not here, by their shapes: what guides pair, for `plan` and `bench --synthetic`.

`llama-3.1-8b:q4_k_m` is a `ModelSource` without a file. Its tensors take no memory: they can be counted, and
`slices.with_random_weights` fills them. Shapes are those of the models' own config.json, types those that
llama.cpp's quantization gives each matrix.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from outrider.errors import ConfigError, nearest
from outrider.models.checks import expected_tensors
from outrider.models.families import FAMILIES, Dimensions, make_spec
from outrider.models.quantization import type_bytes
from outrider.models.source import ModelSource, Tensor, TokenizerData
from outrider.models.spec import RopeSpec

# Layers, hidden size, heads, heads of keys and values, head size, feed-forward size, and whether the output
# matrix is the embedding.
SHAPES = {
    "llama-3.1-8b": (32, 4096, 32, 8, 128, 14336, False),
    "llama-3.1-70b": (80, 8192, 64, 8, 128, 28672, False),
    "llama-3.3-70b": (80, 8192, 64, 8, 128, 28672, False),
    "llama-3.2-1b": (16, 2048, 32, 8, 64, 8192, True),
    "llama-3.2-3b": (28, 3072, 24, 8, 128, 8192, True),
}
VOCAB_SIZE, POSITIONS, THETA = 128_256, 131_072, 500_000.0  # of all of these


def _more_bits(layer: int, layers: int) -> bool:
    """The layers in which llama.cpp's K_M mixes give some matrices a better type."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _q4_k_m(part: str, layer: int, layers: int) -> str:
    if part == "output" or (part in ("attn_v", "ffn_down") and _more_bits(layer, layers)):
        return "Q6_K"
    return "Q4_K"


def _all(kind: str) -> Callable[[str, int, int], str]:
    return lambda part, layer, layers: kind


TYPES: dict[str, Callable[[str, int, int], str]] = {
    "q4_k_m": _q4_k_m,
    "q4_0": lambda part, layer, layers: "Q6_K" if part == "output" else "Q4_0",
    "q6_k": _all("Q6_K"),
    "q8_0": _all("Q8_0"),
    "bf16": _all("BF16"),
}
USUAL_TYPE = "q4_k_m"


def shape_source(name: str) -> ModelSource:
    """The source of "llama-3.1-8b:q4_k_m" (the type may be left out). Raises ConfigError for others."""
    model, _, kind = name.lower().partition(":")
    kind = kind or USUAL_TYPE
    for text, known, what in ((model, SHAPES, "model"), (kind, TYPES, "weight type")):
        if text not in known:
            there = ", ".join(known)
            raise ConfigError(
                f"synthetic {what} {text!r} is unknown; there are {there}{nearest(text, known)}"
            )
    layers, hidden, heads, kv_heads, head_dim, ffn, tied = SHAPES[model]
    frequencies = THETA ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    rope = RopeSpec(head_dim, frequencies.astype(np.float32), interleaved=True)
    spec = make_spec(
        FAMILIES["llama"],
        Dimensions(
            layers, hidden, heads, kv_heads, head_dim, ffn, VOCAB_SIZE, POSITIONS, rms_eps=1e-5, rope=rope
        ),
    )
    tensors = {}
    for tensor, shape, required in expected_tensors(spec):
        if not required and (tied or tensor != "output.weight"):
            continue
        tensors[tensor] = _empty(tensor, shape, TYPES[kind], layers, tied)
    return ModelSource(
        path=Path(f"synthetic:{model}:{kind}"),
        format="gguf",
        display_name=f"synthetic {model} {kind}",
        architecture=spec,
        tensors=tensors,
        tokenizer=_tokenizer(),
        chat_template=None,
    )


@functools.cache
def _tokenizer() -> TokenizerData:
    """All of these models have one vocabulary; its pieces are not here."""
    return TokenizerData("bpe", tokens=tuple(f"<{i}>" for i in range(VOCAB_SIZE)))


def _empty(
    name: str, shape: tuple[int, ...], types: Callable[[str, int, int], str], layers: int, tied: bool
) -> Tensor:
    """A tensor of as many bytes, all of which are the same one."""
    *block, part, _ = name.split(".")
    if part == "token_embd" and tied:
        part = "output"
    layer = int(block[1]) if block else 0
    kind = types(part, layer, layers) if len(shape) == 2 else "F32"
    return Tensor(name, kind, shape, np.broadcast_to(np.uint8(0), (type_bytes(kind, shape),)))
