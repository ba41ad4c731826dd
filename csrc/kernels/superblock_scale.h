// One scale for a superblock's activations, and each group's scale as a fraction of it.
//
// Each group of 32 columns has its own scale, so that an outlier costs 31 neighbours precision and not 255.
// But every group's scale is the superblock's divided by a power of two, so a shift brings a group's products
// to the superblock's scale, and all eight groups are then summed in integers.
#pragma once
#include "kernels/simd.h"
#include "kernels/types.h"
#include "memory/half.h"

namespace outrider {
namespace {

constexpr int kMaxShift = 12;  // a group's scale is at least the superblock's / 2^12

// For values of up to 1, not 127: the quantization steps are these scales divided by 127.
struct SuperblockScale {
    float scale;                   // at least the maximum of every group
    int shift[kSuperblockGroups];  // group i's scale is scale / 2^shift[i], at least its maximum
};

// One lane for each group, always in registers. Lanes that are stored one at a time and loaded as a vector
// cannot be forwarded from the store buffer: the load waits until they, and all stores before them, are in
// the cache (among them activations whose lines are in other threads' caches).
using Floats8 = float __attribute__((vector_size(4 * kSuperblockGroups)));
using Ints8 = int32_t __attribute__((vector_size(4 * kSuperblockGroups)));

inline float power_of_2(int n) { return bits_to_float(uint32_t(127 + n) << 23); }
inline int max_lane(const Ints8& v) {
    int top = v[0];
    for (int i = 1; i < kSuperblockGroups; i++) top = imax(top, v[i]);
    return top;
}
inline void limit(Ints8& v, int highest) { v = v < highest ? v : highest + Ints8{}; }

// maxima: the largest magnitude of each group. The superblock's scale is one of them times a power of two:
// the one for which the squares of the groups' scales, and so the expected squared rounding error, have the
// smallest sum.
inline __attribute__((always_inline)) SuperblockScale superblock_scale(const Floats8& maxima) {
    SuperblockScale out{0.0f, {0}};
    const Ints8 bits = Ints8(maxima), exponent = bits >> 23;
    const Floats8 mantissa = Floats8((bits & 0x7fffff) | 0x3f800000);  // in [1, 2)
    const int top = max_lane(exponent);
    if (top < 27) return out;  // all below 2^-100: quantized to zeros
    if (top > 253) {           // the scale's exponent would overflow
        for (int i = 0; i < kSuperblockGroups; i++) out.scale = out.scale > maxima[i] ? out.scale : maxima[i];
        return out;
    }
    Ints8 shift = top - exponent;
    limit(shift, kMaxShift);
    const Floats8 square = Floats8((127 - 2 * shift) << 23), square_of_twice = 4.0f * square;
    Floats8 cost{};
#pragma GCC unroll 8
    for (int i = 0; i < kSuperblockGroups; i++)
        cost += mantissa[i] > mantissa ? square_of_twice[i] + Floats8{} : square[i] + Floats8{};
    cost *= mantissa * mantissa;
    float best = mantissa[0], least = cost[0];  // the mantissa of the least cost
    for (int c = 1; c < kSuperblockGroups; c++) {
        best = cost[c] < least ? mantissa[c] : best;
        least = cost[c] < least ? cost[c] : least;
    }
    // The least exponent with which a scale of mantissa `best` reaches each maximum.
    const Ints8 required = exponent - Ints8(mantissa > best);
    const int top_required = max_lane(required);
    out.scale = power_of_2(top_required - 127) * best;
    shift = top_required - required;
    limit(shift, kMaxShift);
    std::memcpy(out.shift, &shift, sizeof shift);
    return out;
}

}  // namespace
}  // namespace outrider
