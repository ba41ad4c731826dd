"""Sampling parameters of a pass's rows, on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
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
        each = [filters(p, vocab_size) for p in params]
        top_k, top_p, limit = [f.top_k for f in each], [f.top_p for f in each], [f.limit for f in each]
        filtered, most = shape_of(each, vocab_size)
        doubles = torch.tensor(
            [[p.temperature for p in params], top_p, limit], dtype=torch.float64, device=device
        )
        return RowSettings(
            temperature=doubles[0],
            top_k=torch.tensor(top_k, dtype=torch.int32, device=device),
            top_p=doubles[1],
            limit=doubles[2],
            seed=torch.tensor([signed(s) for s in seeds], dtype=torch.int64, device=device),
            filtered=filtered,
            most=most,
        )

    @staticmethod
    def of_staged(staged: torch.Tensor, filtered: bool, most: int) -> RowSettings:
        """The settings of rows that `stage` wrote, int64[6 or more, n], on the device."""
        temperature, top_p, limit = staged[2:5].view(torch.float64)
        return RowSettings(temperature, staged[5].int(), top_p, limit, staged[0], filtered, most)

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


class Filters(NamedTuple):
    """What of a request's parameters filters its rows, see `RowSettings`."""

    top_k: int
    top_p: float
    limit: float


def filters(params: SamplingParams, vocab_size: int) -> Filters:
    """None of them at temperature 0."""
    if params.temperature == 0.0:
        return Filters(0, 1.0, math.inf)
    top_k = params.top_k if 0 < params.top_k < vocab_size else 0
    return Filters(top_k, params.top_p, -math.log(params.min_p) if params.min_p > 0.0 else math.inf)


def shape_of(each: Sequence[Filters], vocab_size: int) -> tuple[bool, int]:
    """(filtered, most) of rows with these filters, see `RowSettings`."""
    filtered = any(f.top_k or f.top_p < 1.0 or f.limit < math.inf for f in each)
    top_k = max(f.top_k for f in each)
    return filtered, min(1 << (top_k - 1).bit_length(), vocab_size) if top_k else 0


def stage(
    staged: npt.NDArray[np.int64],
    at: npt.NDArray[np.int64] | int,
    params: SamplingParams,
    seed: int,
    vocab_size: int,
    positions: npt.NDArray[np.int64] | int,
) -> Filters:
    """Write the settings of the rows `at` into columns of `staged`, int64[6 or more, n], for one transfer to
    the device: seed, position, the bits of temperature, top_p and limit, top_k. Returns their filters."""
    own = filters(params, vocab_size)
    doubles = np.array([params.temperature, own.top_p, own.limit]).view(np.int64)
    staged[0, at] = signed(seed)
    staged[1, at] = positions
    staged[2, at], staged[3, at], staged[4, at] = doubles.tolist()
    staged[5, at] = own.top_k
    return own


def signed(seed: int) -> int:
    """The bits of an unsigned 64-bit seed as a signed number."""
    return seed - 2**64 if seed >= 2**63 else seed
