// Sixteen float lanes, the same on every instruction set.
//
// Each kernel translation unit defines one of OUTRIDER_AVX512, OUTRIDER_AVX2 or OUTRIDER_PORTABLE before
// it includes this. Every operation is one IEEE operation per lane, and the only sums across lanes
// go through reduce_add's fixed tree, so that all builds give the same bits (docs/kernels.md).
// Everything here has internal linkage: code compiled for one instruction set must never be merged by
// the linker with another's.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(OUTRIDER_AVX512) || defined(OUTRIDER_AVX2)
#include <immintrin.h>
#endif
#include "half.h"

namespace outrider {
namespace {

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
inline V16 vadd(V16 a, V16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline V16 vsub(V16 a, V16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline V16 vmul(V16 a, V16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline V16 vdiv(V16 a, V16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline V16 vfma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline V16 vmax(V16 a, V16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline V16 vmin(V16 a, V16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline V16 vabs(V16 a) { return {_mm512_abs_ps(a.v)}; }
inline V16 vround(V16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a * 2^n for integral n in [-126, 127]
inline V16 vscale2(V16 a, V16 n) {
    const __m512i e = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23);
    return {_mm512_mul_ps(a.v, _mm512_castsi512_ps(e))};
}
inline void vstore_i8(int8_t* p, V16 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
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
inline V16 vadd(V16 x, V16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline V16 vsub(V16 x, V16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline V16 vmul(V16 x, V16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline V16 vdiv(V16 x, V16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline V16 vfma(V16 x, V16 y, V16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
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
inline void vstore_i8(int8_t* p, V16 x) {
    const __m256i w = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    const __m256i o = _mm256_permute4x64_epi64(w, 0xd8);
    const __m128i b = _mm_packs_epi16(_mm256_castsi256_si128(o), _mm256_extracti128_si256(o, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), b);
}
inline V16 vkeep(V16 x, int count, float fill) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 keep_a = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane));
    const __m256 keep_b = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count - 8), lane));
    const __m256 f = _mm256_set1_ps(fill);
    return {_mm256_blendv_ps(f, x.a, keep_a), _mm256_blendv_ps(f, x.b, keep_b)};
}

#else
struct V16 {
    float v[16];
};
#define OUTRIDER_LANES(expr)           \
    V16 r;                             \
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
inline V16 vadd(const V16& a, const V16& b) { OUTRIDER_LANES(a.v[i] + b.v[i]); }
inline V16 vsub(const V16& a, const V16& b) { OUTRIDER_LANES(a.v[i] - b.v[i]); }
inline V16 vmul(const V16& a, const V16& b) { OUTRIDER_LANES(a.v[i] * b.v[i]); }
inline V16 vdiv(const V16& a, const V16& b) { OUTRIDER_LANES(a.v[i] / b.v[i]); }
inline V16 vfma(const V16& a, const V16& b, const V16& c) { OUTRIDER_LANES(__builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
inline V16 vmax(const V16& a, const V16& b) { OUTRIDER_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline V16 vmin(const V16& a, const V16& b) { OUTRIDER_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline V16 vabs(const V16& a) { OUTRIDER_LANES(__builtin_fabsf(a.v[i])); }
inline V16 vround(const V16& a) { OUTRIDER_LANES(__builtin_rintf(a.v[i])); }
inline V16 vscale2(const V16& a, const V16& n) {
    OUTRIDER_LANES(a.v[i] * bits_to_float(uint32_t(int32_t(n.v[i]) + 127) << 23));
}
inline void vstore_i8(int8_t* p, const V16& a) {
    for (int i = 0; i < 16; i++) {
        const float x = a.v[i];  // saturates, and turns NaN into the lowest value as the hardware does
        p[i] = x >= 127.0f ? int8_t(127) : x > -128.0f ? int8_t(__builtin_rintf(x)) : int8_t(-128);
    }
}
inline V16 vkeep(const V16& a, int count, float fill) { OUTRIDER_LANES(i < count ? a.v[i] : fill); }
#undef OUTRIDER_LANES
#endif

// The fixed tree: lanes 8 apart, then 4, 2, 1.
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
    float m = t[0];
    for (int i = 1; i < 16; i++) m = t[i] > m ? t[i] : m;
    return m;
}

// e^x, relative error under 2e-7: Cody-Waite reduction by ln 2 and a degree-6 polynomial, by Horner's
// rule with fused steps only. Arguments are clamped to [-87, 88], so that nothing is subnormal.
inline V16 vexp(V16 x) {
    x = vmin(vmax(x, vset(-87.0f)), vset(88.0f));
    const V16 n = vround(vmul(x, vset(1.44269504088896341f)));
    V16 r = vfma(n, vset(-0.693145751953125f), x);
    r = vfma(n, vset(-1.428606820309417e-06f), r);
    V16 p = vset(1.388888888e-3f);
    p = vfma(p, r, vset(8.333333333e-3f));
    p = vfma(p, r, vset(4.166666666e-2f));
    p = vfma(p, r, vset(1.666666667e-1f));
    p = vfma(p, r, vset(0.5f));
    p = vfma(p, r, vset(1.0f));
    p = vfma(p, r, vset(1.0f));
    return vscale2(p, n);
}

}  // namespace
}  // namespace outrider
