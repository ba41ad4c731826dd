"""Sampling parameters of a pass's rows, on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.decoding.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class RowSettings:
    """The sampling parameters of n rows, on the device.

    temperature, top_p, limit: float64[n]; no token with a score below -limit is kept (min_p).
    top_k:    int32[n], 0 for none.
    seed:     int64[n], the bits of the unsigned seed.
    filtered: whether any row has filters. Static, like `most`: a part of a CUDA graph's identity.
    most:     the greatest top_k, rounded up to a power of two; 0 if no row has one.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    limit: torch.Tensor
    seed: torch.Tensor
    filtered: bool
    most: int

    @staticmethod
    def make(
        params: Sequence[SamplingParams], seeds: Sequence[int], vocab_size: int, device: torch.device | str
    ) -> RowSettings:
        """The settings of rows with these parameters and 64-bit seeds. What changes logits before the
        temperature (penalties, masks, biases) is not among them."""
        top_k = [p.top_k if 0 < p.top_k < vocab_size and p.temperature > 0.0 else 0 for p in params]
        top_p = [p.top_p if p.temperature > 0.0 else 1.0 for p in params]
        limit = [-math.log(p.min_p) if p.min_p > 0.0 and p.temperature > 0.0 else math.inf for p in params]
        doubles = torch.tensor(
            [[p.temperature for p in params], top_p, limit], dtype=torch.float64, device=device
        )
        return RowSettings(
            temperature=doubles[0],
            top_k=torch.tensor(top_k, dtype=torch.int32, device=device),
            top_p=doubles[1],
            limit=doubles[2],
            seed=torch.tensor([_signed(s) for s in seeds], dtype=torch.int64, device=device),
            filtered=any(top_k) or min(top_p) < 1.0 or min(limit) < math.inf,
            most=min(1 << (max(top_k) - 1).bit_length(), vocab_size) if any(top_k) else 0,
        )

    def rows(self, index: torch.Tensor) -> RowSettings:
        """The settings of the rows `index` (int64[m], on the device), each as often as it is named."""
        return RowSettings(
            self.temperature[index],
            self.top_k[index],
            self.top_p[index],
            self.limit[index],
            self.seed[index],
            self.filtered,
            self.most,
        )


def _signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed
