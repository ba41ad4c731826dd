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

_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_CHUNK = 4096  # counters at a time, so that the temporaries stay in the L1 and L2 caches


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, ...]:
    """Ten rounds of Philox4x32 on broadcastable arrays of counter words. Returns four words."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        left, right = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (right >> _HALF) ^ b ^ np.uint64(k0), right & _MASK
        c, d = (left >> _HALF) ^ d ^ np.uint64(k1), left & _MASK
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return a, b, c, d


def _blocks(seed: int, purpose: int, position: int, numbers: Words) -> Words:
    """uint64[n, 4]: the four words of each block in `numbers` (uint64[n])."""
    out = np.empty((len(numbers), 4), np.uint64)
    rest = [np.uint64(w) for w in (purpose, position & 0xFFFFFFFF, position >> 32)]
    for start in range(0, len(numbers), _CHUNK):
        part = numbers[start : start + _CHUNK]
        fixed = [np.full(len(part), w) for w in rest]
        words = philox4x32((part, fixed[0], fixed[1], fixed[2]), (seed & 0xFFFFFFFF, seed >> 32))
        for i, word in enumerate(words):
            out[start : start + _CHUNK, i] = word
    return out


def gumbel(seed: int, position: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise, float64[n], of the tokens `ids` (int64[n], ascending) at `position`.

    position: index in the sequence, prompt included, of the token being chosen.
    An id's noise has the same bits whatever other ids are asked for.
    """
    numbers = (ids >> 2).astype(np.uint64)
    if len(ids):
        fresh = np.concatenate(([True], numbers[1:] != numbers[:-1]))  # neighbours share a block
        words = _blocks(seed, NOISE, position, numbers[fresh])[np.cumsum(fresh) - 1, ids & 3]
    else:
        words = numbers
    # Contiguous float64 from here on: NumPy then takes one and the same log for every element.
    return -np.log(-np.log((words.astype(np.float64) + 0.5) * 2.0**-32))


def derive_seed(seed: int, index: int) -> int:
    """The 64-bit seed of sample `index` of a request: the seed itself for 0, else two words of
    Philox block `index` with purpose 1 (word 0 is the low half)."""
    if index == 0:
        return seed
    low, high = _blocks(seed, SAMPLE, 0, np.array([index], np.uint64))[0, :2]
    return int(low) | int(high) << 32
