"""Blocks of weights in which the engine holds the matrices of quantized Hugging Face folders.

A weight of such a folder is scale * (q - zero), with an unsigned integer q of 4 or 8 bits, or scale * v, with
a float v of 8 bits (E4M3). Blocks hold the folder's own numbers:

    Q4_0, Q8_0      ggml's: where every zero is 8, or 128, and a binary16 holds every scale
    W4_32, W4_128   scale (float32), zero (a byte), then the integers of 32 columns in 16 bytes: column i in
                    the low half of byte i, column i + 16 in its high half; of W4_128 four times these bytes
    W8_32, W8_128   scale (float32), zero (a byte), then the integers: bytes
    F8_32, F8_128   scale (float32), then the values: bytes

A scale of more columns than a block has is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.models.weight_types import BLOCKS

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]

GROUP = 32  # columns of the smallest block


@dataclass(frozen=True, slots=True, eq=False)
class GroupedRows:
    """Some rows of a quantized matrix of integers.

    q:             uint8[rows, columns].
    scales, zeros: float32 and uint8[rows, groups]; zeros is None where all are half of the integers' range.
    group:         columns that share a scale, from the first on; a multiple of 32 unless there is one group.
    """

    q: Bytes
    scales: Floats
    zeros: Bytes | None
    group: int


def integer_type(bits: int, columns: int, group: int, scales: Floats, zeros: Bytes | None) -> str:
    """The type of blocks that holds integers with these scales and zeros in the fewest bytes."""
    middle = 1 << (bits - 1)
    with np.errstate(over="ignore"):
        halves = scales.astype(np.float16)
    if (zeros is None or (zeros == middle).all()) and np.array_equal(halves.astype(np.float32), scales):
        return f"Q{bits}_0"
    return f"W{bits}_{_block(columns, group)}"


def float_type(columns: int, group: int) -> str:
    """The type of blocks for floats of 8 bits of which `group` columns share a scale."""
    return f"F8_{_block(columns, group)}"


def _block(columns: int, group: int) -> int:
    return 128 if columns % 128 == 0 and (group % 128 == 0 or group >= columns) else GROUP


def integer_blocks(kind: str, rows: GroupedRows) -> Bytes:
    """uint8[bytes]: the blocks of rows, one row after the other."""
    columns, size = BLOCKS[kind]
    count, width = rows.q.shape
    bits = int(kind[1])
    out = np.empty((count, width // columns, size), np.uint8)
    group_of = np.arange(0, width, columns) // rows.group
    scales = rows.scales[:, group_of]
    if kind[0] == "Q":
        out[..., :2] = np.ascontiguousarray(scales, "<f2").view(np.uint8).reshape(*scales.shape, 2)
        start = 2
    else:
        out[..., :4] = np.ascontiguousarray(scales, "<f4").view(np.uint8).reshape(*scales.shape, 4)
        out[..., 4] = 1 << (bits - 1) if rows.zeros is None else rows.zeros[:, group_of]
        start = 5
    if bits == 8:
        q = rows.q.reshape(count, -1, columns)
        out[..., start:] = q ^ 0x80 if kind == "Q8_0" else q
    else:
        halves = rows.q.reshape(count, width // columns, columns // GROUP, 2, GROUP // 2)
        packed = halves[..., 0, :] | halves[..., 1, :] << 4
        out[..., start:] = packed.reshape(count, width // columns, -1)
    return out.reshape(-1)


def float_blocks(kind: str, values: Bytes, scales: Floats, group: int) -> Bytes:
    """uint8[bytes]: the blocks of rows. values: uint8[rows, columns]; scales: float32[rows, groups]."""
    columns, size = BLOCKS[kind]
    count, width = values.shape
    out = np.empty((count, width // columns, size), np.uint8)
    each = np.ascontiguousarray(scales[:, np.arange(0, width, columns) // group], "<f4")
    out[..., :4] = each.view(np.uint8).reshape(*each.shape, 4)
    out[..., 4:] = values.reshape(count, -1, columns)
    return out.reshape(-1)


def dequantize_blocks(kind: str, blocks: Bytes) -> Floats:
    """float32[values]: what blocks of W and F8 types hold, each value rounded once."""
    columns, size = BLOCKS[kind]
    each = blocks.reshape(-1, size)
    scales = np.ascontiguousarray(each[:, :4]).view("<f4")
    if kind[0] == "F":
        return np.asarray(scales * e4m3_values()[each[:, 4:]], np.float32).reshape(-1)
    q = each[:, 5:]
    if kind.startswith("W4"):
        nibbles = q.reshape(len(each), columns // GROUP, GROUP // 2)
        q = np.concatenate([nibbles & 15, nibbles >> 4], axis=2).reshape(len(each), columns)
    return np.asarray(scales * (q.astype(np.float32) - each[:, 4:5]), np.float32).reshape(-1)


def e4m3_values() -> Floats:
    """float32[256]: what each byte stands for (OCP 8-bit floating point specification, E4M3)."""
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    normal = np.ldexp(8.0 + mantissa, exponent - 10)
    values = np.where(exponent == 0, np.ldexp(1.0 * mantissa, -9), normal)
    values[(byte & 127) == 127] = np.nan
    return np.asarray(np.where(byte & 128, -values, values), np.float32)
