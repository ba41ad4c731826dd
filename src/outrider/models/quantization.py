"""Quantization at load: which type each matrix of a model is held in. The model that results is another than
the file's, and its name says so.

q8_0: every matrix of a float model as Q8_0.
q4_k: every matrix of a float model as Q4_K, but the embedding and the output as Q6_K.
Where the columns are not a multiple of a type's block (256 for Q4_K and Q6_K, 32 for Q8_0) Q8_0 is taken, or
else the file's own type. Norms and biases stay as they are.

q4, for draft models: every matrix of any file as Q4_0, where that saves a good part of its bytes; an
embedding that is not the output too, and so is not read through, as Q8_0.
q3, for draft models: the same, but the feed-forward matrices as Q3_0 (csrc/kernels/quantize.h).
A draft's pass takes as long as its bytes take to be read, and what it gets wrong costs acceptance, never
exactness. (Q4_K is closer to the weights, but takes five times as long to find.) auto is q3, or q4 beside a
target so large that acceptance counts for more than the draft's time.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from outrider.config import quantization
from outrider.errors import ConfigError
from outrider.models.source import ModelSource, Tensor
from outrider.models.weight_types import BLOCKS, FLOAT_TYPES

LARGE = 12  # times a draft's bytes: of such a target's step, drafting takes too little to save at
SAVES = 1.15  # times as large a matrix must be in the file, or it stays as it is under q3 and q4
EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
FEED_FORWARD = ".ffn_"


def for_draft(name: str | None, draft: ModelSource, target: ModelSource) -> str | None:
    """The quantization of `draft` beside `target` that `name` stands for: itself, but for auto."""
    if name != "auto":
        return name
    return "q3" if LARGE * loaded_bytes(replace(draft, quantization="q4")) > loaded_bytes(target) else "q4"


def quantized(source: ModelSource, name: str | None) -> ModelSource:
    """`source`, to be loaded with its matrices quantized as `name` says, under a name that tells it.

    None leaves it as it is, and so do q3 and q4 what they would not make smaller. Raises ConfigError for an
    unknown name, and for a source that is quantized in its file already, unless the name is one of these two.
    """
    if name is None:
        return source
    if name in quantization.LIGHT_QUANTIZATIONS:
        chosen = replace(source, quantization=name)
        if all(loaded_type(chosen, tensor) == tensor.type for tensor in source.tensors.values()):
            return source
        return replace(chosen, display_name=f"{source.display_name} ({name} at load)")
    quantization.check_quantization(name)
    stored = Counter(t.type for t in source.tensors.values() if t.type not in FLOAT_TYPES)
    if stored:
        kinds = ", ".join(kind for kind, _ in stored.most_common())
        raise ConfigError(
            f"{source.path}: is quantized already ({kinds}); quantization={name!r} is for models stored as "
            f"F32, F16 or BF16: leave it out, or choose the model's float file"
        )
    chosen = replace(source, quantization=name)
    return replace(chosen, display_name=f"{source.display_name} ({describe(chosen)})")


def describe(source: ModelSource) -> str:
    """What a quantized source is held in: "q4_k at load", or "q4_k at load; q8_0: ffn_down" where that had to
    be taken for some matrices."""
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
    """The type in which the engine holds `tensor` of `source`."""
    if source.quantization is None or len(tensor.shape) != 2:
        return tensor.type
    if source.quantization in quantization.LIGHT_QUANTIZATIONS:
        return _light_type(source, tensor)
    wanted = ["Q8_0"]
    if source.quantization == "q4_k":
        wanted.insert(0, "Q6_K" if tensor.name in (EMBEDDING, OUTPUT) else "Q4_K")
    columns = tensor.shape[1]
    return next((kind for kind in wanted if columns % BLOCKS[kind][0] == 0), tensor.type)


def _light_type(source: ModelSource, tensor: Tensor) -> str:
    """The type of a draft's matrix under q3 or q4."""
    if tensor.name == EMBEDDING and OUTPUT in source.tensors:
        kind = "Q8_0"
    else:
        kind = "Q3_0" if source.quantization == "q3" and FEED_FORWARD in tensor.name else "Q4_0"
    fits = tensor.shape[1] % BLOCKS[kind][0] == 0
    if fits and SAVES * type_bytes(kind, tensor.shape) <= type_bytes(tensor.type, tensor.shape):
        return kind
    return tensor.type


def type_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor in the file's encoding of a type."""
    block, size = BLOCKS[kind]
    return math.prod(shape) // block * size


def loaded_bytes(source: ModelSource) -> int:
    """Bytes of all tensors in the types that the engine holds them in."""
    return sum(type_bytes(loaded_type(source, t), t.shape) for t in source.tensors.values())
