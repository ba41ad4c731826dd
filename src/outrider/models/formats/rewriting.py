"""Writes a model's weights anew, with other values in some of its tensors and all else as its files have it.

The values have GGUF's names and the orders of rows of the `ModelSource` that was read from the same files.
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.constants import LlamaFileType
from gguf.quants import quantize

from outrider.errors import UnsupportedModelError
from outrider.models.families import FAMILIES, LAYER_TENSORS, Family, shown
from outrider.models.formats.gguf_split import read_parts
from outrider.models.formats.huggingface import FREQUENCIES, tensor_name
from outrider.models.formats.safetensors import read_weights
from outrider.models.source import ModelSource, Tensor
from outrider.models.weight_types import BLOCKS, FLOAT_TYPES

Floats: TypeAlias = npt.NDArray[np.float32]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Values: TypeAlias = Mapping[str, Floats]

# What the gguf package can write: the others have an encoder in llama.cpp only.
WRITTEN_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
_STRING, _U32 = 8, 4


def check_rewritable(source: ModelSource) -> None:
    """Raise UnsupportedModelError, naming it, for what cannot be written again."""
    if source.format == "gguf":
        return
    if source.stored_method is not None:
        raise UnsupportedModelError(
            f"{source.path}: is quantized with {source.stored_method}; give its folder of floats"
        )
    names = _layer_tensors(FAMILIES[source.architecture.name])
    for name in read_weights(source.path, FLOAT_TYPES):
        if tensor_name(name, names) is None and not name.endswith(FREQUENCIES):
            raise UnsupportedModelError(
                f"{source.path}: the tensor {shown(name)} belongs to more than a text model"
            )


def _layer_tensors(family: Family) -> dict[str, str]:
    return {**LAYER_TENSORS, **family.layer_tensors}


def written_type(kind: str) -> str:
    """The weight type in which new values of a matrix of type `kind` are written: the same one, or else the
    smallest that can be written and has more bits."""
    if kind in (*FLOAT_TYPES, *WRITTEN_TYPES):
        return kind
    return next((name for name in WRITTEN_TYPES if _bits(name) > _bits(kind)), WRITTEN_TYPES[-1])


def encode(values: Floats, kind: str) -> bytes:
    """float32[rows, columns] as blocks of a type in FLOAT_TYPES or WRITTEN_TYPES."""
    if kind == "F32":
        return values.astype("<f4").tobytes()
    if kind == "F16":
        most = float(np.finfo(np.float16).max)
        return values.clip(-most, most).astype("<f2").tobytes()
    return bytes(quantize(np.ascontiguousarray(values, np.float32), GGMLQuantizationType[kind]).tobytes())


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tensor of the new file. content: its bytes, once they are wanted."""

    name: str
    kind: str
    shape: tuple[int, ...]
    content: Callable[[], bytes | memoryview]

    @property
    def nbytes(self) -> int:
        block, size = BLOCKS[self.kind]
        return math.prod(self.shape) // block * size


def _piece(tensor: Tensor, values: Floats | None) -> _Piece:
    if values is None:
        return _Piece(tensor.name, tensor.type, tensor.shape, lambda: tensor.data.data)
    kind = written_type(tensor.type)
    return _Piece(tensor.name, kind, tensor.shape, lambda: encode(values, kind))


def _values_of(name: str, family: Family, values: Values) -> Floats | None:
    """The new values of a tensor, by its name: its own, or those of the parts that it joins."""
    before, _, part = name.removesuffix(".weight").rpartition(".")
    parts = [f"{before}.{one}.weight" for one in family.fused.get(part, ())]
    if not parts:  # a fused matrix may have the name of one of its parts
        return values.get(name)
    if not all(one in values for one in parts):
        return None
    return np.concatenate([values[one] for one in parts])


# --- GGUF ------------------------------------------------------------------------------------------


def write_gguf(file: BinaryIO, source: ModelSource, values: Values, name: str) -> None:
    """Write a GGUF file of all parts of the model `source`, with its keys, its tokenizer and its tensors, new
    values in those of `values`, and `name` in general.name."""
    parts = read_parts(source.path)
    family = FAMILIES[source.architecture.name]
    pieces = [
        _piece(tensor, _values_of(tensor.name, family, values))
        for part in parts
        for tensor in part.tensors().values()
    ]
    first = parts[0]
    new = {"general.name": _text_pair("general.name", name)}
    new["general.file_type"] = _u32_pair("general.file_type", _file_type(pieces))
    pairs = [
        new.pop(key, first.data[start:stop].tobytes())
        for key, (start, stop) in first.pair_bytes.items()
        if not key.startswith("split.")
    ]
    pairs += new.values()
    file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(pieces), len(pairs)))
    file.write(b"".join(pairs))
    at = 0
    for piece in pieces:
        file.write(_text(piece.name) + struct.pack("<I", len(piece.shape)))
        file.write(struct.pack(f"<{len(piece.shape)}Q", *reversed(piece.shape)))
        file.write(struct.pack("<IQ", GGMLQuantizationType[piece.kind], at))
        at += _padded(piece.nbytes, first.alignment)
    file.write(bytes(-file.tell() % first.alignment))
    for piece in pieces:
        file.write(piece.content())
        file.write(bytes(-piece.nbytes % first.alignment))


def _file_type(pieces: list[_Piece]) -> int:
    """general.file_type: the type of most bytes of the matrices."""
    sizes: Counter[str] = Counter()
    for piece in pieces:
        if len(piece.shape) == 2:
            sizes[piece.kind] += piece.nbytes
    kind = sizes.most_common(1)[0][0]
    named = LlamaFileType.__members__.get("ALL_F32" if kind == "F32" else f"MOSTLY_{kind}")
    return int(LlamaFileType.GUESSED if named is None else named)


def _bits(kind: str) -> float:
    block, size = BLOCKS[kind]
    return 8 * size / block


def _padded(count: int, alignment: int) -> int:
    return -(-count // alignment) * alignment


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _text_pair(key: str, value: str) -> bytes:
    return _text(key) + struct.pack("<I", _STRING) + _text(value)


def _u32_pair(key: str, value: int) -> bytes:
    return _text(key) + struct.pack("<II", _U32, value)


# --- Hugging Face ----------------------------------------------------------------------------------


def write_safetensors(file: BinaryIO, source: ModelSource, values: Values) -> None:
    """Write model.safetensors, with all tensors of the folder of `source`, which stores floats, in their
    types, and new values in those of `values`."""
    family = FAMILIES[source.architecture.name]
    layer_tensors = _layer_tensors(family)
    pieces = []
    for tensor in read_weights(source.path, FLOAT_TYPES).values():
        name = tensor_name(tensor.name, layer_tensors)
        found = None if name is None else _values_of(name, family, values)
        if found is not None and found.ndim == 1:
            found = found - np.float32(family.norm_offset)
        pieces.append(_piece(tensor, found))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for piece in pieces:
        entry = {"dtype": piece.kind, "shape": list(piece.shape), "data_offsets": [at, at + piece.nbytes]}
        header[piece.name] = entry
        at += piece.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for piece in pieces:
        file.write(piece.content())
