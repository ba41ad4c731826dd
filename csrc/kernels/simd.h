// Sixteen float lanes, with the same results on every instruction set.
//
// Each kernel translation unit defines one of OUTRIDER_AVX512, OUTRIDER_AVX2, OUTRIDER_NEON or
// OUTRIDER_PORTABLE before it includes this. Every operation is one IEEE operation per lane, and the only
// sums across lanes go through reduce_add's fixed tree, so that all give the same bits
// (docs/kernels.md). Everything here has internal linkage: code compiled for one instruction set must never
// be merged by the linker with another's.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(OUTRIDER_AVX512) || defined(OUTRIDER_AVX2)
#include <immintrin.h>
#elif defined(OUTRIDER_NEON)
#include <arm_neon.h>
#endif
#include "memory/half.h"

namespace outrider {
namespace {

// Sums of the 16 bytes that vstore_i8 stores for each of two vectors.
struct Sums {
    int32_t low, high;
};
#if defined(OUTRIDER_AVX512) || defined(OUTRIDER_AVX2)
inline Sums sums_of(__m256i v) {  // of the lower and the upper four lanes
    v = _mm256_add_epi32(v, _mm256_shuffle_epi32(v, 0xb1));
    v = _mm256_add_epi32(v, _mm256_shuffle_epi32(v, 0x4e));
    return {_mm256_cvtsi256_si32(v), _mm256_extract_epi32(v, 4)};
}
#endif

#if defined(OUTRIDER_AVX512)
struct V16 {
    __m512 v;
};
inline V16 vset(float x) { return {_mm512_set1_ps(x)}; }
inline V16 vload(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void vstore(float* p, V16 a) { _mm512_storeu_ps(p, a.v); }
inline V16 vload(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void vstore(uint16_t* p, V16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline V16 vload_bf16(const uint16_t* p) {
    const __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(w, 16))};
}
// E4M3 values divided by kE4M3Factor
inline V16 vload_e4m3(const uint8_t* p) {
    const __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16(int16_t(0xbfff))))};
}
inline V16 vadd(V16 a, V16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline V16 vsub(V16 a, V16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline V16 vmul(V16 a, V16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline V16 vdiv(V16 a, V16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline V16 vfma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline V16 vmax(V16 a, V16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline V16 vmin(V16 a, V16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline V16 vabs(V16 a) { return {_mm512_abs_ps(a.v)}; }
inline V16 vround(V16 a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// a * 2^n for integral n in [-126, 127]
inline V16 vscale2(V16 a, V16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// The first value of each pair of lanes in both; the second.
inline V16 vfirsts(V16 a) { return {_mm512_moveldup_ps(a.v)}; }
inline V16 vseconds(V16 a) { return {_mm512_movehdup_ps(a.v)}; }
inline __m128i to_i8(V16 a) { return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)); }
inline Sums vstore_i8(int8_t* p, V16 low, V16 high) {
    const __m256i q = _mm256_inserti128_si256(_mm256_castsi128_si256(to_i8(low)), to_i8(high), 1);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), q);
    return sums_of(_mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), q));
}
// lanes from `count` on become `fill`
inline V16 vkeep(V16 a, int count, float fill) {
    return {_mm512_mask_mov_ps(_mm512_set1_ps(fill), __mmask16((1u << count) - 1u), a.v)};
}

#elif defined(OUTRIDER_AVX2)
struct V16 {
    __m256 a, b;
};
inline V16 vset(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline V16 vload(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void vstore(float* p, V16 x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
inline V16 vload(const uint16_t* p) {
    const __m128i* s = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(s)), _mm256_cvtph_ps(_mm_loadu_si128(s + 1))};
}
inline void vstore(uint16_t* p, V16 x) {
    __m128i* d = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(d, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(d + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
inline __m256 bf16_half(const uint16_t* p) {
    const __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}
inline V16 vload_bf16(const uint16_t* p) { return {bf16_half(p), bf16_half(p + 8)}; }
inline __m256 e4m3_half(const uint8_t* p) {
    const __m128i w = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(w, 7), _mm_set1_epi16(int16_t(0xbfff))));
}
inline V16 vload_e4m3(const uint8_t* p) { return {e4m3_half(p), e4m3_half(p + 8)}; }
inline V16 vadd(V16 x, V16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline V16 vsub(V16 x, V16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline V16 vmul(V16 x, V16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline V16 vdiv(V16 x, V16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline V16 vfma(V16 x, V16 y, V16 z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline V16 vmax(V16 x, V16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline V16 vmin(V16 x, V16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline __m256 abs_half(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
inline V16 vabs(V16 x) { return {abs_half(x.a), abs_half(x.b)}; }
inline V16 vround(V16 x) {
    return {_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline __m256 scale2_half(__m256 a, __m256 n) {
    const __m256i e = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(a, _mm256_castsi256_ps(e));
}
inline V16 vscale2(V16 a, V16 n) { return {scale2_half(a.a, n.a), scale2_half(a.b, n.b)}; }
inline V16 vfirsts(V16 x) { return {_mm256_moveldup_ps(x.a), _mm256_moveldup_ps(x.b)}; }
inline V16 vseconds(V16 x) { return {_mm256_movehdup_ps(x.a), _mm256_movehdup_ps(x.b)}; }
// (Packing interleaves the operands' 128-bit halves, and the permutation restores the order.)
inline __m256i to_i16(V16 x) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)),
                                    0xd8);
}
inline Sums vstore_i8(int8_t* p, V16 low, V16 high) {
    const __m256i q = _mm256_permute4x64_epi64(_mm256_packs_epi16(to_i16(low), to_i16(high)), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), q);
    return sums_of(_mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1)));
}
inline V16 vkeep(V16 x, int count, float fill) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 keep_a = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane));
    const __m256 keep_b = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count - 8), lane));
    const __m256 f = _mm256_set1_ps(fill);
    return {_mm256_blendv_ps(f, x.a, keep_a), _mm256_blendv_ps(f, x.b, keep_b)};
}

#elif defined(OUTRIDER_NEON)
struct V16 {
    float32x4_t v[4];
};
#define OUTRIDER_QUARTERS(expr)                  \
    V16 r;                                       \
    for (int i = 0; i < 4; i++) r.v[i] = (expr); \
    return r
inline V16 vset(float x) { OUTRIDER_QUARTERS(vdupq_n_f32(x)); }
inline V16 vload(const float* p) { OUTRIDER_QUARTERS(vld1q_f32(p + 4 * i)); }
inline void vstore(float* p, V16 a) {
    for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, a.v[i]);
}
inline V16 vload(const uint16_t* p) {
    OUTRIDER_QUARTERS(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
inline void vstore(uint16_t* p, V16 a) {
    for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i])));
}
inline V16 vload_bf16(const uint16_t* p) {
    OUTRIDER_QUARTERS(vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
}
inline V16 vload_e4m3(const uint8_t* p) {
    uint16_t h[16];
    const int8x16_t v = vld1q_s8(reinterpret_cast<const int8_t*>(p));
    const uint16x8_t mask = vdupq_n_u16(0xbfff);
    vst1q_u16(h, vandq_u16(vreinterpretq_u16_s16(vshlq_n_s16(vmovl_s8(vget_low_s8(v)), 7)), mask));
    vst1q_u16(h + 8, vandq_u16(vreinterpretq_u16_s16(vshlq_n_s16(vmovl_s8(vget_high_s8(v)), 7)), mask));
    return vload(h);
}
inline V16 vadd(V16 a, V16 b) { OUTRIDER_QUARTERS(vaddq_f32(a.v[i], b.v[i])); }
inline V16 vsub(V16 a, V16 b) { OUTRIDER_QUARTERS(vsubq_f32(a.v[i], b.v[i])); }
inline V16 vmul(V16 a, V16 b) { OUTRIDER_QUARTERS(vmulq_f32(a.v[i], b.v[i])); }
inline V16 vdiv(V16 a, V16 b) { OUTRIDER_QUARTERS(vdivq_f32(a.v[i], b.v[i])); }
inline V16 vfma(V16 a, V16 b, V16 c) { OUTRIDER_QUARTERS(vfmaq_f32(c.v[i], a.v[i], b.v[i])); }
// Comparison and selection, because NEON's maximum treats NaN and signed zeros differently from the others.
inline V16 vmax(V16 a, V16 b) { OUTRIDER_QUARTERS(vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i])); }
inline V16 vmin(V16 a, V16 b) { OUTRIDER_QUARTERS(vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i])); }
inline V16 vabs(V16 a) { OUTRIDER_QUARTERS(vabsq_f32(a.v[i])); }
inline V16 vround(V16 a) { OUTRIDER_QUARTERS(vrndnq_f32(a.v[i])); }
inline V16 vscale2(V16 a, V16 n) {
    OUTRIDER_QUARTERS(vmulq_f32(
        a.v[i], vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n.v[i]), vdupq_n_s32(127)), 23))));
}
inline V16 vfirsts(V16 a) { OUTRIDER_QUARTERS(vtrn1q_f32(a.v[i], a.v[i])); }
inline V16 vseconds(V16 a) { OUTRIDER_QUARTERS(vtrn2q_f32(a.v[i], a.v[i])); }
inline int16x4_t to_i16(float32x4_t a) {  // NaN becomes the lowest value, as on x86
    return vqmovn_s32(vbslq_s32(vceqq_f32(a, a), vcvtnq_s32_f32(a), vdupq_n_s32(INT32_MIN)));
}
inline int32_t vstore_i8(int8_t* p, V16 a) {
    int16x4_t w[4];
    for (int i = 0; i < 4; i++) w[i] = to_i16(a.v[i]);
    const int8x16_t q =
        vcombine_s8(vqmovn_s16(vcombine_s16(w[0], w[1])), vqmovn_s16(vcombine_s16(w[2], w[3])));
    vst1q_s8(p, q);
    return vaddlvq_s8(q);
}
inline Sums vstore_i8(int8_t* p, V16 low, V16 high) { return {vstore_i8(p, low), vstore_i8(p + 16, high)}; }
inline V16 vkeep(V16 a, int count, float fill) {
    static const int32_t lane[4] = {0, 1, 2, 3};
    OUTRIDER_QUARTERS(
        vbslq_f32(vcltq_s32(vld1q_s32(lane), vdupq_n_s32(count - 4 * i)), a.v[i], vdupq_n_f32(fill)));
}
#undef OUTRIDER_QUARTERS

#else
struct V16 {
    float v[16];
};
#define OUTRIDER_LANES(expr)                      \
    V16 r;                                        \
    for (int i = 0; i < 16; i++) r.v[i] = (expr); \
    return r
inline V16 vset(float x) { OUTRIDER_LANES(x); }
inline V16 vload(const float* p) { OUTRIDER_LANES(p[i]); }
inline void vstore(float* p, const V16& a) { std::memcpy(p, a.v, sizeof a.v); }
inline V16 vload(const uint16_t* p) { OUTRIDER_LANES(half_to_float(p[i])); }
inline void vstore(uint16_t* p, const V16& a) {
    for (int i = 0; i < 16; i++) p[i] = float_to_half(a.v[i]);
}
inline V16 vload_bf16(const uint16_t* p) { OUTRIDER_LANES(bfloat_to_float(p[i])); }
inline V16 vload_e4m3(const uint8_t* p) { OUTRIDER_LANES(half_to_float(e4m3_to_half(p[i]))); }
inline V16 vadd(const V16& a, const V16& b) { OUTRIDER_LANES(a.v[i] + b.v[i]); }
inline V16 vsub(const V16& a, const V16& b) { OUTRIDER_LANES(a.v[i] - b.v[i]); }
inline V16 vmul(const V16& a, const V16& b) { OUTRIDER_LANES(a.v[i] * b.v[i]); }
inline V16 vdiv(const V16& a, const V16& b) { OUTRIDER_LANES(a.v[i] / b.v[i]); }
inline V16 vfma(const V16& a, const V16& b, const V16& c) {
    OUTRIDER_LANES(__builtin_fmaf(a.v[i], b.v[i], c.v[i]));
}
inline V16 vmax(const V16& a, const V16& b) { OUTRIDER_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline V16 vmin(const V16& a, const V16& b) { OUTRIDER_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline V16 vabs(const V16& a) { OUTRIDER_LANES(__builtin_fabsf(a.v[i])); }
inline V16 vround(const V16& a) { OUTRIDER_LANES(__builtin_rintf(a.v[i])); }
inline V16 vscale2(const V16& a, const V16& n) {
    OUTRIDER_LANES(a.v[i] * bits_to_float(uint32_t(int32_t(n.v[i]) + 127) << 23));
}
inline V16 vfirsts(const V16& a) { OUTRIDER_LANES(a.v[i & ~1]); }
inline V16 vseconds(const V16& a) { OUTRIDER_LANES(a.v[i | 1]); }
inline int32_t vstore_i8(int8_t* p, const V16& a) {
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) {
        const float x = a.v[i];  // saturates, and NaN becomes the lowest value, as on x86
        p[i] = x >= 127.0f ? int8_t(127) : x > -128.0f ? int8_t(__builtin_rintf(x)) : int8_t(-128);
        sum += p[i];
    }
    return sum;
}
inline Sums vstore_i8(int8_t* p, const V16& low, const V16& high) {
    return {vstore_i8(p, low), vstore_i8(p + 16, high)};
}
inline V16 vkeep(const V16& a, int count, float fill) { OUTRIDER_LANES(i < count ? a.v[i] : fill); }
#undef OUTRIDER_LANES
#endif

inline int imin(int a, int b) { return a < b ? a : b; }
inline int imax(int a, int b) { return a > b ? a : b; }

// Sums and maxima across lanes, by one fixed tree: lanes 8 apart, then 4, 2, 1.
#if defined(OUTRIDER_AVX512) || defined(OUTRIDER_AVX2)
#if defined(OUTRIDER_AVX512)
inline __m256 low_half(V16 a) { return _mm512_castps512_ps256(a.v); }
inline __m256 high_half(V16 a) { return _mm512_extractf32x8_ps(a.v, 1); }
#else
inline __m256 low_half(V16 a) { return a.a; }
inline __m256 high_half(V16 a) { return a.b; }
#endif
inline float reduce_add(V16 a) {
    const __m256 eight = _mm256_add_ps(low_half(a), high_half(a));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_max(V16 a) {
    const __m256 eight = _mm256_max_ps(low_half(a), high_half(a));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#else
inline float reduce_add(V16 a) {
    float t[16];
    vstore(t, a);
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; i++) t[i] = t[i] + t[i + width];
    return t[0];
}
inline float reduce_max(V16 a) {
    float t[16];
    vstore(t, a);
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; i++) t[i] = t[i] > t[i + width] ? t[i] : t[i + width];
    return t[0];
}
#endif

// e^x with a relative error below 2e-7: Cody-Waite reduction by ln 2 and a polynomial of degree 6, by
// Horner's rule with fused multiplications only. Arguments are clamped to [-87, 88], so that no result is
// subnormal. Several at a time hide the latency of one.
template <int N>
inline void vexp_each(V16 (&x)[N]) {
    constexpr float terms[] = {8.333333333e-3f, 4.166666666e-2f, 1.666666667e-1f, 0.5f, 1.0f, 1.0f};
    V16 n[N], p[N];
    for (int i = 0; i < N; i++) x[i] = vmin(vmax(x[i], vset(-87.0f)), vset(88.0f));
    for (int i = 0; i < N; i++) n[i] = vround(vmul(x[i], vset(1.44269504088896341f)));
    for (int i = 0; i < N; i++) x[i] = vfma(n[i], vset(-0.693145751953125f), x[i]);
    for (int i = 0; i < N; i++) x[i] = vfma(n[i], vset(-1.428606820309417e-06f), x[i]);
    for (int i = 0; i < N; i++) p[i] = vset(1.388888888e-3f);
    for (const float term : terms)
        for (int i = 0; i < N; i++) p[i] = vfma(p[i], x[i], vset(term));
    for (int i = 0; i < N; i++) x[i] = vscale2(p[i], n[i]);
}
inline V16 vexp(V16 x) {
    V16 one[1] = {x};
    vexp_each(one);
    return one[0];
}

// tanh x = 1 - 2 / (e^2x + 1): within 2e-7 of it.
inline V16 vtanh(V16 x) {
    const V16 e = vexp(vadd(x, x));
    return vsub(vset(1.0f), vdiv(vset(2.0f), vadd(e, vset(1.0f))));
}

}  // namespace
}  // namespace outrider
