// One scale for a superblock's activations, and how far each of its groups lies below it.
//
// Groups of 32 columns keep scales of their own, so that an outlier blurs 31 neighbours and not 255; but each
// is the superblock's divided by a power of two. Then a shift takes a group's products to the superblock's
// scale, and from there on all eight groups are summed in integers.
#pragma once
#include "kernels/layout.h"
#include "kernels/simd.h"
#include "memory/half.h"

namespace outrider {
namespace {

constexpr int kDeepest = 12;  // a group's scale is at least the superblock's / 2^12

struct BlockScale {
    float whole;        // at least all maxima
    int below[kParts];  // group i's scale is whole / 2^below[i], at least its maximum
};

// A lane for each group, held in registers all along: what is written a lane at a time and read back as one
// waits until the cache has it, and with it all that was written before, such as activations that other
// threads' caches have to give.
using Floats8 = float __attribute__((vector_size(4 * kParts)));
using Ints8 = int32_t __attribute__((vector_size(4 * kParts)));

inline float power_of_2(int n) { return bits_to_float(uint32_t(127 + n) << 23); }
inline int most_of(const Ints8& v) {
    int most = v[0];
    for (int i = 1; i < kParts; i++) most = imax(most, v[i]);
    return most;
}
inline void limit(Ints8& v, int most) { v = v < most ? v : most + Ints8{}; }

// biggest: each group's maximum. The superblock's scale is a multiple of one of them by a power of two: of
// that one with which the squares of the groups' scales, and so of what rounding gets wrong, have the
// smallest sum.
inline __attribute__((always_inline)) BlockScale block_scale(const Floats8& biggest) {
    BlockScale out{0.0f, {0}};
    const Ints8 bits = Ints8(biggest), exponent = bits >> 23;
    const Floats8 mantissa = Floats8((bits & 0x7fffff) | 0x3f800000);  // in [1, 2)
    const int top = most_of(exponent);
    if (top < 27) return out;  // below 2^-100, which is nothing
    if (top > 253) {           // about to overflow
        for (int i = 0; i < kParts; i++) out.whole = out.whole > biggest[i] ? out.whole : biggest[i];
        return out;
    }
    Ints8 below = top - exponent;
    limit(below, kDeepest);
    const Floats8 square = Floats8((127 - 2 * below) << 23), of_twice = 4.0f * square;
    Floats8 cost{};
#pragma GCC unroll 8
    for (int i = 0; i < kParts; i++)
        cost += mantissa[i] > mantissa ? of_twice[i] + Floats8{} : square[i] + Floats8{};
    cost *= mantissa * mantissa;
    float best = mantissa[0], least = cost[0];
    for (int c = 1; c < kParts; c++) {
        best = cost[c] < least ? mantissa[c] : best;
        least = cost[c] < least ? cost[c] : least;
    }
    const Ints8 above =
        exponent - Ints8(mantissa > best);  // one more where the maximum has a larger mantissa
    const int whole = most_of(above);
    out.whole = power_of_2(whole - 127) * best;
    below = whole - above;
    limit(below, kDeepest);
    std::memcpy(out.below, &below, sizeof below);
    return out;
}

}  // namespace
}  // namespace outrider
