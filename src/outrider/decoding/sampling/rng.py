"""Random numbers as pure functions of (seed, position, token id), so that speculation cannot change them.

The generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
1, 2, 3", SC 2011): a keyed bijection of a 128-bit counter, four 32-bit words in and out. Here

    block(purpose, number) = Philox4x32-10 with
        key     = (seed mod 2^32, seed div 2^32)
        counter = (number, purpose, position mod 2^32, position div 2^32)
    exponential(word)      = -log((word + 0.5) * 2^-32)          the uniform is exact in float64

Every token id has an arrival time, independent and exponential with rate 1, and its noise is
-log(time), a standard Gumbel variable. The times of each group of 256 consecutive ids are derived from the
earliest one, so that the greatest noise in a group is known from one block without the other 255 ids
(top-down construction, Maddison, Tarlow and Minka, "A* sampling", 2014):

    a, b, _, _ = block(0, id div 256)
    first      = exponential(a) / 256         the earliest of 256 exponentials has rate 256,
    holder     = b mod 256                    is equally likely to be any of them,
    time       = first                        if id mod 256 is the holder, and
               = first + exponential(word id mod 4 of block(1, id div 4))
                                              otherwise: exponentials have no memory.

Purpose 2 gives the seeds of further samples. Purposes 3, 4 and 5 give the uniforms of the rules `rejection`
and `block` (see `sampling.randomness`), at the position of the step's first token:

    uniform(number) = (word 0 div 2^5 * 2^26 + word 1 div 2^6) * 2^-53 of block(purpose, number)
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint64]  # 32-bit words, held in 64 so that products do not overflow
Ids: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

GROUP = 256  # ids that share the block of their earliest arrival
LEAST_NOISE = -3.14  # a lower bound: no time is above exponential(0) * (1 + 1 / 256) = 22.97

_FIRST, _LATER, _SEED = 0, 1, 2  # purposes
DRAFT, ACCEPT, NEXT = 3, 4, 5  # purposes of uniforms
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], np.uint64) * np.arange(10, dtype=np.uint64)[:, None, None]
_CHUNK = 2048  # counters at a time, so that the temporaries stay in the L1 and L2 caches


def philox4x32(counters: Words, key: tuple[int, int]) -> Words:
    """Ten rounds of Philox4x32 on uint64[4, n], each column a counter of four 32-bit words."""
    even, odd = counters[0::2], counters[1::2]  # words 0 and 2 are multiplied, 1 and 3 mixed in
    for round_key in (_WEYL + np.array([[key[0]], [key[1]]], np.uint64)) & _LOW:
        product = even * _MULTIPLIERS
        even, odd = (product >> _HALF)[::-1] ^ odd ^ round_key, (product & _LOW)[::-1]
    return np.stack((even, odd), axis=1).reshape(4, -1)


def _blocks(seed: int, position: int, purpose: int | Words, numbers: Words) -> Words:
    """uint64[4, n]: the words of the blocks `numbers` (uint64[n])."""
    out = np.empty((4, len(numbers)), np.uint64)
    out[0], out[1], out[2], out[3] = numbers, purpose, position & 0xFFFFFFFF, position >> 32
    for start in range(0, len(numbers), _CHUNK):
        part = out[:, start : start + _CHUNK]
        part[:] = philox4x32(part, (seed & 0xFFFFFFFF, seed >> 32))
    return out


def _exponential(words: Words) -> Floats:
    # On a contiguous array NumPy computes the log of every element in the same way, so that an id's noise
    # has the same bits whichever other ids are computed with it.
    times: Floats = -np.log((np.ascontiguousarray(words).astype(np.float64) + 0.5) * 2.0**-32)
    return times


def _earliest(words: Words, groups: Ids) -> tuple[Floats, Ids]:
    """(first, id of the holder) of each group, from its block's words."""
    return _exponential(words[0]) / GROUP, groups * GROUP + (words[1] & np.uint64(GROUP - 1)).astype(np.int64)


def peaks(seed: int, position: int, groups: Ids) -> tuple[Floats, Ids]:
    """(noise, ids), float64[n] and int64[n]: the greatest noise in each group of ids 256 * g .. 256 * g + 255
    for g in `groups` (int64[n]), and the id that has it."""
    words = _blocks(seed, position, _FIRST, groups.astype(np.uint64))
    first, holders = _earliest(words, groups)
    noise: Floats = -np.log(first)
    return noise, holders


def gumbel(seed: int, position: int, ids: Ids) -> Floats:
    """Standard Gumbel noise, float64[n], of the tokens `ids` (int64[n], ascending) at `position`.

    position: index in the sequence, prompt included, of the token being chosen.
    """
    groups, group = _distinct(ids // GROUP)
    quads, quad = _distinct(ids >> 2)
    purposes = np.repeat(np.array([_FIRST, _LATER], np.uint64), (len(groups), len(quads)))
    words = _blocks(seed, position, purposes, np.concatenate((groups, quads)).astype(np.uint64))
    first, holders = _earliest(words[:, : len(groups)], groups)
    later = _exponential(words[ids & 3, len(groups) + quad])
    noise: Floats = -np.log(np.where(holders[group] == ids, first[group], first[group] + later))
    return noise


def _distinct(ascending: Ids) -> tuple[Ids, Ids]:
    """The distinct values, and for each element the index of its value among them."""
    new = np.ones(len(ascending), bool)
    new[1:] = ascending[1:] != ascending[:-1]
    return ascending[new], np.cumsum(new) - 1


def uniforms(seed: int, position: int, purposes: int | Ids, numbers: Ids) -> Floats:
    """Independent uniforms from [0, 1), float64[n], multiples of 2^-53, for `numbers` (int64[n]) and their
    purposes (one for all, or int64[n])."""
    kinds = np.asarray(purposes).astype(np.uint64)
    high, low, _, _ = _blocks(seed, position, kinds, numbers.astype(np.uint64))
    bits = ((high >> np.uint64(5)) << np.uint64(26)) | (low >> np.uint64(6))
    values: Floats = bits.astype(np.float64) * 2.0**-53
    return values


def derive_seed(seed: int, index: int) -> int:
    """The 64-bit seed of sample `index` of a request: the seed itself for 0, else words 0 (low half)
    and 1 of block(2, index) at position 0."""
    if index == 0:
        return seed
    low, high = _blocks(seed, 0, _SEED, np.array([index], np.uint64))[:2, 0]
    return int(low) | int(high) << 32
