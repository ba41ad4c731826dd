// One scale for a superblock's activations, and how far each of its groups lies below it.
//
// Groups of 32 columns keep scales of their own, so that an outlier blurs 31 neighbours and not 255; but each is the
// superblock's divided by a power of two. Then a shift takes a group's products to the superblock's scale, and from
// there on all eight groups are summed in integers.
#pragma once
#include "half.h"
#include "layout.h"
#include "simd.h"

namespace outrider {
namespace {

constexpr int kDeepest = 12;  // a group's scale is at least the superblock's / 2^12

struct BlockScale {
    float whole;        // at least all maxima
    int below[kParts];  // group i's scale is whole / 2^below[i], at least its maximum
};

inline float power_of_2(int n) { return bits_to_float(uint32_t(127 + n) << 23); }

// biggest: each group's maximum. The superblock's scale is a multiple of one of them by a power of two: of that one
// with which the squares of the groups' scales, and so of what rounding gets wrong, have the smallest sum.
inline BlockScale block_scale(const float* biggest) {
    int exponent[kParts], top = 0;
    float mantissa[kParts], most = 0.0f;  // mantissas in [1, 2)
    for (int i = 0; i < kParts; i++) {
        const uint32_t bits = float_to_bits(biggest[i]);
        exponent[i] = int(bits >> 23);
        mantissa[i] = bits_to_float((bits & 0x7fffff) | 0x3f800000);
        top = imax(top, exponent[i]);
        most = most > biggest[i] ? most : biggest[i];
    }
    if (top < 27) return {0.0f, {0}};   // below 2^-100, which is nothing
    if (top > 253) return {most, {0}};  // about to overflow
    float cost[kParts] = {0};
    for (int i = 0; i < kParts; i++) {
        const float square = power_of_2(-2 * imin(top - exponent[i], kDeepest)), of_twice = 4.0f * square;
        for (int c = 0; c < kParts; c++) cost[c] += mantissa[i] > mantissa[c] ? of_twice : square;
    }
    int best = 0;
    for (int c = 0; c < kParts; c++) {
        cost[c] *= mantissa[c] * mantissa[c];
        if (cost[c] < cost[best]) best = c;
    }
    int whole = top;
    for (int i = 0; i < kParts; i++)
        if (exponent[i] == top && mantissa[i] > mantissa[best]) whole = top + 1;
    BlockScale out{power_of_2(whole - 127) * mantissa[best], {0}};
    for (int i = 0; i < kParts; i++)
        out.below[i] = imin(whole - exponent[i] - (mantissa[i] > mantissa[best] ? 1 : 0), kDeepest);
    return out;
}

}  // namespace
}  // namespace outrider
