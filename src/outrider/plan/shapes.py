"""Models and heads that are not here, by their shapes: what guides pair, for `plan` and `bench --synthetic`.

`llama-3.1-8b:q4_k_m` is a `ModelSource` without a file. Its tensors take no memory: they can be counted, and
`slices.with_random_weights` fills them. Shapes are those of the table of known models, types those that
llama.cpp's quantization gives each matrix.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from outrider.errors import ConfigError, nearest
from outrider.models.checks import expected_tensors
from outrider.models.eagle3.head import NAME, NO_TOKENIZER, USUAL_STATES, Eagle3Head
from outrider.models.families import FAMILIES, Dimensions, make_spec, periodic_windows
from outrider.models.quantization import EMBEDDING, type_bytes
from outrider.models.source import ModelSource, Tensor, TokenizerData
from outrider.models.sources.known import KNOWN, Shape
from outrider.models.spec import HeadSpec, ModelSpec, RopeSpec

SHAPES = {name: model.shape for name, model in KNOWN.items()}
# llama.cpp's types of matrices whose rows are not made of whole superblocks of 256.
SMALL_BLOCKS = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}


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
HEAD = f"{NAME}-"  # before a target's name: a head for it
HEAD_ROWS = 32_000  # of the output of published heads, which leave out the target's rarest tokens


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
    shape = SHAPES[model]
    spec = _spec(shape)
    tensors = {}
    for tensor, size, required in expected_tensors(spec):
        if not required and (shape.tied or tensor != "output.weight"):
            continue
        tensors[tensor] = _empty(tensor, size, TYPES[kind], shape.layers, shape.tied)
    group = KNOWN[model].group if model in KNOWN else model
    return ModelSource(
        path=Path(f"synthetic:{model}:{kind}"),
        format="gguf",
        display_name=f"synthetic {model} {kind}",
        architecture=spec,
        tensors=tensors,
        tokenizer=_tokenizer(group, shape.vocab),
        chat_template=None,
    )


def shape_head(name: str) -> Eagle3Head | None:
    """The head "eagle3-llama-3.1-8b", with the layout of published heads: one layer with the target's widths,
    32,000 rows of output, bfloat16, the target's embedding. None for names that begin otherwise. Raises
    ConfigError for a head of an unknown target."""
    if not name.lower().startswith(HEAD):
        return None
    model, _, kind = name.lower().removeprefix(HEAD).partition(":")
    if model not in SHAPES or kind not in ("", "bf16"):
        there = f"a head is {HEAD}NAME, in bf16, where NAME is one of {', '.join(SHAPES)}"
        raise ConfigError(f"synthetic head {name!r} is unknown; {there}{nearest(model, tuple(SHAPES))}")
    shape = SHAPES[model]
    ids = np.arange(min(HEAD_ROWS, shape.vocab), dtype=np.int32)
    llama = replace(shape, family="llama", layers=1, vocab=len(ids), window=0, tied=False)
    head = HeadSpec(USUAL_STATES, shape.hidden, shape.vocab)
    spec = replace(_spec(llama), name=NAME, head=head)
    tensors = {
        tensor: _empty(tensor, size, TYPES["bf16"], 1, tied=False)
        for tensor, size, _ in expected_tensors(spec)
        if tensor != EMBEDDING
    }
    source = ModelSource(
        path=Path(f"synthetic:{HEAD}{model}"),
        format="gguf",
        display_name=f"synthetic EAGLE-3 head for {model}",
        architecture=spec,
        tensors=tensors,
        tokenizer=NO_TOKENIZER,
        chat_template=None,
    )
    return Eagle3Head(source, None, ids, made_for=model)


def _spec(shape: Shape) -> ModelSpec:
    family = FAMILIES[shape.family]
    windows: tuple[int | None, ...] = ()
    local = None
    if shape.window:
        windows = periodic_windows(shape.layers, shape.window, shape.window_period)
        local = _rope(shape, shape.local_theta, family.gguf_interleaved)
    dimensions = Dimensions(
        *(shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.ffn),
        *(shape.vocab, shape.positions),
        rms_eps=1e-5,
        rope=_rope(shape, shape.theta, family.gguf_interleaved),
        local_rope=local,
        windows=windows,
    )
    return make_spec(family, dimensions)


def _rope(shape: Shape, theta: float, interleaved: bool) -> RopeSpec:
    frequencies = theta ** -(np.arange(0, shape.head_dim, 2, dtype=np.float64) / shape.head_dim)
    return RopeSpec(shape.head_dim, frequencies.astype(np.float32), interleaved=interleaved)


@functools.cache
def _tokenizer(group: str, size: int) -> TokenizerData:
    """Models of one group have one vocabulary, but for padding; its pieces are not here."""
    return TokenizerData("bpe", tokens=tuple(f"<{group} {i}>" for i in range(size)))


def _empty(
    name: str, shape: tuple[int, ...], types: Callable[[str, int, int], str], layers: int, tied: bool
) -> Tensor:
    """A tensor of as many bytes, all of which are the same one."""
    *block, part, _ = name.split(".")
    if part == "token_embd" and tied:
        part = "output"
    layer = int(block[1]) if block else 0
    kind = types(part, layer, layers) if len(shape) == 2 else "F32"
    if len(shape) == 2 and shape[1] % 256:
        kind = SMALL_BLOCKS.get(kind, kind)
    return Tensor(name, kind, shape, np.broadcast_to(np.uint8(0), (type_bytes(kind, shape),)))
