// NEON with the dot products of ARMv8.2: one sdot multiplies 4 rows by 4 columns and adds into 32 bits. A panel is
// four vectors high; the activations of four slices lie in one register, and sdot picks its lane.
#include "kernels.h"
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#define OUTRIDER_NEON
#include "kernels_common.h"

namespace outrider {
namespace {

template <Kind K>
constexpr bool kFactored = K == Kind::Q4_K || K == Kind::Q5_K;  // integer scales and minimums

inline float32x4_t halves(const uint8_t* p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
inline int8x16_t merge(uint8x16_t low, uint8x16_t high, uint8x16_t mask) {
    return vreinterpretq_s8_u8(vorrq_u8(low, vandq_u8(high, mask)));
}

// The 8 slices of one group for rows 4 * quarter and the three after it. All values fit a signed byte.
template <Kind K>
inline void unpack(const uint8_t* lines, int quarter, int8x16_t* w) {
    const uint8_t* p = lines + 16 * quarter;
    if constexpr (K == Kind::Q8_0) {
        for (int s = 0; s < 8; s++) w[s] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p + 64 * s), vdupq_n_u8(0x80)));
        return;
    }
    if constexpr (K == Kind::Q3_0) {
        const uint8x16_t three = vdupq_n_u8(7), l[3] = {vld1q_u8(p), vld1q_u8(p + 64), vld1q_u8(p + 128)};
        const auto bits = [&](uint8x16_t v) { return vreinterpretq_s8_u8(vandq_u8(v, three)); };
        for (int i = 0; i < 3; i++) {
            w[i] = bits(l[i]);
            w[i + 3] = bits(vshrq_n_u8(l[i], 3));
        }
        const uint8x16_t rest =
            vorrq_u8(vorrq_u8(vshrq_n_u8(l[0], 6), vandq_u8(vshrq_n_u8(l[1], 4), vdupq_n_u8(12))),
                     vandq_u8(vshrq_n_u8(l[2], 2), vdupq_n_u8(48)));
        w[6] = bits(rest);
        w[7] = vreinterpretq_s8_u8(vshrq_n_u8(rest, 3));
        return;
    }
    uint8x16_t low[8];
    for (int i = 0; i < 4; i++) {
        const uint8x16_t l = vld1q_u8(p + 64 * i);
        low[i] = vandq_u8(l, vdupq_n_u8(15));
        low[i + 4] = vshrq_n_u8(l, 4);
    }
    if constexpr (kGroupBytes<K> == 256)
        for (int s = 0; s < 8; s++) w[s] = vreinterpretq_s8_u8(low[s]);
    if constexpr (kGroupBytes<K> == 320) {
        const uint8x16_t h = vld1q_u8(p + 256), bit = vdupq_n_u8(16);
        w[0] = merge(low[0], vshlq_n_u8(h, 4), bit);
        w[1] = merge(low[1], vshlq_n_u8(h, 3), bit);
        w[2] = merge(low[2], vshlq_n_u8(h, 2), bit);
        w[3] = merge(low[3], vshlq_n_u8(h, 1), bit);
        w[4] = merge(low[4], h, bit);
        w[5] = merge(low[5], vshrq_n_u8(h, 1), bit);
        w[6] = merge(low[6], vshrq_n_u8(h, 2), bit);
        w[7] = merge(low[7], vshrq_n_u8(h, 3), bit);
    }
    if constexpr (K == Kind::Q6_K) {
        const uint8x16_t bits = vdupq_n_u8(48);
        for (int h = 0; h < 2; h++) {
            const uint8x16_t l = vld1q_u8(p + 256 + 64 * h);
            w[4 * h + 0] = merge(low[4 * h + 0], vshlq_n_u8(l, 4), bits);
            w[4 * h + 1] = merge(low[4 * h + 1], vshlq_n_u8(l, 2), bits);
            w[4 * h + 2] = merge(low[4 * h + 2], l, bits);
            w[4 * h + 3] = merge(low[4 * h + 3], vshrq_n_u8(l, 2), bits);
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

// Four bytes, one a row, as floats.
inline float32x4_t bytes_to_float(const uint8_t* p) {
    uint32_t four;
    std::memcpy(&four, p, 4);
    const uint16x8_t wide = vmovl_u8(vcreate_u8(four));
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide)));
}

// One group of 32 columns and a quarter of a panel for NT tokens; of Q6_K what the superblock's scale is still to be
// multiplied with. Every integer here stays below 2^24, so that
// floats hold it exactly and it does not matter which build adds in integers and which in floats.
template <Kind K, int NT>
inline __attribute__((always_inline)) void add_group(const uint8_t* q, const uint8_t* s, int quarter, int g,
                                                     const Activations& a, size_t at, float32x4_t* f) {
    constexpr int offset = K == Kind::Q8_0 ? 0 : kOffset<K>;  // Q8_0 is made signed
    const int8_t* x = a.q + kGroup * at;
    int8x16_t w[8];
    unpack<K>(q, quarter, w);
    float32x4_t scale = halves(s + 8 * quarter), minimum = scale;
    int32x4_t first = vdupq_n_s32(1), second = first;
    if constexpr (kMinimum<K>) minimum = halves(s + 32 + 8 * quarter);
    if constexpr (kFactored<K>) {
        scale = vmulq_f32(scale, bytes_to_float(s + 64 + 16 * (g % 8) + 4 * quarter));
        minimum = vmulq_f32(halves(s + 32 + 8 * quarter), bytes_to_float(s + 192 + 16 * (g % 8) + 4 * quarter));
    }
    if constexpr (K == Kind::Q6_K) {
        const int8x8_t pairs = vreinterpret_s8_u8(vld1_u8(s + 32 + 32 * (g % 8) + 8 * quarter));
        const int32x4_t both = vreinterpretq_s32_s16(vmovl_s8(pairs));  // a row's two factors in one lane
        first = vshrq_n_s32(vshlq_n_s32(both, 16), 16);
        second = vshrq_n_s32(both, 16);
    }
#pragma GCC unroll 8
    for (int t = 0; t < NT; t++) {
        const int8_t* xt = x + kGroup * t;
        const size_t i = at + t;
        int32x4_t sum;
        if constexpr (K == Kind::Q6_K) {
            const int32x4_t u = dot4(vld1q_dup_s32(a.centre + 2 * i), w, xt);
            const int32x4_t v = dot4(vld1q_dup_s32(a.centre + 2 * i + 1), w + 4, xt + 16);
            sum = vmlaq_s32(vmulq_s32(u, first), v, second);
        } else {
            const int32_t start = offset == 0 ? 0 : -offset * a.sum[i];
            sum = dot4(dot4(vdupq_n_s32(start), w, xt), w + 4, xt + 16);
        }
        float32x4_t& out = f[4 * t + quarter];
        const float32x4_t total = vcvtq_f32_s32(sum);
        if constexpr (K == Kind::Q6_K) out = vfmaq_n_f32(out, total, a.scale[i]);
        else out = vfmaq_f32(out, scale, vmulq_n_f32(total, a.scale[i]));
        if constexpr (kFactored<K>) out = vfmsq_n_f32(out, minimum, a.scaled[i]);
        if constexpr (kMinimum<K>) out = vfmaq_n_f32(out, minimum, a.scaled[i]);
    }
}

template <Kind K, int NT>
__attribute__((noinline)) void panel_tile(const Matrix& m, const Activations& a, int p, int t0, const MatmulOut& out) {
    const uint8_t* q = m.q + size_t(p) * m.q_stride;
    const uint8_t* s = m.scales + size_t(p) * m.scale_stride;
    constexpr bool six = K == Kind::Q6_K;
    float32x4_t f[4 * NT], sums[4 * NT];
#pragma GCC unroll 32
    for (int i = 0; i < 4 * NT; i++) f[i] = sums[i] = vdupq_n_f32(0.0f);
    size_t at = a.at(t0, 0);
    for (int g = 0; g < a.groups(); g++, at += size_t(a.pitch)) {
#pragma GCC unroll 4  // so that f stays in registers
        for (int quarter = 0; quarter < 4; quarter++) add_group<K, NT>(q, s, quarter, g, a, at, six ? sums : f);
        q += kGroupBytes<K>;
        if (six && g % 8 == 7)
#pragma GCC unroll 32
            for (int i = 0; i < 4 * NT; i++) {
                f[i] = vfmaq_f32(f[i], halves(s + 8 * (i % 4)), sums[i]);
                sums[i] = vdupq_n_f32(0.0f);
            }
        if (!kSuper<K> || g % 8 == 7) s += kScaleBytes<K>;
    }
#pragma GCC unroll 8
    for (int t = 0; t < NT; t++)
        store_panel(out, m.rows, p, t0 + t, V16{f[4 * t], f[4 * t + 1], f[4 * t + 2], f[4 * t + 3]});
}

template <Kind K>
void integer_matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    constexpr int widest = 4;  // 16 registers of sums, 8 of weights
    for (int p = p0; p < p1; p++)
        each_tile<widest>(a, [&](int t, auto width) { panel_tile<K, decltype(width)::value>(m, a, p, t, out); });
}

}  // namespace

OUTRIDER_KERNEL_TABLE(neon_kernels, "neon")

}  // namespace outrider
#else
namespace outrider {
const Kernels* neon_kernels() { return nullptr; }
}  // namespace outrider
#endif
