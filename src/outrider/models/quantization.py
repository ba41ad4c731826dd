"""Quantization at load: the weight type in which the engine holds each matrix of a model.

A model that is quantized at load is a different model from the file's, so its display name says so.

For float models:
- q8_0: every matrix as Q8_0.
- q4_k: every matrix as Q4_K, but the embedding and the output matrix as Q6_K.
If the number of columns is not a multiple of a type's group of weights (256 for Q4_K and Q6_K, 32 for Q8_0),
Q8_0 is used instead, or else the file's own type. Norms and biases are not quantized.

- torchao, bitsandbytes: by these libraries, when the torch engine loads it (engines/torch/packed.py). The
  embedding and the output matrix stay floats.

For draft models, whatever the file's types:
- q4: every matrix as Q4_0, if that makes it considerably smaller. An embedding that is not also the output
  matrix becomes Q8_0, as a pass reads only a few of its rows.
- q3: the same, but the feed-forward matrices as Q3_0 (csrc/kernels/quantize.h).
- auto: q3, or q4 if the target is so much larger that acceptance matters more than the draft model's time.
The time of a draft model's pass is the time to read its bytes, and quantization errors of a draft model cost
acceptance, never exactness. (Q4_K would be more accurate, but takes five times as long to compute.)
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from outrider.config import quantization
from outrider.errors import ConfigError
from outrider.models.source import ModelSource, Tensor
from outrider.models.weight_types import BLOCKS, FLOAT_TYPES, PACKED_GROWTH

# Target bytes / draft bytes from which `auto` chooses q4: drafting takes too little of a step to save time
# at.
LARGE_TARGET_RATIO = 12
# Bytes in the file / bytes as Q4_0 or Q3_0: a matrix with a smaller ratio keeps its type under q3 and q4.
MIN_SHRINKAGE = 1.15
EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
FEED_FORWARD = ".ffn_"


def for_draft(name: str | None, draft: ModelSource, target: ModelSource) -> str | None:
    """Replace "auto" by the quantization that suits `draft` and `target`; other names are returned as they
    are."""
    if name != "auto":
        return name
    return (
        "q3"
        if LARGE_TARGET_RATIO * loaded_bytes(replace(draft, quantization="q4")) > loaded_bytes(target)
        else "q4"
    )


def quantized(source: ModelSource, name: str | None) -> ModelSource:
    """`source` with its matrices to be quantized at load as `name` says, and a display name that says so.

    The source itself is returned when `name` is None or says how its folder is stored, and when q3 or q4
    would change no matrix. Raises ConfigError for an unknown name, for another way to store a folder than its
    own, and, except under q3 and q4, for a source that its file stores quantized.
    """
    if name is None:
        return source
    if (method := quantization.STORED_METHODS.get(name)) is not None:
        if method == source.stored_method or source.transformers_class is not None:
            return source
        own = f"with {source.stored_method}" if source.stored_method else "in another way"
        raise ConfigError(
            f"{source.path}: quantization={name!r} is for folders that are stored so, and this model is "
            f"stored {own}: leave it out"
        )
    if name in quantization.LIGHT_QUANTIZATIONS:
        chosen = replace(source, quantization=name)
        if all(loaded_type(chosen, tensor) == tensor.type for tensor in source.tensors.values()):
            return source
        return replace(chosen, display_name=f"{source.display_name} ({name} at load)")
    quantization.check_quantization(name)
    if source.transformers_class is not None:
        raise ConfigError(
            f"{source.path}: quantization={name!r} is for families that Outrider has itself; transformers' "
            f"{source.transformers_class} is loaded as its folder is stored: leave it out"
        )
    stored = Counter(t.type for t in source.tensors.values() if t.type not in FLOAT_TYPES)
    if stored:
        kinds = ", ".join(kind for kind, _ in stored.most_common())
        raise ConfigError(
            f"{source.path}: is quantized already ({kinds}); quantization={name!r} is for models stored as "
            f"F32, F16 or BF16: leave it out, or choose the model's float file"
        )
    chosen = replace(source, quantization=name)
    bits = quantization.TORCH_QUANTIZATIONS.get(name)
    how = describe(chosen) if bits is None else f"{bits} by {name}"
    return replace(chosen, display_name=f"{source.display_name} ({how})")


def with_kv_type(source: ModelSource, name: str | None) -> ModelSource:
    """`source` with keys and values held as `name` says, one of KV_QUANTIZATIONS, and a display name that
    says so; the source itself when it is None."""
    if name is None:
        return source
    held = replace(source.architecture, kv_type=name)
    return replace(source, architecture=held, display_name=f"{source.display_name} ({name} keys and values)")


def held_as(target: ModelSource, draft: ModelSource) -> ModelSource:
    """A draft whose keys and values are held as its target's are. No text depends on it."""
    held = replace(draft.architecture, kv_type=target.architecture.kv_type)
    return replace(draft, architecture=held)


def describe(source: ModelSource) -> str:
    """The quantization in words: "q4_k at load", or "q4_k at load; q8_0: ffn_down" when some matrices had to
    be given another type."""
    usual = {"Q8_0"} if source.quantization == "q8_0" else {"Q4_K", "Q6_K"}
    others: dict[str, dict[str, None]] = {}
    for tensor in source.tensors.values():
        kind = loaded_type(source, tensor)
        if len(tensor.shape) == 2 and kind not in usual:
            others.setdefault(kind.lower(), {})[tensor.name.split(".")[-2]] = None
    return "; ".join(
        [f"{source.quantization} at load", *(f"{kind}: {', '.join(parts)}" for kind, parts in others.items())]
    )


def loaded_type(source: ModelSource, tensor: Tensor) -> str:
    """The weight type in which the engine holds `tensor` of `source`."""
    by_torch = source.quantization in quantization.TORCH_QUANTIZATIONS
    if source.quantization is None or by_torch or len(tensor.shape) != 2 or tensor.name in source.borrowed:
        return tensor.type
    if source.quantization in quantization.LIGHT_QUANTIZATIONS:
        return _light_type(source, tensor)
    wanted = ["Q8_0"]
    if source.quantization == "q4_k":
        wanted.insert(0, "Q6_K" if tensor.name in (EMBEDDING, OUTPUT) else "Q4_K")
    columns = tensor.shape[1]
    return next((kind for kind in wanted if columns % BLOCKS[kind][0] == 0), tensor.type)


def _light_type(source: ModelSource, tensor: Tensor) -> str:
    """The weight type of a draft model's matrix under q3 or q4."""
    if tensor.name == EMBEDDING and OUTPUT in source.tensors:
        kind = "Q8_0"
    else:
        kind = "Q3_0" if source.quantization == "q3" and FEED_FORWARD in tensor.name else "Q4_0"
    fits = tensor.shape[1] % BLOCKS[kind][0] == 0
    if fits and MIN_SHRINKAGE * type_bytes(kind, tensor.shape) <= type_bytes(tensor.type, tensor.shape):
        return kind
    return tensor.type


def type_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of this shape in the file encoding of the weight type `kind`."""
    block, size = BLOCKS[kind]
    return math.prod(shape) // block * size


def loaded_bytes(source: ModelSource) -> int:
    """Bytes of all tensors in the types that the engine holds them in, as they are packed."""
    return sum(packed_bytes(loaded_type(source, t), t.shape) for t in source.tensors.values())


def packed_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of a type as the engine packs it."""
    return int(type_bytes(kind, shape) * PACKED_GROWTH.get(kind, 1))


def resident_bytes(source: ModelSource) -> int:
    """Bytes of memory that the weights take. Rows of the embedding are not packed: those that stay as the
    file has them are read from the mapped file, where they take no memory that others could not have."""
    embedding = source.tensors.get(EMBEDDING)
    if embedding is None:
        return loaded_bytes(source)
    kind = loaded_type(source, embedding)
    mapped = kind == embedding.type and embedding.recode is None
    rows = 0 if mapped else type_bytes(kind, embedding.shape)
    unpacked = packed_bytes(kind, embedding.shape) if OUTPUT in source.tensors else 0
    return loaded_bytes(source) - unpacked + rows
