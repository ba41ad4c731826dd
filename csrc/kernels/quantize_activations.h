// Activations of float32 to int8, written once on V16; included by common.h.
#pragma once
#include "kernels/activations.h"
#include "kernels/simd.h"
#include "kernels/superblock_scale.h"

namespace outrider {
namespace {

// Stores the integers of one group, rounded from `low` and `high`, and its scale and sums; `at` is its index.
inline Sums store_group(Activations& a, size_t at, V16 low, V16 high, float scale) {
    const Sums sums = vstore_i8(a.q + kGroup * at, low, high);
    const int32_t sum = sums.low + sums.high;
    a.scale[at] = scale;
    a.sum[at] = sum;
    a.scaled_sum[at] = scale * float(sum);
    return sums;
}

// What a superblock's group has in addition; its scale is the superblock's / 2^k. `odd` is its number modulo
// 2, pair_at the index of its pair.
inline void store_superblock_group(Activations& a, size_t at, size_t pair_at, int odd, int k, Sums sums) {
    constexpr int centre = info(WeightType::Q6_K).offset;
    const int rounding = (1 << k) - odd, sum = sums.low + sums.high;
    a.rounding[at] = rounding;
    a.shifts[2 * at] = 1 + k;
    a.shifts[2 * at + 1] = 15 - k;
    a.centred_start[2 * at] = rounding - centre * sums.low;
    a.centred_start[2 * at + 1] = rounding - centre * sums.high;
    if (a.half_sums_q4) {
        a.half_sums_q4[2 * at] = int16_t((32 * sums.low + rounding) >> (1 + k));
        a.half_sums_q4[2 * at + 1] = int16_t((32 * sums.high + rounding) >> (1 + k));
    }
    a.min_sums_q3[2 * pair_at + size_t(odd)] =
        int16_t(k < 4 ? sum * (8 >> k) : (sum + (1 << (k - 4))) >> (k - 3));
}

// Prefetches, for writing, what is stored for one group of a token tile: the thread that read it last has the
// lines in its own cache.
inline void prefetch_group(const Activations& a, size_t at) {
    for (int i = 0; i < a.tile_tokens; i += 2) __builtin_prefetch(a.q + kGroup * (at + size_t(i)), 1);
    __builtin_prefetch(a.scale + at, 1);
    __builtin_prefetch(a.sum + at, 1);
    __builtin_prefetch(a.scaled_sum + at, 1);
    if (!a.superblocks) return;
    __builtin_prefetch(a.rounding + at, 1);
    __builtin_prefetch(a.shifts + 2 * at, 1);
    __builtin_prefetch(a.centred_start + 2 * at, 1);
    __builtin_prefetch(a.min_sums_q3 + at, 1);
}

// Columns are a multiple of 32 here, or of 256 with superblocks, as the matrices that read them require.
template <bool RESIDUAL, bool SUPERBLOCKS>
inline void quantize_groups(Activations& a, int t, int residual_row, int first, int last) {
    constexpr int ahead = 6, groups = SUPERBLOCKS ? kSuperblockGroups : 1;
    constexpr float finer = 254.0f;  // a residual of half a step becomes 127 of these finer steps
    const float* x = a.x + size_t(t) * a.columns + size_t(first) * kGroup;
    const size_t step = size_t(a.tile_tokens);
    size_t at = a.at(t, first), pair_at = a.at(t, first, 2), super_at = a.at(t, first, kSuperblockGroups);
    // The residual row's indices are at a fixed distance from these.
    const size_t to_residual = RESIDUAL ? a.at(residual_row, first) - at : 0;
    const size_t pair_to_residual = RESIDUAL ? a.at(residual_row, first, 2) - pair_at : 0;
    const size_t super_to_residual = RESIDUAL ? a.at(residual_row, first, kSuperblockGroups) - super_at : 0;
    for (int g = first; g < last; g += groups, super_at += step) {
        const auto maximum = [&](int i) {
            return reduce_max(vmax(vabs(vload(x + kGroup * i)), vabs(vload(x + kGroup * i + 16))));
        };
        SuperblockScale super;
        if constexpr (SUPERBLOCKS)
            super = superblock_scale(Floats8{maximum(0), maximum(1), maximum(2), maximum(3),  //
                                             maximum(4), maximum(5), maximum(6), maximum(7)});
        else
            super = {maximum(0), {0}};
        const float super_step = super.scale / 127.0f,
                    inverse = super.scale > 0x1p-100f ? 127.0f / super.scale : 0.0f;
        if constexpr (SUPERBLOCKS) {
            a.superblock_scale[super_at] = super_step;
            if constexpr (RESIDUAL) a.superblock_scale[super_at + super_to_residual] = super_step / finer;
        }
        for (int i = 0; i < groups; i++, x += kGroup, at += step) {
            if (t % a.tile_tokens == 0 && g + i + ahead < last) prefetch_group(a, at + ahead * step);
            const int shift = super.shift[i];
            const float scale = super_step * power_of_2(-shift);
            const V16 factor = vset(inverse * power_of_2(shift));
            const V16 low = vmul(vload(x), factor), high = vmul(vload(x + 16), factor);
            const Sums sums = store_group(a, at, low, high, scale);
            if constexpr (SUPERBLOCKS) store_superblock_group(a, at, pair_at, i % 2, shift, sums);
            if constexpr (RESIDUAL) {
                const Sums residual_sums =
                    store_group(a, at + to_residual, vmul(vsub(low, vround(low)), vset(finer)),
                                vmul(vsub(high, vround(high)), vset(finer)), scale / finer);
                if constexpr (SUPERBLOCKS)
                    store_superblock_group(a, at + to_residual, pair_at + pair_to_residual, i % 2, shift,
                                           residual_sums);
            }
            if (i % 2) pair_at += step;
        }
    }
}
void quantize(Activations& a, int t, int first, int last) {
    a.superblocks ? quantize_groups<false, true>(a, t, 0, first, last)
                  : quantize_groups<false, false>(a, t, 0, first, last);
}
void quantize_residual(Activations& a, int t, int residual_row, int first, int last) {
    a.superblocks ? quantize_groups<true, true>(a, t, residual_row, first, last)
                  : quantize_groups<true, false>(a, t, residual_row, first, last);
}

}  // namespace
}  // namespace outrider
