// Sixteen lanes of 32-bit integers, for attention over keys and values that are held in bytes. Sums of
// products are exact, so they are the same in any order and on every instruction set.
//
// I16 has sixteen sums, Pairs two 16-bit integers for each of them, and Pair two that stand for all lanes:
// add_products adds both products of a lane. The memory of integers may be that of floats.
#pragma once
#include "kernels/simd.h"

namespace outrider {
namespace {

#if defined(OUTRIDER_AVX512)
struct I16 {
    __m512i v;
};
struct Pairs {
    __m512i v;
};
using Pair = Pairs;
inline I16 zero_integers() { return {_mm512_setzero_si512()}; }
inline I16 vload_integers(const void* p) { return {_mm512_loadu_si512(p)}; }
inline void vstore_integers(void* p, I16 a) { _mm512_storeu_si512(p, a.v); }
inline V16 to_floats(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
// Rounds to nearest and saturates.
inline void vstore_i16(int16_t* p, V16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(a.v)));
}
inline Pairs load_pairs(const int8_t* p) {
    return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Pair spread_pair(const int16_t* p) {
    int32_t two;
    std::memcpy(&two, p, 4);
    return {_mm512_set1_epi32(two)};
}
inline I16 add_products(I16 sum, Pairs a, Pair b) { return {_mm512_dpwssd_epi32(sum.v, a.v, b.v)}; }

#elif defined(OUTRIDER_AVX2)
struct I16 {
    __m256i a, b;
};
struct Pairs {
    __m256i a, b;
};
struct Pair {
    __m256i v;
};
inline I16 zero_integers() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline I16 vload_integers(const void* p) {
    const __m256i* s = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(s), _mm256_loadu_si256(s + 1)};
}
inline void vstore_integers(void* p, I16 x) {
    __m256i* d = static_cast<__m256i*>(p);
    _mm256_storeu_si256(d, x.a);
    _mm256_storeu_si256(d + 1, x.b);
}
inline V16 to_floats(I16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline void vstore_i16(int16_t* p, V16 x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_i16(x)); }
inline Pairs load_pairs(const int8_t* p) {
    const __m128i* s = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(s)), _mm256_cvtepi8_epi16(_mm_loadu_si128(s + 1))};
}
inline Pair spread_pair(const int16_t* p) {
    int32_t two;
    std::memcpy(&two, p, 4);
    return {_mm256_set1_epi32(two)};
}
inline I16 add_products(I16 sum, Pairs x, Pair y) {
    sum.a = _mm256_add_epi32(sum.a, _mm256_madd_epi16(x.a, y.v));
    sum.b = _mm256_add_epi32(sum.b, _mm256_madd_epi16(x.b, y.v));
    // (Otherwise GCC moves the additions of all sums behind all products, and the sums to memory.)
    asm("" : "+x"(sum.a), "+x"(sum.b));
    return sum;
}

#elif defined(OUTRIDER_NEON)
struct I16 {
    int32x4_t v[4];
};
struct Pairs {
    int16x8_t even[2], odd[2];  // the first ones of all lanes, and the second ones
};
struct Pair {
    int16_t even, odd;
};
inline I16 zero_integers() {
    I16 r;
    std::memset(r.v, 0, sizeof r.v);
    return r;
}
inline I16 vload_integers(const void* p) {
    I16 r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
inline void vstore_integers(void* p, I16 a) { std::memcpy(p, a.v, sizeof a.v); }
inline V16 to_floats(I16 a) {
    V16 r;
    for (int i = 0; i < 4; i++) r.v[i] = vcvtq_f32_s32(a.v[i]);
    return r;
}
inline void vstore_i16(int16_t* p, V16 a) {
    const int16x4_t w[4] = {to_i16(a.v[0]), to_i16(a.v[1]), to_i16(a.v[2]), to_i16(a.v[3])};
    std::memcpy(p, w, sizeof w);
}
inline Pairs load_pairs(const int8_t* p) {
    const int8x16x2_t two = vld2q_s8(p);
    return {{vmovl_s8(vget_low_s8(two.val[0])), vmovl_s8(vget_high_s8(two.val[0]))},
            {vmovl_s8(vget_low_s8(two.val[1])), vmovl_s8(vget_high_s8(two.val[1]))}};
}
inline Pair spread_pair(const int16_t* p) {
    Pair r;
    std::memcpy(&r, p, sizeof r);
    return r;
}
inline I16 add_products(I16 sum, Pairs a, Pair b) {
    for (int i = 0; i < 2; i++) {
        int32x4_t &low = sum.v[2 * i], &high = sum.v[2 * i + 1];
        low = vmlal_n_s16(low, vget_low_s16(a.even[i]), b.even);
        high = vmlal_n_s16(high, vget_high_s16(a.even[i]), b.even);
        low = vmlal_n_s16(low, vget_low_s16(a.odd[i]), b.odd);
        high = vmlal_n_s16(high, vget_high_s16(a.odd[i]), b.odd);
    }
    return sum;
}

#else
struct I16 {
    int32_t v[16];
};
struct Pairs {
    int8_t v[32];
};
struct Pair {
    int16_t even, odd;
};
inline I16 zero_integers() {
    I16 r;
    std::memset(r.v, 0, sizeof r.v);
    return r;
}
inline I16 vload_integers(const void* p) {
    I16 r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
inline void vstore_integers(void* p, const I16& a) { std::memcpy(p, a.v, sizeof a.v); }
inline V16 to_floats(const I16& a) {
    V16 r;
    for (int i = 0; i < 16; i++) r.v[i] = float(a.v[i]);
    return r;
}
inline void vstore_i16(int16_t* p, const V16& a) {
    int16_t q[16];
    for (int i = 0; i < 16; i++) {  // NaN becomes the lowest value, as on x86
        const float x = a.v[i];
        q[i] = int16_t(x >= 32767.0f ? 32767.0f : x > -32768.0f ? __builtin_rintf(x) : -32768.0f);
    }
    std::memcpy(p, q, sizeof q);
}
inline Pairs load_pairs(const int8_t* p) {
    Pairs r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
inline Pair spread_pair(const int16_t* p) {
    Pair r;
    std::memcpy(&r, p, sizeof r);
    return r;
}
inline I16 add_products(I16 sum, const Pairs& a, Pair b) {
    for (int i = 0; i < 16; i++) sum.v[i] += a.v[2 * i] * b.even + a.v[2 * i + 1] * b.odd;
    return sum;
}
#endif

}  // namespace
}  // namespace outrider
