from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.decoding.sampling.rng import LEAST_NOISE, derive_seed, gumbel, peaks, philox4x32

SEEDS = st.integers(0, 2**64 - 1)
POSITIONS = st.integers(0, 2**40)
IDS = st.integers(0, 200_000)


@pytest.mark.parametrize(  # Random123's kat_vectors: counter, key, result
    "line",
    [
        "00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd",
        "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1",
    ],
)
def test_philox_gives_the_published_words(line: str) -> None:
    numbers = [int(word, 16) for word in line.split()]
    counter = np.array(numbers[:4], np.uint64).reshape(4, 1)
    assert philox4x32(np.repeat(counter, 3, axis=1), (numbers[4], numbers[5])).T.tolist() == [numbers[6:]] * 3


def one_block(seed: int, purpose: int, position: int, number: int) -> list[int]:
    """The same generator in plain integers, one counter at a time."""
    c = [number, purpose, position % 2**32, position // 2**32]
    k = [seed % 2**32, seed // 2**32]
    for _ in range(10):
        left, right = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(right >> 32) ^ c[1] ^ k[0], right % 2**32, (left >> 32) ^ c[3] ^ k[1], left % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def exponential(word: int) -> float:
    return -math.log((word + 0.5) / 2**32)


def one_noise(seed: int, position: int, token: int) -> float:
    """The noise as the module's docstring defines it."""
    a, b, _, _ = one_block(seed, 0, position, token // 256)
    time = exponential(a) / 256
    if token % 256 != b % 256:
        time += exponential(one_block(seed, 1, position, token // 4)[token % 4])
    return -math.log(time)


@given(SEEDS, POSITIONS, st.lists(IDS, min_size=1, max_size=20))
def test_noise_matches_the_docstring(seed: int, position: int, ids: list[int]) -> None:
    ids += [t - t % 256 + one_block(seed, 0, position, t // 256)[1] % 256 for t in ids]  # holders too
    found = gumbel(seed, position, np.array(sorted(ids), np.int64))
    expected = [one_noise(seed, position, token) for token in sorted(ids)]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@given(SEEDS, POSITIONS, st.sets(IDS, min_size=1, max_size=300), st.data())
def test_an_id_has_the_same_bits_whatever_ids_are_asked_with_it(
    seed: int, position: int, ids: set[int], data: st.DataObject
) -> None:
    together = dict(zip(sorted(ids), gumbel(seed, position, np.array(sorted(ids), np.int64)), strict=True))
    some = sorted(data.draw(st.sets(st.sampled_from(sorted(ids)), min_size=1)))
    apart = gumbel(seed, position, np.array(some, np.int64))
    assert apart.tolist() == [together[token] for token in some]


def test_the_bits_hold_across_chunks_and_lengths() -> None:
    everything = gumbel(5, 77, np.arange(40_000))
    for size in (1, 2, 3, 5, 8, 13, 1000, 8191, 8193):
        assert (gumbel(5, 77, np.arange(size)) == everything[:size]).all()
        assert (gumbel(5, 77, np.arange(40_000 - size, 40_000)) == everything[-size:]).all()
    assert gumbel(5, 77, np.empty(0, np.int64)).shape == (0,)


@given(SEEDS, POSITIONS)
def test_peaks_are_the_greatest_noises(seed: int, position: int) -> None:
    heights, holders = peaks(seed, position, np.arange(4))
    noise = gumbel(seed, position, np.arange(1024)).reshape(4, 256)
    assert heights.tolist() == noise.max(axis=1).tolist()
    assert holders.tolist() == (noise.argmax(axis=1) + 256 * np.arange(4)).tolist()
    assert noise.min() > LEAST_NOISE


def test_the_bound_below_is_one() -> None:
    slowest = exponential(0) / 256 + exponential(0)
    assert LEAST_NOISE < -math.log(slowest) < LEAST_NOISE + 0.01


def distance_from_gumbel(noise: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Kolmogorov and Smirnov's statistic times sqrt(n); above 1.95 once in a thousand samples."""
    cdf = np.exp(-np.exp(-np.sort(noise)))
    steps = np.arange(len(noise) + 1) / len(noise)
    return float(max((steps[1:] - cdf).max(), (cdf - steps[:-1]).max()) * len(noise) ** 0.5)


def test_noise_is_gumbel_over_ids_positions_and_seeds() -> None:
    assert distance_from_gumbel(gumbel(1, 2, np.arange(50_000))) < 1.95
    one = np.array([300])
    assert distance_from_gumbel(np.array([gumbel(1, p, one)[0] for p in range(1000)])) < 1.95
    assert distance_from_gumbel(np.array([gumbel(s << 30, 9, one)[0] for s in range(1000)])) < 1.95
    # Its broken twin: leave out the earliest arrival that the others wait for, and the test sees it.
    times = np.exp(-gumbel(1, 2, np.arange(50_000)).reshape(-1, 250))
    assert distance_from_gumbel(-np.log(times * 1.03).reshape(-1)) > 1.95


def test_noise_of_neighbouring_positions_is_independent() -> None:
    noise = np.array([gumbel(3, position, np.arange(64)) for position in range(1000)])
    correlation = np.corrcoef(noise.T)
    assert np.abs(correlation - np.eye(64)).max() < 5.0 / 1000**0.5


def test_derived_seeds() -> None:
    assert derive_seed(42, 0) == 42
    words = one_block(42, 2, 0, 7)
    assert derive_seed(42, 7) == words[0] + words[1] * 2**32
    assert len({derive_seed(42, i) for i in range(1000)}) == 1000
