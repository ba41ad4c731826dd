"""Dequantizes Q3_0 in plain NumPy: 32 values d * (q - 4) in 14 bytes (csrc/kernels/quantize.h)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from outrider.models.formats.dequantize import dequantize
from outrider.models.source import Tensor

BLOCK_BYTES = 14


def from_blocks(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """The values float32[rows, columns] of the encoded uint8[rows, bytes]."""
    blocks = np.ascontiguousarray(data).reshape(-1, BLOCK_BYTES)
    d = blocks[:, :2].copy().view("<f2").astype(np.float32)
    low = np.concatenate([blocks[:, 2:10] >> shift & 3 for shift in (0, 2, 4, 6)], axis=1)
    high = np.unpackbits(blocks[:, 10:], axis=1, bitorder="little")
    found: npt.NDArray[np.float32] = d * ((low | high << 2).astype(np.float32) - 4)
    return found.reshape(len(data), -1)


def values(tensor: Tensor) -> npt.NDArray[np.float32]:
    """The values of a tensor of any type that the engine holds, as float32[tensor.shape]."""
    if tensor.type != "Q3_0":
        return dequantize(tensor)
    return from_blocks(tensor.data.reshape(tensor.shape[0], -1)).reshape(tensor.shape)
