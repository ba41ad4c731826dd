// AVX-512 with VNNI: one vpdpbusd multiplies 16 rows by 4 columns and adds into 32 bits, with the
// activations broadcast from memory by the same instruction.
#include "kernels.h"
#if defined(__x86_64__) && defined(__AVX512VNNI__)
#define OUTRIDER_AVX512
#include "kernels_common.h"

namespace outrider {
namespace {

template <Kind K>
constexpr bool kSuper = K == Kind::Q4_K || K == Kind::Q5_K || K == Kind::Q6_K;
template <Kind K>
constexpr int kGroupBytes = K == Kind::Q8_0 ? 512 : K == Kind::Q6_K ? 384
                            : K == Kind::Q4_0 || K == Kind::Q4_1 || K == Kind::Q4_K ? 256 : 320;
template <Kind K>
constexpr int kScaleBytes = K == Kind::Q6_K ? 288 : kSuper<K> ? 320 : K == Kind::Q4_1 || K == Kind::Q5_1 ? 64 : 32;

inline __m512i line(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline __m512 halves(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// low | ((h shifted so that the wanted bits reach bit 4 and up) & mask)
inline __m512i merge(__m512i low, __m512i h, __m512i mask) {
    return _mm512_ternarylogic_epi32(low, h, mask, 0xf8);  // a | (b & c)
}

// The 8 slices of one group, as unsigned bytes.
template <Kind K>
inline void unpack(const uint8_t* p, __m512i* w) {
    if constexpr (K == Kind::Q8_0) {
        for (int s = 0; s < 8; s++) w[s] = line(p + 64 * s);
        return;
    }
    const __m512i nibble = _mm512_set1_epi8(15);
    for (int i = 0; i < 4; i++) {
        const __m512i l = line(p + 64 * i);
        w[i] = _mm512_and_si512(l, nibble);
        w[i + 4] = _mm512_and_si512(_mm512_srli_epi16(l, 4), nibble);
    }
    if constexpr (kGroupBytes<K> == 320) {
        const __m512i h = line(p + 256), bit = _mm512_set1_epi8(16);
        w[0] = merge(w[0], _mm512_slli_epi16(h, 4), bit);
        w[1] = merge(w[1], _mm512_slli_epi16(h, 3), bit);
        w[2] = merge(w[2], _mm512_slli_epi16(h, 2), bit);
        w[3] = merge(w[3], _mm512_slli_epi16(h, 1), bit);
        w[4] = merge(w[4], h, bit);
        w[5] = merge(w[5], _mm512_srli_epi16(h, 1), bit);
        w[6] = merge(w[6], _mm512_srli_epi16(h, 2), bit);
        w[7] = merge(w[7], _mm512_srli_epi16(h, 3), bit);
    }
    if constexpr (K == Kind::Q6_K) {
        const __m512i bits = _mm512_set1_epi8(48);
        for (int h = 0; h < 2; h++) {
            const __m512i l = line(p + 256 + 64 * h);
            w[4 * h + 0] = merge(w[4 * h + 0], _mm512_slli_epi16(l, 4), bits);
            w[4 * h + 1] = merge(w[4 * h + 1], _mm512_slli_epi16(l, 2), bits);
            w[4 * h + 2] = merge(w[4 * h + 2], l, bits);
            w[4 * h + 3] = merge(w[4 * h + 3], _mm512_srli_epi16(l, 2), bits);
        }
    }
}

inline __m512i four(const int8_t* a) {
    int32_t v;
    std::memcpy(&v, a, 4);
    return _mm512_set1_epi32(v);
}
inline __m512i pair(const int16_t* a) {
    int32_t v;
    std::memcpy(&v, a, 4);
    return _mm512_set1_epi32(v);
}

template <int FROM, int TO>
inline __m512i dot(const __m512i* w, const int8_t* a) {
    if constexpr (TO - FROM == 8) {  // two chains hide the instruction's latency
        __m512i u = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[FROM], four(a + 4 * FROM));
        __m512i v = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[FROM + 1], four(a + 4 * FROM + 4));
        for (int s = FROM + 2; s < TO; s += 2) {
            u = _mm512_dpbusd_epi32(u, w[s], four(a + 4 * s));
            v = _mm512_dpbusd_epi32(v, w[s + 1], four(a + 4 * s + 4));
        }
        return _mm512_add_epi32(u, v);
    } else {
        __m512i u = _mm512_setzero_si512();
        for (int s = FROM; s < TO; s++) u = _mm512_dpbusd_epi32(u, w[s], four(a + 4 * s));
        return u;
    }
}

// Integers below 2^24 are exact as floats: scale * sum over 4 groups of 4-bit, or 2 of 5-bit, weights can
// be added with float instructions (half the cost of vpmulld) and still be the integer sum.
template <Kind K, int NT>
inline void k_block(const uint8_t* q, const uint8_t* s, const Activations& a, int t0, int b, __m512* f) {
    constexpr int exact = K == Kind::Q4_K ? 4 : 2;
    __m512i w[8];
    __m512 part[NT], total[NT];
    const int8_t* x = a.q + size_t(t0) * a.q_stride + size_t(b) * kBlock;
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        unpack<K>(q + g * kGroupBytes<K>, w);
        const __m512 scale = _mm512_cvtepi32_ps(
            _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(s + 64 + 16 * g))));
        for (int t = 0; t < NT; t++) {
            const __m512 sum = _mm512_cvtepi32_ps(dot<0, 8>(w, x + size_t(t) * a.q_stride + 32 * g));
            part[t] = g % exact ? _mm512_fmadd_ps(sum, scale, part[t]) : _mm512_mul_ps(sum, scale);
            if (K == Kind::Q4_K && g % exact == exact - 1)
                total[t] = g < exact ? part[t] : _mm512_add_ps(total[t], part[t]);
        }
    }
    __m512i minimum[NT];
    for (int t = 0; t < NT; t++) minimum[t] = _mm512_setzero_si512();
    for (int j = 0; j < 4; j++) {
        const __m512i m =
            _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(s + 192 + 32 * j)));
        for (int t = 0; t < NT; t++)
            minimum[t] = _mm512_dpwssd_epi32(minimum[t], m, pair(a.sum32 + size_t(t0 + t) * a.groups() + 8 * b + 2 * j));
    }
    const __m512 d = halves(s), dm = halves(s + 32);
    for (int t = 0; t < NT; t++) {
        const __m512 z = _mm512_fmsub_ps(d, total[t], _mm512_mul_ps(dm, _mm512_cvtepi32_ps(minimum[t])));
        f[t] = _mm512_fmadd_ps(z, _mm512_set1_ps(a.scale[size_t(t0 + t) * a.blocks + b]), f[t]);
    }
}

template <Kind K, int NT>
inline void k_block_int(const uint8_t* q, const uint8_t* s, const Activations& a, int t0, int b, __m512* f) {
    __m512i w[8], total[NT], offset[NT];
    for (int t = 0; t < NT; t++) total[t] = offset[t] = _mm512_setzero_si512();
    const int8_t* x = a.q + size_t(t0) * a.q_stride + size_t(b) * kBlock;
    for (int g = 0; g < 8; g++) {
        unpack<K>(q + g * kGroupBytes<K>, w);
        if constexpr (K == Kind::Q6_K) {
            const __m512i pairs =
                _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(s + 32 + 32 * g)));
            const __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 16), odd = _mm512_srai_epi32(pairs, 16);
            for (int t = 0; t < NT; t++) {
                const int8_t* at = x + size_t(t) * a.q_stride + 32 * g;
                const __m512i u = _mm512_mullo_epi32(dot<0, 4>(w, at), even);
                const __m512i v = _mm512_mullo_epi32(dot<4, 8>(w, at), odd);
                total[t] = _mm512_add_epi32(total[t], _mm512_add_epi32(u, v));
                const int16_t* sums = a.sum16 + size_t(t0 + t) * (a.columns / 16) + 16 * b + 2 * g;
                offset[t] = _mm512_dpwssd_epi32(offset[t], pairs, pair(sums));
            }
        } else {
            const __m512i scale =
                _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(s + 64 + 16 * g)));
            for (int t = 0; t < NT; t++)
                total[t] = _mm512_add_epi32(
                    total[t], _mm512_mullo_epi32(dot<0, 8>(w, x + size_t(t) * a.q_stride + 32 * g), scale));
        }
    }
    const __m512 d = halves(s);
    for (int t = 0; t < NT; t++) {
        __m512 z;
        if constexpr (K == Kind::Q6_K) {
            z = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_sub_epi32(total[t], _mm512_slli_epi32(offset[t], 5))));
        } else {
            __m512i minimum = _mm512_setzero_si512();
            for (int j = 0; j < 4; j++)
                minimum = _mm512_dpwssd_epi32(
                    minimum,
                    _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(s + 192 + 32 * j))),
                    pair(a.sum32 + size_t(t0 + t) * a.groups() + 8 * b + 2 * j));
            z = _mm512_fmsub_ps(d, _mm512_cvtepi32_ps(total[t]),
                                _mm512_mul_ps(halves(s + 32), _mm512_cvtepi32_ps(minimum)));
        }
        f[t] = _mm512_fmadd_ps(z, _mm512_set1_ps(a.scale[size_t(t0 + t) * a.blocks + b]), f[t]);
    }
}

template <Kind K, int NT>
inline void group_block(const uint8_t* q, const uint8_t* s, const Activations& a, int t0, int b, int groups, __m512* f) {
    constexpr int offset = K == Kind::Q4_0 ? 8 : K == Kind::Q5_0 ? 16 : K == Kind::Q8_0 ? 128 : 0;
    __m512i w[8];
    __m512 z[NT];
    for (int t = 0; t < NT; t++) z[t] = _mm512_setzero_ps();
    const int8_t* x = a.q + size_t(t0) * a.q_stride + size_t(b) * kBlock;
    const float* sums = a.fsum32 + size_t(t0) * a.groups() + 8 * b;
    for (int g = 0; g < groups; g++) {
        unpack<K>(q + g * kGroupBytes<K>, w);
        const uint8_t* sg = s + g * kScaleBytes<K>;
        const __m512 d = halves(sg);
        for (int t = 0; t < NT; t++) {
            __m512 sum = _mm512_cvtepi32_ps(dot<0, 8>(w, x + size_t(t) * a.q_stride + 32 * g));
            const __m512 column_sum = _mm512_set1_ps(sums[size_t(t) * a.groups() + g]);
            // exact: both terms are integers below 2^24
            if constexpr (offset != 0) sum = _mm512_fnmadd_ps(_mm512_set1_ps(float(offset)), column_sum, sum);
            z[t] = _mm512_fmadd_ps(d, sum, z[t]);
            if constexpr (offset == 0) z[t] = _mm512_fmadd_ps(halves(sg + 32), column_sum, z[t]);
        }
    }
    for (int t = 0; t < NT; t++)
        f[t] = _mm512_fmadd_ps(z[t], _mm512_set1_ps(a.scale[size_t(t0 + t) * a.blocks + b]), f[t]);
}

template <Kind K, int NT>
void panel_tile(const Matrix& m, const Activations& a, int p, int t0, const MatmulOut& out) {
    const uint8_t* q = m.q + size_t(p) * m.q_stride;
    const uint8_t* s = m.scales + size_t(p) * m.scale_stride;
    __m512 f[NT];
    for (int t = 0; t < NT; t++) f[t] = _mm512_setzero_ps();
    for (int b = 0; b < a.blocks; b++) {
        if constexpr (K == Kind::Q4_K) {
            k_block<K, NT>(q, s, a, t0, b, f);
        } else if constexpr (kSuper<K>) {
            k_block_int<K, NT>(q, s, a, t0, b, f);
        } else {
            group_block<K, NT>(q, s, a, t0, b, imin(8, a.columns / kGroup - 8 * b), f);
        }
        q += 8 * kGroupBytes<K>;
        s += kSuper<K> ? kScaleBytes<K> : 8 * kScaleBytes<K>;
    }
    for (int t = 0; t < NT; t++) store_panel(out, m.rows, p, t0 + t, V16{f[t]});
}

template <Kind K>
void integer_matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    constexpr int widest = 8;
    for (int p = p0; p < p1; p++)
        for (int t = 0, tiles = (a.tokens + widest - 1) / widest; t < a.tokens; tiles--) {
            const int width = (a.tokens - t + tiles - 1) / tiles;  // tiles of nearly equal width
            switch (width) {
                case 1: panel_tile<K, 1>(m, a, p, t, out); break;
                case 2: panel_tile<K, 2>(m, a, p, t, out); break;
                case 3: panel_tile<K, 3>(m, a, p, t, out); break;
                case 4: panel_tile<K, 4>(m, a, p, t, out); break;
                case 5: panel_tile<K, 5>(m, a, p, t, out); break;
                case 6: panel_tile<K, 6>(m, a, p, t, out); break;
                case 7: panel_tile<K, 7>(m, a, p, t, out); break;
                default: panel_tile<K, 8>(m, a, p, t, out); break;
            }
            t += width;
        }
}

}  // namespace

OUTRIDER_KERNEL_TABLE(avx512_kernels, "avx512")

}  // namespace outrider
#else
namespace outrider {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace outrider
#endif
