"""Which operations run a model on a device: Triton kernels where there are some, PyTorch's own elsewhere."""

from __future__ import annotations

import importlib
import importlib.util
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812

from outrider.engines.torch.ops import Ops, TorchOps

KERNELS = "outrider.engines.torch.kernels.ops"


def choose_ops(device: torch.device, reach: int, *, strict: bool) -> Ops:
    """The operations for a model on `device`, whose tokens have at most `reach` keys.

    strict: they are `invariant`, where there are such; else the matrix products are the vendor's.
    """
    kernels = _kernels(reach) if device.type == "cuda" else None
    if kernels is None:
        return TorchOps()
    return kernels if strict else cast(Ops, _VendorProducts(kernels))


def _kernels(reach: int) -> Ops | None:
    """The Triton kernels; None without Triton."""
    if importlib.util.find_spec("triton") is None or importlib.util.find_spec(KERNELS) is None:
        return None
    module = importlib.import_module(KERNELS)
    return cast(Ops, module.TritonOps(reach))


class _VendorProducts:
    """Other operations' with PyTorch's matrix products (cuBLAS), whose bits depend on the number of rows."""

    invariant = False

    def __init__(self, others: Ops) -> None:
        self._others = others

    def linear(self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, w, bias)

    def __getattr__(self, name: str) -> object:
        return getattr(self._others, name)
