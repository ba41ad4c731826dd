"""The sampler's noise on a GPU: `decoding.sampling.rng` defines it, csrc/sampler/noise.h has the same bits.

Words are those of Philox4x32-10. Times and noise are float64, computed by the operations of noise.h in its
order, with its logarithm: additions, products and quotients that IEEE 754 defines to the last bit. So kernels
that use these functions must be launched with enable_fp_fusion=False: a fused product and sum is rounded once
where noise.h rounds twice.
"""

from __future__ import annotations

import triton
import triton.language as tl

GROUP = 256  # ids that share the block of their earliest arrival, see `rng`

_GROUP = tl.constexpr(GROUP)
_SQRT_HALF = tl.constexpr(0x3FE6A09E667F3BCD)
_EXPONENT = tl.constexpr(-0x10000000000000)  # sign and exponent of a double's bits
_LN2_HIGH = tl.constexpr(float.fromhex("0x1.62e42feep-1"))
_LN2_LOW = tl.constexpr(float.fromhex("0x1.a39ef35793c76p-33"))
_STEP = tl.constexpr(2.0**-32)


@triton.jit
def natural_log(x):
    """The logarithm of positive normal float64 numbers, `natural_log` of noise.h."""
    bits = x.to(tl.int64, bitcast=True)
    above = bits - _SQRT_HALF
    k = (above >> 52).to(tl.float64)
    f = (bits - (above & _EXPONENT)).to(tl.float64, bitcast=True) - 1.0
    s = f / (2.0 + f)
    z = s * s
    r = z * (2.0 / 21.0) + 2.0 / 19.0
    r = r * z + 2.0 / 17.0
    r = r * z + 2.0 / 15.0
    r = r * z + 2.0 / 13.0
    r = r * z + 2.0 / 11.0
    r = r * z + 2.0 / 9.0
    r = r * z + 2.0 / 7.0
    r = r * z + 2.0 / 5.0
    r = r * z + 2.0 / 3.0
    return k * _LN2_HIGH + (f + (k * _LN2_LOW - s * (f - z * r)))


@triton.jit
def exponential(word):
    """-log((word + 0.5) / 2^32) of uint32 words."""
    return -natural_log((word.to(tl.float64) + 0.5) * _STEP)


@triton.jit
def block_words(seed, position, purpose: tl.constexpr, numbers):
    """The four words, uint32, of the Philox blocks `numbers` (int32). seed and position are int64 scalars,
    the seed's bits those of the unsigned number."""
    a = numbers.to(tl.uint32)
    zero = a - a
    b = zero + purpose
    c = zero + (position & 0xFFFFFFFF).to(tl.uint32)
    d = zero + ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    k0 = zero + (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = zero + ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return tl.philox_impl(a, b, c, d, k0, k1)


@triton.jit
def earliest(seed, position, quad):
    """(first, holder) of the groups that quads of ids are in: the earliest arrival and the id that has it."""
    group = quad // (_GROUP // 4)
    a, b, _, _ = block_words(seed, position, 0, group)
    return exponential(a) / (1.0 * _GROUP), group * _GROUP + (b & (_GROUP - 1)).to(tl.int32)


@triton.jit
def four_times(x):
    """Each element four times: x[i // 4]."""
    return tl.interleave(tl.interleave(x, x), tl.interleave(x, x))


@triton.jit
def quad_noise(seed, position, quad, first, holder):
    """Noise of the ids 4 * quad .. 4 * quad + 3 of all quads, in order. first and holder: see `earliest`."""
    w0, w1, w2, w3 = block_words(seed, position, 1, quad)
    words = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
    at = tl.interleave(tl.interleave(quad * 4, quad * 4 + 2), tl.interleave(quad * 4 + 1, quad * 4 + 3))
    time = four_times(first)
    time = tl.where(at == four_times(holder), time, time + exponential(words))
    return -natural_log(time)
