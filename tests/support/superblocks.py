"""Matrix products with superblocks as docs/kernels.md defines them, in plain NumPy.

Layouts: ggml's block_q4_K, block_q5_K, block_q6_K and so on, superblocks of 256 columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.models.formats.dequantize import dequantize
from outrider.models.source import Tensor
from outrider.models.weight_types import BLOCKS

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

GROUPS, DEEPEST = 8, 12
_K_SIZES = {"Q4_K": 144, "Q5_K": 176, "Q6_K": 210}


@dataclass(frozen=True)
class Superblocks:
    """A matrix of n rows and b superblocks, in p parts of one scale each (8, or 16 in Q6_K)."""

    step: Array  # [n, b]
    minimum_step: Array  # [n, b]
    scales: Ints  # [n, b, p]
    minimums: Ints  # [n, b, 8]
    integers: Ints  # [n, b, p, 256 / p]
    dropped: int  # bits of a sum of products

    def times(self, x: Array, *, fine: bool = False) -> Array:
        """The product with float64[256 b], rounded to 8 bits, or (`fine`) to 8 bits and 8 bits of the
        residual."""
        out = np.zeros(len(self.step))
        for b, block in enumerate(x.reshape(-1, GROUPS, 32)):
            whole, below = block_scale(np.abs(block).max(1))
            steps = np.maximum(whole * 0.5**below, np.finfo(np.float64).tiny)[:, None] / 127
            coarse = np.rint(block / steps)
            out += whole / 127 * self._block(b, coarse.astype(np.int64), below)
            if fine:
                rest = np.rint((block / steps - coarse) * 254)
                out += whole / 127 / 254 * self._block(b, rest.astype(np.int64), below)
        return out

    def _block(self, b: int, x: Ints, below: Ints) -> Array:
        """The product with superblock b in units of its scale; x: int64[8, 32]."""
        parts = self.scales.shape[2]
        each = parts // GROUPS
        sums = np.einsum("npc,pc->np", self.integers[:, b], x.reshape(parts, -1))
        group = np.arange(parts) // each
        shift = self.dropped + below[group]
        narrow = (sums + (1 << (shift - 1)) - group % 2) >> shift
        assert np.abs(narrow).max() < 2**15
        total = (narrow * self.scales[:, b]).sum(1)
        eighths = np.array([_eighths(int(s), int(k)) for s, k in zip(x.sum(1), below, strict=True)])
        less = (self.minimums[:, b] * eighths).sum(1)
        return np.asarray(self.step[:, b] * 2**self.dropped * total - self.minimum_step[:, b] / 8 * less)


def _eighths(total: int, below: int) -> int:
    return total << (3 - below) if below < 4 else (total + (1 << (below - 4))) >> (below - 3)


def block_scale(biggest: Array) -> tuple[float, Ints]:
    """(a superblock's scale, how many times it is halved for each group), given the groups' maxima."""
    if biggest.max() < 2.0**-100:
        return 0.0, np.zeros(GROUPS, np.int64)
    best: tuple[float, float, Ints] | None = None
    for candidate in biggest[biggest > 0]:
        whole = candidate * 2.0 ** np.ceil(np.log2(biggest.max() / candidate))
        with np.errstate(divide="ignore"):
            below = np.minimum(np.floor(np.log2(whole / biggest)), 64.0)
        # A group far below the others counts as if it were DEEPEST halvings below.
        cost = float((4.0 ** -np.minimum(below, DEEPEST)).sum() * whole**2)
        if best is None or cost < best[0]:
            best = cost, whole, np.minimum(below, DEEPEST).astype(np.int64)
    assert best is not None
    return best[1], best[2]


def superblocks(tensor: Tensor) -> Superblocks:
    """Unpack a tensor of any type with superblocks."""
    return _k_superblocks(tensor) if tensor.type in _K_SIZES else _from_values(tensor)


def _from_values(tensor: Tensor) -> Superblocks:
    """The scales as they are in the file; the integers are what remains of the values without them."""
    blocks = np.frombuffer(bytes(tensor.data), np.uint8).reshape(tensor.shape[0], -1, BLOCKS[tensor.type][1])
    shape = blocks.shape[:2]
    layout = LAYOUTS[tensor.type]
    d = np.ascontiguousarray(blocks[..., layout.d : layout.d + 2]).view(np.float16)[..., 0].astype(np.float64)
    scales = layout.scales(blocks)
    step = d[..., None] * scales
    values = dequantize(tensor).astype(np.float64).reshape(*shape, scales.shape[2], -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.where(step[..., None] == 0, 0, values / step[..., None])
    none = np.zeros((*shape, GROUPS), np.int64)
    return Superblocks(d, np.zeros(shape), scales, none, np.rint(whole).astype(np.int64), layout.dropped)


def _iq4_scales(blocks: Bytes) -> Ints:
    high = np.ascontiguousarray(blocks[..., 2:4]).view(np.uint16) >> np.arange(0, 16, 2) & 3
    low = (blocks[..., 4:8, None] >> np.array([0, 4]) & 15).reshape(*blocks.shape[:2], GROUPS)
    return np.asarray(low.astype(np.int64) + 16 * high - 32)


@dataclass(frozen=True)
class Layout:
    """Where in a block the scale d is, how to read the factors of it (int64[n, b, p] of uint8[n, b, bytes]),
    and Superblocks.dropped."""

    d: int
    scales: Callable[[Bytes], Ints]
    dropped: int


LAYOUTS = {"IQ4_XS": Layout(0, _iq4_scales, 4)}


def _k_superblocks(tensor: Tensor) -> Superblocks:
    raw = np.frombuffer(bytes(tensor.data), np.uint8)
    size = _K_SIZES[tensor.type]
    rows = tensor.shape[0]
    blocks = raw.reshape(rows, -1, size)
    shape = blocks.shape[:2]

    def half(at: int) -> Array:
        found = np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0]
        return np.asarray(found, np.float64)

    if tensor.type == "Q6_K":
        low = blocks[..., :128].reshape(*shape, 2, 2, 32)  # [half of the superblock, half of that, byte]
        high = blocks[..., 128:192].reshape(*shape, 2, 32)
        quarters: Ints = np.zeros((*shape, 2, 4, 32), np.int64)
        for quarter in range(4):
            nibble = low[..., quarter % 2, :] >> (4 * (quarter // 2)) & 15
            quarters[..., quarter, :] = (nibble | (high >> (2 * quarter) & 3) << 4).astype(np.int64) - 32
        scales = blocks[..., 192:208].view(np.int8).astype(np.int64)
        none = np.zeros((*shape, GROUPS), np.int64)
        return Superblocks(half(208), np.zeros(shape), scales, none, quarters.reshape(*shape, 16, 16), 1)
    packed = blocks[..., 4:16].astype(np.int64)
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=2)
    minimums = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=2)
    nibbles = blocks[..., -128:].reshape(*shape, 4, 32)
    integers = np.stack([nibbles & 15, nibbles >> 4], axis=3).astype(np.int64).reshape(*shape, GROUPS, 32)
    if tensor.type == "Q5_K":
        bits = blocks[..., None, 16:48] >> np.arange(GROUPS, dtype=np.uint8)[:, None] & 1
        integers |= bits.astype(np.int64) << 4
    return Superblocks(half(0), half(2), scales, minimums, integers, 2 if tensor.type == "Q5_K" else 1)
