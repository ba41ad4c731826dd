// The reference that all other kernels must equal bit for bit: plain C++ with the same integers and the same
// order of float operations.
#define OUTRIDER_PORTABLE
#include "kernels/common.h"

namespace outrider {
namespace {

constexpr int kTokenTile = 10, kUsualTokenTile = 8;

// The packed integer of byte `byte` = 4 * row + column of slice s, from a group's lines (matrix.h).
template <WeightType W>
inline int packed(const uint8_t* lines, int s, int byte) {
    if constexpr (kBits<W> == 8) return lines[64 * s + byte];
    if constexpr (kBits<W> == 2) return lines[64 * (s % 2) + byte] >> (2 * (s / 2)) & 3;
    if constexpr (kBits<W> == 3) {
        if (s < 6) return lines[64 * (s % 3) + byte] >> (3 * (s / 3)) & 7;
        int last = 0;
        for (int i = 0; i < 3; i++) last |= lines[64 * i + byte] >> 6 << (2 * i);
        return last >> (3 * (s - 6)) & 7;
    }
    const int low = lines[64 * (s % 4) + byte] >> (s < 4 ? 0 : 4) & 15;
    if constexpr (kBits<W> == 5) return low | (lines[256 + byte] >> s & 1) << 4;
    if constexpr (kBits<W> == 6) return low | (lines[256 + 64 * (s / 4) + byte] >> (2 * (s % 4)) & 3) << 4;
    return low;
}

// The unsigned integer that it stands for.
template <WeightType W>
inline int weight(const uint8_t* lines, int s, int byte) {
    const int q = packed<W>(lines, s, byte);
    if constexpr (kHasCodebook<W>) return info(W).codebook[q] + kOffset<W>;
    return q << kFractionBits<W>;
}

// sum[row] = products of slices [s0, s1) of one group
template <WeightType W>
inline void dot(const uint8_t* lines, const int8_t* a, int s0, int s1, int32_t* sum) {
    for (int r = 0; r < kPanel; r++) sum[r] = 0;
    for (int s = s0; s < s1; s++)
        for (int r = 0; r < kPanel; r++)
            for (int c = 0; c < 4; c++) sum[r] += weight<W>(lines, s, 4 * r + c) * a[4 * s + c];
}

inline V16 to_float(const int32_t* v) {
    V16 r;
    for (int i = 0; i < 16; i++) r.v[i] = float(v[i]);
    return r;
}

inline V16 load_binary16(const uint8_t* p) { return vload(reinterpret_cast<const uint16_t*>(p)); }

// The scales of 16 rows.
template <WeightType W>
inline V16 load_scales(const uint8_t* p) {
    if constexpr (kHasZeroPoint<W>) return vload(reinterpret_cast<const float*>(p));
    if constexpr (!kHasExponents<W>) return load_binary16(p);
    V16 r;
    for (int i = 0; i < 16; i++) r.v[i] = e8m0_half_to_float(p[i]);
    return r;
}

// f plus the contribution of one group of 32 columns, in the order that every kernel follows.
template <WeightType W>
inline V16 add_group(const uint8_t* lines, const uint8_t* scales, int g, const Activations& a, int t, V16 f) {
    const size_t at = a.at(t, g);
    int32_t total[kPanel];
    dot<W>(lines, a.q + kGroup * at, 0, 8, total);
    for (int r = 0; r < kPanel; r++) total[r] -= (kHasZeroPoint<W> ? scales[64 + r] : kOffset<W>)*a.sum[at];
    f = vfma(load_scales<W>(scales), vmul(to_float(total), vset(a.scale[at])), f);
    return kHasMinimum<W> ? vfma(load_binary16(scales + 32), vset(a.scaled_sum[at]), f) : f;
}

// The scale, as an integer, of row r in half h of group i of a superblock, or in all of the group.
template <WeightType W>
inline int32_t superblock_factor(const uint8_t* scales, int i, int h, int r) {
    if constexpr (!kHasFactors<W>) return 1;
    if constexpr (kHasHalfMinimums<W>) return scales[64 + 32 * i + 2 * r + h] & 15;
    if constexpr (kHalfGroups<W>) return int8_t(scales[32 + 32 * i + 2 * r + h]);
    if constexpr (kHasMinimum<W>) return scales[64 + 16 * i + r];
    return int8_t(scales[32 + 32 * (i / 2) + 2 * r + i % 2]);
}

// f plus the contribution of superblock b. Only its own scales are floats.
template <WeightType W>
inline V16 add_superblock(const uint8_t* lines, const uint8_t* scales, int b, const Activations& a, int t,
                          V16 f) {
    constexpr int halves_of_group = kHalfGroups<W> ? 2 : 1, slices = 8 / halves_of_group;
    int32_t total[kPanel] = {0}, minimum[kPanel] = {0}, sum[kPanel];
    for (int i = 0; i < kSuperblockGroups; i++, lines += kGroupBytes<W>) {
        const int g = kSuperblockGroups * b + i;
        const size_t at = a.at(t, g);
        const int shift = a.shifts[2 * at] + kExtraShift<W>;
        for (int h = 0; h < halves_of_group; h++) {
            dot<W>(lines, a.q + kGroup * at, slices * h, slices * h + slices, sum);
            int32_t start;
            if constexpr (kHalfGroups<W>)
                start = half_start<W>(a, at, h, g % 2);
            else
                start = rounded_start<W>(a, at, g % 2);
            for (int r = 0; r < kPanel; r++) {
                const int32_t factor = superblock_factor<W>(scales, i, h, r);
                total[r] += factor * int16_t((sum[r] + start) >> shift);
                if (kHasHalfMinimums<W>)
                    minimum[r] += (scales[64 + 32 * i + 2 * r + h] >> 4) * a.half_sums_q4[2 * at + size_t(h)];
            }
        }
        if (kHasMinimum<W> && !kHasHalfMinimums<W>)
            for (int r = 0; r < kPanel; r++)
                minimum[r] += scales[192 + 16 * i + r] * a.min_sums_q3[2 * a.at(t, g, 2) + size_t(g % 2)];
    }
    const V16 scale = vmul(load_binary16(scales), vset(kProductScale<W>));
    V16 value = vmul(scale, to_float(total));
    if constexpr (kHasMinimum<W>) {
        const V16 minimums =
            vmul(vmul(load_binary16(scales + 32), vset(kMinimumScale<W>)), to_float(minimum));
        value = vfma(scale, to_float(total), vsub(vset(-0.0f), minimums));
    }
    return vfma(vset(a.superblock_scale[a.at(t, kSuperblockGroups * b, kSuperblockGroups)]), value, f);
}

template <WeightType W>
void integer_matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    constexpr int groups = kIsSuperblock<W> ? kSuperblockGroups : 1;
    for (int p = p0; p < p1; p++)
        for (int t = 0; t < a.tokens; t++) {
            const uint8_t* lines = m.q + p * m.q_stride;
            const uint8_t* scales = m.scales + p * m.scale_stride;
            V16 f = vset(0.0f);
            for (int i = 0; i < a.groups() / groups; i++) {
                if constexpr (kIsSuperblock<W>)
                    f = add_superblock<W>(lines, scales, i, a, t, f);
                else
                    f = add_group<W>(lines, scales, i, a, t, f);
                lines += groups * kGroupBytes<W>;
                if ((i + 1) % kShareScales<W> == 0) scales += kScaleBytes<W>;
            }
            store_panel(out, m.rows, p, t, f);
        }
}

}  // namespace

OUTRIDER_KERNEL_TABLE(portable_kernels, "portable")

}  // namespace outrider
