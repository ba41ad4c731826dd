// NEON with the dot products of ARMv8.2: one sdot multiplies 4 rows by 4 columns and adds into 32 bits. A
// panel is four vectors high. One register holds the activations of four slices, and sdot selects a lane of
// it.
#include "kernels/kernels.h"
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#define OUTRIDER_NEON
#include "kernels/common.h"

namespace outrider {
namespace {

constexpr int kTokenTile = 10, kUsualTokenTile = 8;
constexpr int kRegisterTile = 4;  // tokens: 16 registers of sums, 8 of weights

inline float32x4_t load_binary16(const uint8_t* p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
inline int8x16_t or_masked(uint8x16_t low, uint8x16_t high, uint8x16_t mask) {
    return vreinterpretq_s8_u8(vorrq_u8(low, vandq_u8(high, mask)));
}

// Four unsigned bytes, one for each row.
inline int16x4_t bytes(const uint8_t* p) {
    uint32_t four;
    std::memcpy(&four, p, 4);
    return vreinterpret_s16_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
}

// The scales of a quarter of a panel.
template <WeightType W>
inline float32x4_t load_scales(const uint8_t* scales, int quarter) {
    if constexpr (kHasZeroPoint<W>) return vreinterpretq_f32_u8(vld1q_u8(scales + 16 * quarter));
    if constexpr (!kHasExponents<W>) return load_binary16(scales + 8 * quarter);
    const uint32x4_t e = vreinterpretq_u32_s32(vmovl_s16(bytes(scales + 4 * quarter)));
    const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
    const uint32x4_t subnormal = vshlq_u32(vdupq_n_u32(kE8M0HalfSubnormal), vreinterpretq_s32_u32(e));
    return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), subnormal, normal));
}

// Whether weights are unpacked as signed values, without an offset. All others fit a signed byte, too.
template <WeightType W>
constexpr bool kSigned = kBits<W> == 8 || (kHasCodebook<W> && !kHalfGroups<W>);

// The 8 slices of one group for rows 4 * quarter and the three after it.
template <WeightType W>
inline void unpack(const uint8_t* lines, int quarter, int8x16_t* w) {
    const uint8_t* p = lines + 16 * quarter;
    if constexpr (kBits<W> == 8) {
        for (int s = 0; s < 8; s++)
            w[s] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p + 64 * s), vdupq_n_u8(0x80)));
        return;
    }
    if constexpr (kBits<W> == 2) {
        static_assert(kFractionBits<W> == 3);
        const uint8x16_t mask = vdupq_n_u8(3 << 3);
        const auto bits = [&](uint8x16_t v) { return vreinterpretq_s8_u8(vandq_u8(v, mask)); };
        for (int i = 0; i < 2; i++) {
            const uint8x16_t l = vld1q_u8(p + 64 * i);
            w[i] = bits(vshlq_n_u8(l, 3)), w[i + 2] = bits(vshlq_n_u8(l, 1));
            w[i + 4] = bits(vshrq_n_u8(l, 1)), w[i + 6] = bits(vshrq_n_u8(l, 3));
        }
        return;
    }
    if constexpr (kBits<W> == 3) {
        const uint8x16_t low_bits = vdupq_n_u8(7), l[3] = {vld1q_u8(p), vld1q_u8(p + 64), vld1q_u8(p + 128)};
        const auto bits = [&](uint8x16_t v) { return vreinterpretq_s8_u8(vandq_u8(v, low_bits)); };
        for (int i = 0; i < 3; i++) {
            w[i] = bits(l[i]);
            w[i + 3] = bits(vshrq_n_u8(l[i], 3));
        }
        const uint8x16_t last =
            vorrq_u8(vorrq_u8(vshrq_n_u8(l[0], 6), vandq_u8(vshrq_n_u8(l[1], 4), vdupq_n_u8(12))),
                     vandq_u8(vshrq_n_u8(l[2], 2), vdupq_n_u8(48)));
        w[6] = bits(last);
        w[7] = vreinterpretq_s8_u8(vshrq_n_u8(last, 3));
        if constexpr (kHasCodebook<W>) {
            constexpr int offset = kSigned<W> ? 0 : kOffset<W>;
            const uint8x16_t table = vld1q_u8(kByteTable<W, offset>.values);
            for (int s = 0; s < 8; s++)
                w[s] = vreinterpretq_s8_u8(vqtbl1q_u8(table, vreinterpretq_u8_s8(w[s])));
        } else {
            for (int i = 0; i < 8 && kFractionBits<W>; i++) w[i] = vshlq_n_s8(w[i], kFractionBits<W>);
        }
        return;
    }
    uint8x16_t low[8];
    for (int i = 0; i < 4; i++) {
        const uint8x16_t l = vld1q_u8(p + 64 * i);
        low[i] = vandq_u8(l, vdupq_n_u8(15));
        low[i + 4] = vshrq_n_u8(l, 4);
    }
    if constexpr (kHasCodebook<W>) {
        const uint8x16_t table = vld1q_u8(kByteTable<W, 0>.values);
        for (int s = 0; s < 8; s++) w[s] = vreinterpretq_s8_u8(vqtbl1q_u8(table, low[s]));
    } else if constexpr (kBits<W> == 4)
        for (int s = 0; s < 8; s++) w[s] = vreinterpretq_s8_u8(low[s]);
    if constexpr (kBits<W> == 5) {
        const uint8x16_t h = vld1q_u8(p + 256), bit = vdupq_n_u8(16);
        w[0] = or_masked(low[0], vshlq_n_u8(h, 4), bit);
        w[1] = or_masked(low[1], vshlq_n_u8(h, 3), bit);
        w[2] = or_masked(low[2], vshlq_n_u8(h, 2), bit);
        w[3] = or_masked(low[3], vshlq_n_u8(h, 1), bit);
        w[4] = or_masked(low[4], h, bit);
        w[5] = or_masked(low[5], vshrq_n_u8(h, 1), bit);
        w[6] = or_masked(low[6], vshrq_n_u8(h, 2), bit);
        w[7] = or_masked(low[7], vshrq_n_u8(h, 3), bit);
    }
    if constexpr (kBits<W> == 6) {
        const uint8x16_t bits = vdupq_n_u8(48);
        for (int h = 0; h < 2; h++) {
            const uint8x16_t l = vld1q_u8(p + 256 + 64 * h);
            w[4 * h + 0] = or_masked(low[4 * h + 0], vshlq_n_u8(l, 4), bits);
            w[4 * h + 1] = or_masked(low[4 * h + 1], vshlq_n_u8(l, 2), bits);
            w[4 * h + 2] = or_masked(low[4 * h + 2], l, bits);
            w[4 * h + 3] = or_masked(low[4 * h + 3], vshrq_n_u8(l, 2), bits);
        }
    }
}

// sum + products of four slices with 16 activations
inline int32x4_t dot4(int32x4_t sum, const int8x16_t* w, const int8_t* a) {
    const int8x16_t x = vld1q_s8(a);
    sum = vdotq_laneq_s32(sum, w[0], x, 0);
    sum = vdotq_laneq_s32(sum, w[1], x, 1);
    sum = vdotq_laneq_s32(sum, w[2], x, 2);
    return vdotq_laneq_s32(sum, w[3], x, 3);
}

// The zero points of a quarter of a panel, of weights as `unpack` gives them.
template <WeightType W>
inline float32x4_t load_zeros(const uint8_t* scales, int quarter) {
    const int32x4_t zeros = vmovl_s16(bytes(scales + 64 + 4 * quarter));
    return vcvtq_f32_s32(vsubq_s32(zeros, vdupq_n_s32(kSigned<W> ? 128 : 0)));
}

// Adds one group of 32 columns and a quarter of a panel to f. Every integer stays below 2^24, so that a float
// holds it exactly, and kernels may add in integers or in floats with the same result.
template <WeightType W, int NT>
inline __attribute__((always_inline)) void add_group(const uint8_t* q, const uint8_t* s, int quarter,
                                                     const Activations& a, size_t at, float32x4_t* f) {
    constexpr int offset = kSigned<W> ? 0 : kOffset<W>;
    int8x16_t w[8];
    unpack<W>(q, quarter, w);
    const float32x4_t scale = load_scales<W>(s, quarter);
#pragma GCC unroll 8
    for (int t = 0; t < NT; t++) {
        const size_t i = at + t;
        const int8_t* x = a.q + kGroup * i;
        const int32_t start = offset == 0 ? 0 : -offset * a.sum[i];
        float32x4_t total = vcvtq_f32_s32(dot4(dot4(vdupq_n_s32(start), w, x), w + 4, x + 16));
        if constexpr (kHasZeroPoint<W>)
            total = vfmsq_n_f32(total, load_zeros<W>(s, quarter), float(a.sum[i]));
        float32x4_t& out = f[4 * t + quarter];
        out = vfmaq_f32(out, scale, vmulq_n_f32(total, a.scale[i]));
        if constexpr (kHasMinimum<W>)
            out = vfmaq_n_f32(out, load_binary16(s + 32 + 8 * quarter), a.scaled_sum[i]);
    }
}

// The low 16 bits of sum >> shift.
inline int16x4_t narrow(int32x4_t sum, int32_t shift) {
    return vmovn_s32(vshlq_s32(sum, vdupq_n_s32(-shift)));
}

// Adds the integers of a superblock's group i and a quarter of a panel to `total`.
template <WeightType W, int NT>
inline __attribute__((always_inline)) void add_superblock_group(const uint8_t* q, const uint8_t* s,
                                                                int quarter, int i, const Activations& a,
                                                                size_t at, int32x4_t* total) {
    int8x16_t w[8];
    unpack<W>(q, quarter, w);
    int16x4_t scale, second;
    if constexpr (!kHasFactors<W>) {
        scale = second = vdup_n_s16(1);
    } else if constexpr (kHalfGroups<W>) {
        const uint8x8_t pairs = vld1_u8(s + (kHasMinimum<W> ? 64 : 32) + 32 * i + 8 * quarter);
        const int16x8_t both =  // a row's two scales are neighbours
            kHasMinimum<W> ? vmovl_s8(vreinterpret_s8_u8(vand_u8(pairs, vdup_n_u8(15))))
                           : vmovl_s8(vreinterpret_s8_u8(pairs));
        scale = vget_low_s16(vuzp1q_s16(both, both));
        second = vget_low_s16(vuzp2q_s16(both, both));
    } else if constexpr (kHasMinimum<W>) {
        scale = second = bytes(s + 64 + 16 * i + 4 * quarter);
    } else {
        const int16x8_t both =  // a row's scales of two groups are neighbours
            vmovl_s8(vreinterpret_s8_u8(vld1_u8(s + 32 + 32 * (i / 2) + 8 * quarter)));
        scale = second = vget_low_s16(i % 2 ? vuzp2q_s16(both, both) : vuzp1q_s16(both, both));
    }
#pragma GCC unroll 8
    for (int t = 0; t < NT; t++) {
        const size_t cell = at + t;
        const int8_t* x = a.q + kGroup * cell;
        const int32_t shift = a.shifts[2 * cell] + kExtraShift<W>;
        int32x4_t& out = total[4 * t + quarter];
        if constexpr (kHalfGroups<W>) {
            out = vmlal_s16(out, narrow(dot4(vdupq_n_s32(half_start<W>(a, cell, 0, i % 2)), w, x), shift),
                            scale);
            out = vmlal_s16(out,
                            narrow(dot4(vdupq_n_s32(half_start<W>(a, cell, 1, i % 2)), w + 4, x + 16), shift),
                            second);
        } else {
            constexpr int offset = kSigned<W> ? 0 : kOffset<W>;
            const int32x4_t start = vdupq_n_s32(rounded_start<W, offset>(a, cell, i % 2));
            out = vmlal_s16(out, narrow(dot4(dot4(start, w, x), w + 4, x + 16), shift), scale);
        }
    }
}

// Adds one superblock to f. Only its own scales are floats.
template <WeightType W, int NT>
inline __attribute__((always_inline)) void add_superblock(const uint8_t* q, const uint8_t* s,
                                                          const Activations& a, const ActivationIndex& index,
                                                          float32x4_t* f) {
    const size_t next_group = size_t(a.tile_tokens);
    size_t at = index.group;
    int32x4_t total[4 * NT];
#pragma GCC unroll 32
    for (int i = 0; i < 4 * NT; i++) total[i] = vdupq_n_s32(0);
    for (int i = 0; i < kSuperblockGroups; i++, q += kGroupBytes<W>, at += next_group)
#pragma GCC unroll 4  // so that `total` stays in registers
        for (int quarter = 0; quarter < 4; quarter++)
            add_superblock_group<W, NT>(q, s, quarter, i, a, at, total);
    for (int quarter = 0; quarter < 4; quarter++) {
        const float32x4_t scale = vmulq_n_f32(load_binary16(s + 8 * quarter), kProductScale<W>);
        for (int t = 0; t < NT; t++) {
            const float32x4_t products = vcvtq_f32_s32(total[4 * t + quarter]);
            float32x4_t value = vmulq_f32(scale, products);
            if constexpr (kHasMinimum<W>) {
                int32x4_t minimum_sum = vdupq_n_s32(0);
                for (size_t i = 0; i < kSuperblockGroups; i++) {
                    if constexpr (kHasHalfMinimums<W>) {
                        const uint8x8_t both = vshr_n_u8(vld1_u8(s + 64 + 32 * i + 8 * size_t(quarter)), 4);
                        const int16x8_t wide = vreinterpretq_s16_u16(vmovl_u8(both));
                        const int16_t* sums = a.half_sums_q4 + 2 * (index.group + i * next_group + size_t(t));
                        minimum_sum = vmlal_n_s16(minimum_sum, vget_low_s16(vuzp1q_s16(wide, wide)), sums[0]);
                        minimum_sum = vmlal_n_s16(minimum_sum, vget_low_s16(vuzp2q_s16(wide, wide)), sums[1]);
                    } else {
                        const int16_t min_sum =
                            a.min_sums_q3[2 * (index.pair + i / 2 * next_group + size_t(t)) + i % 2];
                        minimum_sum =
                            vmlal_n_s16(minimum_sum, bytes(s + 192 + 16 * i + 4 * size_t(quarter)), min_sum);
                    }
                }
                const float32x4_t minimum =
                    vmulq_n_f32(load_binary16(s + 32 + 8 * quarter), kMinimumScale<W>);
                value = vfmaq_f32(vnegq_f32(vmulq_f32(minimum, vcvtq_f32_s32(minimum_sum))), scale, products);
            }
            float32x4_t& out = f[4 * t + quarter];
            out = vfmaq_n_f32(out, value, a.superblock_scale[index.superblock + size_t(t)]);
        }
    }
}

template <WeightType W, int NT>
__attribute__((noinline)) void panel_tile(const Matrix& m, const Activations& a, int p, int t0,
                                          const MatmulOut& out) {
    float32x4_t f[4 * NT];
#pragma GCC unroll 32
    for (int i = 0; i < 4 * NT; i++) f[i] = vdupq_n_f32(0.0f);
    for_groups<W>(m, a, p, t0,
                  [&](const uint8_t* q, const uint8_t* s, const ActivationIndex& index)
                      __attribute__((always_inline)) {
                          if constexpr (kIsSuperblock<W>) {
                              add_superblock<W, NT>(q, s, a, index, f);
                          } else {
#pragma GCC unroll 4  // so that f stays in registers
                              for (int quarter = 0; quarter < 4; quarter++)
                                  add_group<W, NT>(q, s, quarter, a, index.group, f);
                          }
                      });
#pragma GCC unroll 8
    for (int t = 0; t < NT; t++)
        store_panel(out, m.rows, p, t0 + t, V16{f[4 * t], f[4 * t + 1], f[4 * t + 2], f[4 * t + 3]});
}

template <WeightType W>
void integer_matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    for (int p = p0; p < p1; p++)
        for_register_tiles<kRegisterTile>(
            a, [&](int t, auto width) { panel_tile<W, decltype(width)::value>(m, a, p, t, out); });
}

}  // namespace

OUTRIDER_KERNEL_TABLE(neon_kernels, "neon")

}  // namespace outrider
#else
namespace outrider {
const Kernels* neon_kernels() { return nullptr; }
}  // namespace outrider
#endif
