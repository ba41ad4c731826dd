"""Triton's kernels on a GPU if there is one, else in Triton's interpreter; skips where neither can be."""

from __future__ import annotations

import os
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are decorated
# Before 3.9 the interpreter converts arrays to numbers in a way that NumPy 2.4 refuses.
triton = pytest.importorskip("triton", minversion="3.6" if torch.cuda.is_available() else "3.9")
interpreter = pytest.importorskip("triton.runtime.interpreter")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _ordered_dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
    """The interpreter's matrix product in a fixed order: each element is a chain of sums over k. So does a
    GPU's instruction, while a BLAS library orders sums by the element's place in the matrix."""
    sums = d.data.copy()
    left, right = a.data.astype(sums.dtype), b.data.astype(sums.dtype)
    for k in range(left.shape[1]):
        sums += left[:, k, None] * right[None, k, :]
    return interpreter.TensorHandle(sums, d.dtype.scalar)


interpreter.InterpreterBuilder.create_dot = _ordered_dot


class Random:
    """Random tensors on the device."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: Any = torch.float32) -> Any:
        return torch.randn(shape, generator=self._generator).to(dtype).to(DEVICE)


def ints(values: Any) -> Any:
    """An int32 tensor on the device."""
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def same_bits(a: Any, b: Any) -> bool:
    """Whether two tensors have the same bytes."""
    assert a.shape == b.shape
    return bool(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)))
