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
    """A matrix of n rows and b superblocks, in p parts of one scale each: 8, or 16 (Q6_K, Q3_K, Q2_K)."""

    step: Array  # [n, b]
    minimum_step: Array  # [n, b]
    scales: Ints  # [n, b, p]
    minimums: Ints  # [n, b, 8], or [n, b, 16] in Q2_K
    integers: Ints  # [n, b, p, 256 / p]
    dropped: int  # bits of a sum of products
    fraction: int = 0  # bits of the integers

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
        if self.minimums.shape[2] == GROUPS:
            unit = 8
            rounded = np.array([_eighths(int(s), int(k)) for s, k in zip(x.sum(1), below, strict=True)])
        else:
            unit, down = 16, 1 + below[group]
            rounded = (32 * x.reshape(parts, -1).sum(1) + (1 << (down - 1)) - group % 2) >> down
        less = (self.minimums[:, b] * rounded).sum(1)
        step = self.step[:, b] * 2.0 ** (self.dropped - self.fraction)
        return np.asarray(step * total - self.minimum_step[:, b] / unit * less)


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
    at = layout.d
    halves = np.ascontiguousarray(blocks[..., at : at + 4 if layout.minimums else at + 2]).view(np.float16)
    d, scales = halves[..., 0].astype(np.float64), layout.scales(blocks)
    minimums: Ints = np.zeros((*shape, GROUPS), np.int64)
    minimum_step = np.zeros(shape)
    step = d[..., None] * scales
    values = dequantize(tensor).astype(np.float64).reshape(*shape, scales.shape[2], -1)
    if layout.minimums:
        minimums, minimum_step = layout.minimums(blocks), halves[..., 1].astype(np.float64)
        values += (minimum_step[..., None] * minimums)[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.where(step[..., None] == 0, 0, values / step[..., None])
    integers = np.rint(whole * 2**layout.fraction).astype(np.int64)
    return Superblocks(d, minimum_step, scales, minimums, integers, layout.dropped, layout.fraction)


def _iq4_scales(blocks: Bytes) -> Ints:
    high = np.ascontiguousarray(blocks[..., 2:4]).view(np.uint16) >> np.arange(0, 16, 2) & 3
    low = (blocks[..., 4:8, None] >> np.array([0, 4]) & 15).reshape(*blocks.shape[:2], GROUPS)
    return np.asarray(low.astype(np.int64) + 16 * high - 32)


def _q3_scales(blocks: Bytes) -> Ints:
    low = np.concatenate([blocks[..., 96:104] & 15, blocks[..., 96:104] >> 4], axis=2)
    high = np.concatenate([blocks[..., 104:108] >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
    return np.asarray((low | high << 4).astype(np.int64) - 32)


def _ones(blocks: Bytes) -> Ints:
    return np.ones((*blocks.shape[:2], GROUPS), np.int64)


def _iq3_xxs_scales(blocks: Bytes) -> Ints:
    return np.asarray(2 * (blocks[..., 69:98:4].astype(np.int64) >> 4) + 1)


def _iq3_s_scales(blocks: Bytes) -> Ints:
    nibbles = (blocks[..., 106:110, None] >> np.array([0, 4]) & 15).reshape(*blocks.shape[:2], GROUPS)
    return np.asarray(2 * nibbles.astype(np.int64) + 1)


def _iq2_xxs_scales(blocks: Bytes) -> Ints:
    return np.asarray(2 * (blocks[..., 9:66:8].astype(np.int64) >> 4) + 1)


def _iq2_scales(nibbles: Bytes) -> Ints:
    both = (nibbles[..., None] >> np.array([0, 4]) & 15).reshape(*nibbles.shape[:2], 2 * GROUPS)
    return np.asarray(2 * both.astype(np.int64) + 1)


@dataclass(frozen=True)
class Layout:
    """Where in a block the scale d is, how to read the factors of it (int64[n, b, p] of uint8[n, b, bytes]),
    Superblocks.dropped and .fraction, and how to read the minimums, whose scale follows d."""

    d: int
    scales: Callable[[Bytes], Ints]
    dropped: int
    fraction: int = 0
    minimums: Callable[[Bytes], Ints] | None = None


LAYOUTS = {
    "IQ4_XS": Layout(0, _iq4_scales, 4),
    "Q3_K": Layout(108, _q3_scales, 1, 3),
    "Q2_K": Layout(
        80,
        lambda blocks: np.asarray(blocks[..., :16] & 15, np.int64),
        1,
        3,
        lambda blocks: np.asarray(blocks[..., :16] >> 4, np.int64),
    ),
    "TQ1_0": Layout(52, _ones, 1, 3),
    "TQ2_0": Layout(64, _ones, 1, 3),
    "IQ3_XXS": Layout(0, _iq3_xxs_scales, 2, 1),
    "IQ3_S": Layout(0, _iq3_s_scales, 1),
    "IQ2_XXS": Layout(0, _iq2_xxs_scales, 3, 3),
    "IQ2_XS": Layout(0, lambda blocks: _iq2_scales(blocks[..., 66:74]), 2, 3),
    "IQ2_S": Layout(0, lambda blocks: _iq2_scales(blocks[..., 74:82]), 2, 3),
}


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
