"""Some layers of a model with random weights, to measure how fast the model will be without reading it.

A pass of a small batch reads every matrix once and multiplies each of its weights by each token, whatever the
weights are. So a few layers of the model's exact shapes and weight types, with the same share of its output
matrix, take the same share of its time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from outrider.models.quantization import EMBEDDING, OUTPUT, loaded_bytes, loaded_type, type_bytes
from outrider.models.source import ModelSource, Tensor
from outrider.models.weight_types import FLOAT_TYPES

LEAST_BYTES = 160 << 20  # of weights: more than the caches of most processors hold
ROWS = 16  # of the vocabulary that are kept together

Bytes = npt.NDArray[np.uint8]


def slice_of(source: ModelSource, least_bytes: int = LEAST_BYTES) -> tuple[ModelSource, float]:
    """The first layers of `source` and a part of its vocabulary, `least_bytes` of weights or a little more,
    and their share of the whole model (1.0 where the whole has no more). Nothing is read from its file."""
    spec = source.architecture
    total = loaded_bytes(source)
    layers = min(spec.n_layers, max(1, -(-spec.n_layers * least_bytes // max(1, total))))
    share = layers / spec.n_layers
    vocab = min(spec.vocab_size, max(1, round(share * spec.vocab_size / ROWS)) * ROWS)
    return with_random_weights(source, layers, vocab), share


def with_random_weights(
    source: ModelSource, layers: int | None = None, vocab: int | None = None
) -> ModelSource:
    """The same model, or so many first layers and ids of it, with random weights in the types in which the
    engine holds them."""
    spec = source.architecture
    layers = spec.n_layers if layers is None else layers
    vocab = spec.vocab_size if vocab is None else vocab
    random = np.random.default_rng(0)
    tensors = {}
    for tensor in source.tensors.values():
        part, _, rest = tensor.name.partition(".")
        if part == "blk" and int(rest.partition(".")[0]) >= layers:
            continue
        rows = vocab if tensor.name in (EMBEDDING, OUTPUT) else tensor.shape[0]
        as_loaded = replace(tensor, type=loaded_type(source, tensor))
        tensors[tensor.name] = _random(as_loaded, (rows, *tensor.shape[1:]), random)
    cut = replace(spec, layers=spec.layers[:layers], vocab_size=vocab)
    return replace(source, architecture=cut, tensors=tensors, quantization=None)


def _random(tensor: Tensor, shape: tuple[int, ...], random: np.random.Generator) -> Tensor:
    count = int(np.prod(shape))
    if tensor.type in FLOAT_TYPES:
        floats = random.standard_normal(count, np.float32) * 0.02
        return replace(tensor, shape=shape, data=_floats(floats, tensor.type), recode=None)
    return replace(tensor, shape=shape, data=_blocks(type_bytes(tensor.type, shape), random), recode=None)


def _floats(values: npt.NDArray[np.float32], kind: str) -> Bytes:
    if kind == "F16":
        return values.astype(np.float16).view(np.uint8)
    if kind == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.view(np.uint8)


def _blocks(size: int, random: np.random.Generator) -> Bytes:
    """Random blocks of any quantized type. The cleared bits keep every fp16 scale, wherever it lies, below
    1/64: nothing overflows at
    once."""
    return np.frombuffer(random.bytes(size), np.uint8) & np.uint8(0x9F)
