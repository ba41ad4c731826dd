"""Weights as float32, through the `gguf` package: the oracle of tests and tools, not an engine's path."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as _dequantize

from outrider.models.source import Tensor


def dequantize(tensor: Tensor) -> npt.NDArray[np.float32]:
    """The values of `tensor` as float32[tensor.shape]; a copy, for every tensor type that is read.

    A damaged scale that is infinite or NaN comes out as such values, without a warning.
    """
    rows = tensor.data.reshape(*tensor.shape[:-1], -1)
    kind = GGMLQuantizationType[tensor.type]
    if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        plain = np.dtype("<f4" if kind == GGMLQuantizationType.F32 else "<f2")
        return np.frombuffer(tensor.data.tobytes(), plain).astype(np.float32).reshape(tensor.shape)
    with np.errstate(all="ignore"):
        values: npt.NDArray[np.float32] = _dequantize(np.ascontiguousarray(rows), kind)
    return values.astype(np.float32, copy=False).reshape(tensor.shape)
