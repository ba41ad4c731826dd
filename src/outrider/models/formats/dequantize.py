"""Dequantizes weights, those of ggml's types with the `gguf` package, for checks and tests; engines have
their own kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as _dequantize

from outrider.models.formats.hf_blocks import dequantize_blocks
from outrider.models.formats.mapped import release
from outrider.models.source import Tensor
from outrider.models.weight_types import FOLDER_TYPES

PIECE = 1 << 22  # bytes compared at a time


def dequantize(tensor: Tensor) -> npt.NDArray[np.float32]:
    """The values of `tensor`, of any supported type, as a new float32[tensor.shape], with the columns in the
    matrix's own order.

    Infinite or NaN scales of a damaged file give infinite or NaN values, without a warning.
    """
    if tensor.column_order is not None:
        ordered = dequantize(replace(tensor, column_order=None))
        values = np.empty_like(ordered)
        values[:, tensor.column_order] = ordered
        return values
    if tensor.type in FOLDER_TYPES:
        with np.errstate(all="ignore"):
            return dequantize_blocks(tensor.type, tensor.encoded()).reshape(tensor.shape)
    rows = tensor.encoded().reshape(*tensor.shape[:-1], -1)
    kind = GGMLQuantizationType[tensor.type]
    if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        plain = np.dtype("<f4" if kind == GGMLQuantizationType.F32 else "<f2")
        return np.frombuffer(tensor.data.tobytes(), plain).astype(np.float32).reshape(tensor.shape)
    with np.errstate(all="ignore"):
        found: npt.NDArray[np.float32] = _dequantize(np.ascontiguousarray(rows), kind)
    return found.astype(np.float32, copy=False).reshape(tensor.shape)


def same_values(one: Tensor, other: Tensor) -> bool:
    """Whether two matrices of F32, F16 or BF16 hold the same values. Reads both up to the first difference,
    with little of them in memory at a time."""
    if one.shape != other.shape or other.nbytes == 0:
        return one.shape == other.shape
    rows = max(1, PIECE // (one.nbytes // one.shape[0]))
    same = all(
        np.array_equal(_rows(one, start, rows), _rows(other, start, rows))
        for start in range(0, one.shape[0], rows)
    )
    release(one.data)
    release(other.data)
    return same


def _rows(tensor: Tensor, start: int, count: int) -> npt.NDArray[np.float32]:
    stride = tensor.nbytes // tensor.shape[0]
    stop = min(start + count, tensor.shape[0])
    piece = tensor.data[start * stride : stop * stride]
    return dequantize(replace(tensor, shape=(stop - start, *tensor.shape[1:]), data=piece))
