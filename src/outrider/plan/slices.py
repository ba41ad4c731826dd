"""Some layers of a model with random weights, to measure how fast the model will be without reading it.

A pass of a small batch reads every matrix once and multiplies each of its weights by each token, whatever the
weights are. So a few layers of the model's exact shapes and weight types, with the same share of its output
matrix, take the same share of its time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from outrider.machine import last_level_cache_bytes
from outrider.models.quantization import EMBEDDING, OUTPUT, loaded_bytes, loaded_type, type_bytes
from outrider.models.source import ModelSource
from outrider.models.weight_types import FLOAT_TYPES

CACHED = 3  # times as many bytes of weights as the processor's caches hold are read from memory
LEAST_BYTES = 160 << 20  # of weights, where it is not known what they hold
LIMITS = (64 << 20, 320 << 20)  # of the bytes, whatever the caches are said to hold: packing takes time
ROWS = 16  # of the vocabulary that are kept together

PATTERN = 1_000_003  # random values that a matrix repeats: a prime, so that its rows differ
BLOCKS = "blocks"  # values of all quantized types
OFFSETS = 1 << 14  # places in the pattern at which matrices begin, 64 bytes apart

Bytes = npt.NDArray[np.uint8]


def least_bytes() -> int:
    """Bytes of weights that a pass has to read from memory on this machine."""
    cached = last_level_cache_bytes()
    low, high = LIMITS
    return LEAST_BYTES if cached is None else min(high, max(low, CACHED * cached))


def slice_of(source: ModelSource, least: int | None = None) -> tuple[ModelSource, float]:
    """The first layers of `source` and a part of its vocabulary, `least` bytes of weights (None:
    `least_bytes`) or a little more, and their share of the whole model (1.0 where the whole has no more).
    Nothing is read from its file."""
    least = least_bytes() if least is None else least
    spec = source.architecture
    total = loaded_bytes(source)
    layers = min(spec.n_layers, max(1, -(-spec.n_layers * least // max(1, total))))
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
    shapes = {}
    for tensor in source.tensors.values():
        part, _, rest = tensor.name.partition(".")
        if part == "blk" and int(rest.partition(".")[0]) >= layers:
            continue
        rows = vocab if vocab is not None and tensor.name in (EMBEDDING, OUTPUT) else tensor.shape[0]
        shapes[tensor.name] = (loaded_type(source, tensor), (rows, *tensor.shape[1:]))
    made = _Random(shapes.values())
    tensors = {
        name: replace(
            source.tensors[name], type=kind, shape=shape, data=made.weights(kind, shape), recode=None
        )
        for name, (kind, shape) in shapes.items()
    }
    cut = replace(spec, layers=spec.layers[:layers], vocab_size=vocab or spec.vocab_size)
    return replace(source, architecture=cut, tensors=tensors, quantization=None)


def _values(kind: str) -> str:
    return kind if kind in FLOAT_TYPES else BLOCKS


class _Random:
    """Random weights of any type, as views into one array for each kind of value: an engine packs them into
    memory of its own, so that they need not have any themselves.

    wanted: type and shape of each tensor.
    """

    def __init__(self, wanted: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        self._sizes: dict[str, int] = {}  # of the largest tensor of each kind of value
        for kind, shape in wanted:
            values = _values(kind)
            self._sizes[values] = max(self._sizes.get(values, 0), type_bytes(kind, shape))
        self._random = np.random.default_rng(0)
        self._made: dict[str, Bytes] = {}

    def weights(self, kind: str, shape: tuple[int, ...]) -> Bytes:
        """A tensor of this type, from somewhere in the array."""
        values = _values(kind)
        if values not in self._made:
            pattern = self._blocks() if values == BLOCKS else self._floats(kind)
            self._made[values] = np.resize(pattern, self._sizes[values] + 64 * OFFSETS)
        first = 64 * int(self._random.integers(OFFSETS))
        return self._made[values][first : first + type_bytes(kind, shape)]

    def _blocks(self) -> Bytes:
        """Random blocks of any quantized type. The cleared bits keep every fp16 scale, wherever it lies,
        below 1/64: nothing overflows at once."""
        return np.frombuffer(self._random.bytes(PATTERN), np.uint8) & np.uint8(0x9F)

    def _floats(self, kind: str) -> Bytes:
        values = self._random.standard_normal(PATTERN, np.float32) * np.float32(0.02)
        if kind == "F16":
            return values.astype(np.float16).view(np.uint8)
        if kind == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.view(np.uint8)
