"""A matrix that learns by a change of low rank: W + B A, with A and B trained (LoRA, Hu et al. 2022).

Few texts say little of hundreds of millions of weights, and an update of Adam moves each of them by about the
learning rate: a model that knows its language forgets more than it learns. A change of low rank has a
hundredth of the weights, needs as little memory for their moments, and no product for the gradient of W.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from outrider.engines.torch.packed import Packed


class LowRank(Packed):
    """The matrix of the torch engine's modules, [rows, columns].

    a: float32[rank, columns], random. b: float32[rows, rank], zeros at first, so that nothing is changed.
    mixed: products with W are of bfloat16.
    """

    def __init__(self, values: Tensor, rank: int, generator: torch.Generator, *, mixed: bool) -> None:
        rows, columns = values.shape
        rank = min(rank, rows, columns)
        self._values = values
        self._multiplied = values.bfloat16() if mixed else values
        a = torch.randn((rank, columns), generator=generator) / math.sqrt(columns)
        self.a = a.to(values.device)
        self.b = torch.zeros((rows, rank), device=values.device)

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        changed: Tensor = F.linear(F.linear(x, self.a), self.b)
        return F.linear(x, self._multiplied, bias) + changed

    def dequantized(self) -> Tensor:
        with torch.no_grad():
            return self._values + self.b @ self.a

    def tensors(self) -> list[Tensor]:
        return [self._values, self.a, self.b]
