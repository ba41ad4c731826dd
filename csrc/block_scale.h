// One scale for a superblock's activations, and how far each of its groups lies below it.
//
// Groups of 32 columns keep scales of their own, so that an outlier blurs 31 neighbours and not 255; but each is the
// superblock's divided by a power of two. Then a shift takes a group's products to the superblock's scale, and from
// there on all eight groups are summed in integers.
#pragma once
#include <cstdint>
#include <cstring>

#include "layout.h"

namespace outrider {
namespace {

constexpr int kDeepest = 12;  // a group's scale is at least the superblock's / 2^12

struct BlockScale {
    float whole;         // at least all maxima
    int below[kParts];  // group i's scale is whole / 2^below[i], at least its maximum
};

inline float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
inline float power_of_2(int n) { return from_bits(uint32_t(127 + n) << 23); }

// biggest: each group's maximum. The superblock's scale is a multiple of one of them by a power of two: of that one
// with which the squares of the groups' scales, and so of what rounding gets wrong, have the smallest sum.
inline BlockScale block_scale(const float* biggest) {
    int exponent[kParts], top = 0;
    float mantissa[kParts];  // in [1, 2)
    for (int i = 0; i < kParts; i++) {
        uint32_t bits;
        std::memcpy(&bits, biggest + i, 4);
        exponent[i] = int(bits >> 23);
        mantissa[i] = from_bits((bits & 0x7fffff) | 0x3f800000);
        top = top > exponent[i] ? top : exponent[i];
    }
    BlockScale out{0.0f, {0}};
    if (top < 27 || top > 253) {  // below 2^-100, which is nothing, or about to overflow
        for (int i = 0; i < kParts && top > 253; i++) out.whole = out.whole > biggest[i] ? out.whole : biggest[i];
        return out;
    }
    float cost[kParts] = {0};
    for (int i = 0; i < kParts; i++) {
        const int down = top - exponent[i] < kDeepest ? top - exponent[i] : kDeepest;
        const float square = power_of_2(-2 * down), twice = 4.0f * square;
        for (int c = 0; c < kParts; c++) cost[c] += mantissa[i] > mantissa[c] ? twice : square;
    }
    int best = 0;
    for (int c = 0; c < kParts; c++) {
        cost[c] *= mantissa[c] * mantissa[c];
        if (cost[c] < cost[best]) best = c;
    }
    int whole = top;
    for (int i = 0; i < kParts; i++)
        if (exponent[i] == top && mantissa[i] > mantissa[best]) whole = top + 1;
    out.whole = power_of_2(whole - 127) * mantissa[best];
    for (int i = 0; i < kParts; i++) {
        const int below = whole - exponent[i] - (mantissa[i] > mantissa[best] ? 1 : 0);
        out.below[i] = below < kDeepest ? below : kDeepest;
    }
    return out;
}

}  // namespace
}  // namespace outrider
