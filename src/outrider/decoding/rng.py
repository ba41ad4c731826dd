"""Noise as a pure function of (seed, position, token id), so that speculation cannot change it.

The generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
1, 2, 3", SC 2011): a keyed bijection of a 128-bit counter, four 32-bit words in and out.

    key     = (seed mod 2^32, seed div 2^32)
    counter = (id div 4, purpose, position mod 2^32, position div 2^32)
    word    = output word number id mod 4
    u       = (word + 0.5) * 2^-32             in (0, 1), exact in float64
    noise   = -log(-log(u))                    standard Gumbel

`purpose` is 0 for token noise and 1 for the seeds of further samples; other uses take other numbers.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint64]  # 32-bit words, held in 64 so that products do not overflow

NOISE, SAMPLE = 0, 1

# Bounds of the noise: u lies in [2^-33, 1 - 2^-33], and these are rounded outwards.
GUMBEL_MIN, GUMBEL_MAX = -3.1300, 22.8739

_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_WEYL = 0x9E3779B9, 0xBB67AE85
_CHUNK = 2048  # counters at a time, so that the temporaries stay in the nearest caches


def philox4x32(counters: Words, key: tuple[int, int]) -> Words:
    """Ten rounds of Philox4x32 on uint64[4, n], each column a counter of four 32-bit words."""
    even, odd = counters[0::2], counters[1::2]  # words 0 and 2 are multiplied, 1 and 3 mixed in
    for turn in range(10):
        keys = np.array([[(k + turn * w) & 0xFFFFFFFF] for k, w in zip(key, _WEYL, strict=True)], np.uint64)
        product = even * _MULTIPLIERS
        even, odd = (product >> _HALF)[::-1] ^ odd ^ keys, (product & _LOW)[::-1]
    return np.stack((even, odd), axis=1).reshape(4, -1)


def _blocks(seed: int, purpose: int, position: int, numbers: Words) -> Words:
    """uint64[4, n]: the words of the blocks `numbers` (uint64[n])."""
    out = np.empty((4, len(numbers)), np.uint64)
    out[0], out[1], out[2], out[3] = numbers, purpose, position & 0xFFFFFFFF, position >> 32
    for start in range(0, len(numbers), _CHUNK):
        part = out[:, start : start + _CHUNK]
        part[:] = philox4x32(part, (seed & 0xFFFFFFFF, seed >> 32))
    return out


def gumbel(seed: int, position: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise, float64[n], of the tokens `ids` (int64[n], ascending) at `position`.

    position: index in the sequence, prompt included, of the token being chosen.
    An id's noise has the same bits whatever other ids are asked for.
    """
    numbers = (ids >> 2).astype(np.uint64)
    fresh = np.ones(len(ids), bool)
    fresh[1:] = numbers[1:] != numbers[:-1]  # neighbours share a block
    words = _blocks(seed, NOISE, position, numbers[fresh])[ids & 3, np.cumsum(fresh) - 1]
    # Contiguous float64 from here on: NumPy then takes one and the same log for every element.
    uniform: npt.NDArray[np.float64] = (words.astype(np.float64) + 0.5) * 2.0**-32
    noise: npt.NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def derive_seed(seed: int, index: int) -> int:
    """The 64-bit seed of sample `index` of a request: the seed itself for 0, else two words of
    Philox block `index` with purpose 1 (word 0 is the low half)."""
    if index == 0:
        return seed
    low, high = _blocks(seed, SAMPLE, 0, np.array([index], np.uint64))[:2, 0]
    return int(low) | int(high) << 32
