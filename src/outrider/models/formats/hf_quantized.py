"""The tensors of quantized Hugging Face folders, each matrix made one tensor again.

Layouts, for a matrix of N rows and K columns whose scales G groups of columns have. Integers of b bits lie in
little-endian 32-bit words, the first in the lowest bits:

    AWQ (gemm)          qweight [K, N b/32], qzeros [G, N b/32], scales [G, N]; of the eight rows in a word,
                        those with even numbers come first
    GPTQ                qweight [K b/32, N], qzeros [G, N b/32], scales [G, N], g_idx [K]: each column's group
    compressed-tensors  weight_packed [N, K b/32], weight_scale [N, G], weight_zero_point [N b/32, G],
                        weight_shape [2], weight_g_idx [K]; or weight [N, K] of E4M3 with weight_scale
    fp8                 weight [N, K] of E4M3, weight_scale_inv (or weight_scale) of blocks or of all weights

Nothing is computed when a folder is opened, except that the scales and zero points are looked at. The blocks
(hf_blocks.py) are computed when the weights are loaded, and hold the same numbers. Where g_idx scatters the
columns of a group (act-order), the blocks have them side by side (`Tensor.column_order`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.machine import available_processors
from outrider.models.checks import with_shape
from outrider.models.families import shown
from outrider.models.formats.hf_blocks import (
    GROUP,
    GroupedRows,
    float_blocks,
    float_type,
    integer_blocks,
    integer_type,
)
from outrider.models.formats.hf_quantization import Quantization, WeightScheme
from outrider.models.source import Recode, Tensor
from outrider.models.weight_types import BLOCKS, FLOAT_TYPES

Bytes: TypeAlias = npt.NDArray[np.uint8]
Words: TypeAlias = npt.NDArray[np.uint32]
Floats: TypeAlias = npt.NDArray[np.float32]

DTYPES = ("I32", "I64", "I8", "F8_E4M3")  # of tensors of quantized folders, beside FLOAT_TYPES
# Weights whose blocks a thread computes at a time. What lies between takes some 10 bytes for each of them.
PIECE = 1 << 20
# Scales of activations and of the cache, which keep their precision here.
_UNUSED = ("input_scale", "output_scale", "activation_scale", "k_scale", "v_scale", "q_scale")
_PARTS = {
    "awq": ("qweight", "qzeros", "scales"),
    "gptq": ("qweight", "qzeros", "scales", "g_idx"),
    "compressed-tensors": (
        *("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"),
    ),
    "fp8": ("weight_scale_inv", "weight_scale"),
}
_AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)  # in which nibble of a word each of its eight rows is


@dataclass(frozen=True, slots=True, eq=False)
class _Module:
    """The tensors of one matrix, by the last parts of their names."""

    path: Path
    name: str
    parts: Mapping[str, Tensor]

    def shown(self, part: str) -> str:
        return shown(f"{self.name}.{part}")

    def has(self, part: str) -> bool:
        return part in self.parts

    def part(self, part: str, types: tuple[str, ...], shape: tuple[int, ...] | None = None) -> Tensor:
        """The tensor, or ModelFileError where it is missing or has another type or shape; without `shape` it
        must be a matrix."""
        tensor = self.parts.get(part)
        if shape is None and tensor is not None and len(tensor.shape) != 2:
            raise ModelFileError(f"{self.path}: the tensor {self.shown(part)} is not a matrix")
        found = with_shape(self.path, self.shown(part), tensor, shape or (tensor.shape if tensor else ()))
        if found.type not in types:
            raise ModelFileError(
                f"{self.path}: the tensor {self.shown(part)} has dtype {found.type}, not {' or '.join(types)}"
            )
        return found

    def finite(self, part: str, values: Floats) -> None:
        if not np.isfinite(values).all():
            raise ModelFileError(f"{self.path}: the tensor {self.shown(part)} holds infinities or NaN")


def unpack_modules(path: Path, how: Quantization, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the folder `path` with one tensor, NAME.weight, in place of those of a quantized matrix.

    Raises ModelFileError, naming the tensor, for one that is missing, has another type or shape than the
    others and the settings say, or holds what it must not; UnsupportedModelError for what is not supported.
    """
    rest: dict[str, Tensor] = {}
    modules: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if part in _PARTS[how.method] or tensor.type == "F8_E4M3":
            modules.setdefault(module, {})[part] = tensor
        elif part in _UNUSED:
            continue
        elif tensor.type in FLOAT_TYPES:
            rest[name] = tensor
        else:
            raise UnsupportedModelError(
                f"{path}: the tensor {shown(name)} has dtype {tensor.type}, which the settings of its"
                f" quantization do not explain"
            )
    if not modules:
        raise ModelFileError(
            f"{path}: config.json says that {how.method} quantized it, but it has none of its tensors"
        )
    for name, parts in modules.items():
        if f"{name}.weight" in rest:
            raise ModelFileError(
                f"{path}: holds {shown(f'{name}.weight')} beside tensors of its quantization"
            )
        made = _READERS[how.method](_Module(path, name, parts), how)
        every = sum(part.nbytes for part in parts.values())
        rest[f"{name}.weight"] = replace(made, beside=every - made.nbytes)
    return rest


def _awq(module: _Module, how: Quantization) -> Tensor:
    (scheme,) = how.schemes
    stored = module.part("qweight", ("I32",))
    columns, rows = stored.shape[0], 8 * stored.shape[1]
    _, groups = scheme.groups(rows, columns)
    scales = module.part("scales", FLOAT_TYPES, (groups, rows))
    zeros = module.part("qzeros", ("I32",), (groups, rows // 8))

    def integers(tensor: Tensor, first: int, last: int) -> Bytes:
        words = _words(tensor)[:, first // 8 : -(-last // 8)].T
        found = np.empty((len(words), 8, words.shape[1]), np.uint8)
        for row, nibble in enumerate(_AWQ_NIBBLES):
            found[:, row] = words >> np.uint32(4 * nibble) & np.uint32(15)
        return found.reshape(-1, words.shape[1])[first % 8 : first % 8 + last - first]

    return _integer_tensor(
        module,
        _Matrix(
            *("qweight", "scales", 4, (rows, columns), scheme.group or columns),
            q=lambda first, last: integers(stored, first, last),
            scales=lambda first, last: _floats(_array(scales)[:, first:last].T, scales.type),
            zeros=lambda first, last: integers(zeros, first, last),
        ),
    )


def _gptq(module: _Module, how: Quantization) -> Tensor:
    (scheme,) = how.schemes
    bits, per_word = scheme.bits, 32 // scheme.bits
    stored = module.part("qweight", ("I32",))
    columns, rows = stored.shape[0] * per_word, stored.shape[1]
    _, groups = scheme.groups(rows, columns)
    scales = module.part("scales", FLOAT_TYPES, (groups, rows))
    if rows % per_word:
        raise UnsupportedModelError(
            f"{module.path}: the tensor {module.shown('qweight')} has {rows} rows of weights, not a multiple"
            f" of {per_word}"
        )
    zeros = module.part("qzeros", ("I32",), (groups, rows // per_word))
    group = scheme.group or columns
    offset = np.uint32(how.zero_offset * (0x11111111 if bits == 4 else 0x01010101))

    def zero_points(first: int, last: int) -> Bytes:
        words = _words(zeros)[:, first // per_word : -(-last // per_word)] + offset  # wraps, as in GPTQModel
        return _integers(words, bits)[:, first % per_word : first % per_word + last - first].T

    return _integer_tensor(
        module,
        _Matrix(
            *("qweight", "scales", bits, (rows, columns), group),
            q=lambda first, last: _integers(_words(stored)[:, first:last].T, bits),
            scales=lambda first, last: _floats(_array(scales)[:, first:last].T, scales.type),
            zeros=zero_points,
            order=_order(module, "g_idx", columns, group),
        ),
    )


def _order(module: _Module, part: str, columns: int, group: int) -> npt.NDArray[np.int32] | None:
    """The columns by their groups, which g_idx says; None where they are in that order already."""
    if not module.has(part):
        return None
    index = np.frombuffer(module.part(part, ("I32",), (columns,)).data, "<i4")
    groups = -(-columns // group)
    if index.min() < 0 or index.max() >= groups:
        raise ModelFileError(f"{module.path}: the tensor {module.shown(part)} names a group beyond {groups}")
    usual = np.arange(columns) // group
    if np.array_equal(index, usual):
        return None
    order = np.argsort(index, kind="stable").astype(np.int32)
    if not np.array_equal(index[order], usual):
        raise UnsupportedModelError(
            f"{module.path}: the tensor {module.shown(part)} does not give every group {group} columns"
        )
    return order


def _compressed(module: _Module, how: Quantization) -> Tensor:
    if module.has("weight"):
        return _float_tensor(module, how, "weight_scale")
    stored = module.part("weight_packed", ("I32",))
    shape = module.part("weight_shape", ("I64", "I32"), (2,))
    rows, columns = (int(n) for n in np.frombuffer(shape.data, "<i8" if shape.type == "I64" else "<i4"))
    bits = next((b for b in (4, 8) if stored.shape == (rows, -(-columns * b // 32))), None)
    if bits is None:
        raise ModelFileError(
            f"{module.path}: the tensor {module.shown('weight_packed')} does not hold {rows} x {columns}"
            f" integers of 4 or 8 bits, as {module.shown('weight_shape')} says"
        )
    scales, scheme = _scales(
        module,
        "weight_scale",
        (rows, columns),
        [s for s in how.schemes if s.bits == bits and s.symmetric != module.has("weight_zero_point")],
    )
    group = scheme.group or columns
    read_zeros = None if scheme.symmetric else _compressed_zeros(module, scheme, rows, columns)
    return _integer_tensor(
        module,
        _Matrix(
            *("weight_packed", "weight_scale", bits, (rows, columns), group),
            q=lambda first, last: _integers(_words(stored)[first:last], bits)[:, :columns],
            scales=scales,
            zeros=read_zeros,
            order=_order(module, "weight_g_idx", columns, group),
        ),
    )


def _compressed_zeros(
    module: _Module, scheme: WeightScheme, rows: int, columns: int
) -> Callable[[int, int], Bytes]:
    """Zero points in words, or, as older versions wrote them, as signed bytes."""
    down, groups = scheme.groups(rows, columns)
    if down != rows:
        raise UnsupportedModelError(f"{module.path}: one zero point for all of {shown(module.name)}")
    per_word, middle = 32 // scheme.bits, 1 << (scheme.bits - 1)
    if module.parts["weight_zero_point"].type == "I8":
        signed = module.part("weight_zero_point", ("I8",), (rows, groups))
        return lambda first, last: (
            (signed.data.reshape(rows, groups)[first:last] + np.uint8(middle)) & np.uint8(2 * middle - 1)
        )
    zeros = module.part("weight_zero_point", ("I32",), (-(-rows // per_word), groups))

    def read(first: int, last: int) -> Bytes:
        words = _words(zeros)[first // per_word : -(-last // per_word)]
        return _integers(words.T, scheme.bits)[:, first % per_word : first % per_word + last - first].T

    return read


def _fp8(module: _Module, how: Quantization) -> Tensor:
    module.part("weight", ("F8_E4M3",))
    return _float_tensor(module, how, "weight_scale" if module.has("weight_scale") else "weight_scale_inv")


_READERS = {"awq": _awq, "gptq": _gptq, "compressed-tensors": _compressed, "fp8": _fp8}


def _scales(
    module: _Module, part: str, shape: tuple[int, int], schemes: list[WeightScheme]
) -> tuple[Callable[[int, int], Floats], WeightScheme]:
    """The scales of some rows, and the scheme that has so many; ModelFileError when there is none."""
    tensor = module.part(part, FLOAT_TYPES, module.parts[part].shape if module.has(part) else ())
    for scheme in schemes:
        down, along = scheme.groups(*shape)
        flat = [(down,)] if along == 1 else []
        if tensor.shape in [(down, along), *flat, *([()] if down == 1 else [])]:
            return _scales_of_rows(tensor, (down, along), scheme.rows or shape[0]), scheme
    by = " x ".join(map(str, tensor.shape)) or "1"
    raise ModelFileError(
        f"{module.path}: the tensor {module.shown(part)} has {by} scales, which fits nothing that"
        f" quantization_config says of such a matrix"
    )


def _scales_of_rows(tensor: Tensor, shape: tuple[int, int], shared: int) -> Callable[[int, int], Floats]:
    """`shared` rows have the same ones."""
    stored = _array(tensor).reshape(shape)
    return lambda first, last: _floats(stored[np.arange(first, last) // shared], tensor.type)


@dataclass(frozen=True, slots=True, eq=False)
class _Matrix:
    """A matrix of integers as its file has it. q, scales and zeros give what `GroupedRows` has, of some rows.

    stored, scale_part: names of the tensors of the integers and of the scales.
    order: of the columns, so that those of a group are neighbours; None where they are.
    """

    stored: str
    scale_part: str
    bits: int
    shape: tuple[int, int]
    group: int
    q: Callable[[int, int], Bytes]
    scales: Callable[[int, int], Floats]
    zeros: Callable[[int, int], Bytes] | None
    order: npt.NDArray[np.int32] | None = None

    def rows(self, first: int, last: int) -> GroupedRows:
        q = self.q(first, last)
        if self.order is not None:
            q = np.take(q, self.order, axis=1)
        zeros = None if self.zeros is None else self.zeros(first, last)
        return GroupedRows(q, self.scales(first, last), zeros, self.group)


def _integer_tensor(module: _Module, matrix: _Matrix) -> Tensor:
    rows, columns = matrix.shape
    _check_columns(module, columns)
    scales = matrix.scales(0, rows)
    module.finite(matrix.scale_part, scales)
    zeros = None if matrix.zeros is None else matrix.zeros(0, rows)
    kind = integer_type(matrix.bits, columns, matrix.group, scales, zeros)
    recode = _by_pieces(kind, columns, lambda first, last: integer_blocks(kind, matrix.rows(first, last)))
    data = module.parts[matrix.stored].data
    return Tensor(f"{module.name}.weight", kind, (rows, columns), data, recode, matrix.order)


def _float_tensor(module: _Module, how: Quantization, scale_part: str) -> Tensor:
    stored = module.part("weight", ("F8_E4M3",))
    rows, columns = stored.shape
    _check_columns(module, columns)
    scales, scheme = _scales(
        module, scale_part, (rows, columns), [s for s in how.schemes if s.kind == "float"]
    )
    module.finite(scale_part, scales(0, rows))
    group = scheme.group or columns
    kind = float_type(columns, group)
    values = stored.data.reshape(rows, columns)

    def blocks(first: int, last: int) -> Bytes:
        piece = values[first:last]
        if ((piece & 0x7F) == 0x7F).any():
            raise ModelFileError(f"{module.path}: the tensor {module.shown('weight')} holds NaN")
        return float_blocks(kind, piece, scales(first, last), group)

    return Tensor(
        f"{module.name}.weight", kind, (rows, columns), stored.data, _by_pieces(kind, columns, blocks)
    )


def _check_columns(module: _Module, columns: int) -> None:
    if columns % GROUP:
        raise UnsupportedModelError(
            f"{module.path}: the quantized matrix {shown(module.name)} has {columns} columns, not a multiple"
            f" of {GROUP}"
        )


def _by_pieces(kind: str, columns: int, blocks: Recode) -> Recode:
    """`blocks` for few rows at a time, so that what lies between stays small, on all processors: NumPy does
    not hold the interpreter's lock meanwhile."""
    block, size = BLOCKS[kind]
    rows = max(8, PIECE // columns // 8 * 8)  # of words, which have up to 8 rows

    def recode(first: int, last: int) -> Bytes:
        width = columns // block * size
        out = np.empty((last - first, width), np.uint8)

        def fill(start: int) -> None:
            stop = min(start + rows, last)
            out[start - first : stop - first] = blocks(start, stop).reshape(-1, width)

        starts = range(first, last, rows)
        with ThreadPoolExecutor(max(1, min(len(starts), available_processors()))) as pool:
            for _ in pool.map(fill, starts):  # raises what `fill` does
                pass
        return out.reshape(-1)

    return recode


def _integers(words: Words, bits: int) -> Bytes:
    """uint8[rows, integers] of words [rows, words]."""
    octets = np.ascontiguousarray(words, "<u4").view(np.uint8)
    if bits == 8:
        return octets
    found = np.empty((len(octets), 2 * octets.shape[1]), np.uint8)
    found[:, 0::2] = octets & 15
    found[:, 1::2] = octets >> 4
    return found


def _array(tensor: Tensor) -> npt.NDArray[np.generic]:
    """The tensor's numbers as stored, in its shape; of BF16 the bits."""
    dtype = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<u4"}[tensor.type]
    return np.frombuffer(tensor.data, dtype).reshape(tensor.shape)


def _words(tensor: Tensor) -> Words:
    return np.asarray(_array(tensor), np.uint32)


def _floats(stored: npt.NDArray[np.generic], kind: str) -> Floats:
    if kind == "BF16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)
