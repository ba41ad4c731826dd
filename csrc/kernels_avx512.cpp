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

inline __m512 bytes_to_float(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

// One group of 32 columns for NT tokens. Every integer here stays below 2^24, so that floats hold it exactly
// and it does not matter which build adds in integers and which in floats.
template <Kind K, int NT>
inline void add_group(const uint8_t* q, const uint8_t* s, int g, const Activations& a, int t0, __m512* f) {
    constexpr int offset = K == Kind::Q4_0 ? 8 : K == Kind::Q5_0 ? 16 : K == Kind::Q8_0 ? 128 : 0;
    constexpr bool has_minimum = K == Kind::Q4_1 || K == Kind::Q5_1 || K == Kind::Q4_K || K == Kind::Q5_K;
    const size_t groups = size_t(a.groups()), at = size_t(t0) * groups + g;
    const int8_t* x = a.q + size_t(t0) * a.q_stride + kGroup * size_t(g);
    __m512i w[8];
    unpack<K>(q, w);
    __m512 scale = halves(s), minimum = scale, odd_scale = scale, even_scale = scale;
    if constexpr (K == Kind::Q4_1 || K == Kind::Q5_1) minimum = halves(s + 32);
    if constexpr (K == Kind::Q4_K || K == Kind::Q5_K) {
        scale = _mm512_mul_ps(scale, bytes_to_float(s + 64 + 16 * (g % 8)));
        minimum = _mm512_mul_ps(halves(s + 32), bytes_to_float(s + 192 + 16 * (g % 8)));
    }
    if constexpr (K == Kind::Q6_K) {
        const __m512i pairs =
            _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(s + 32 + 32 * (g % 8))));
        even_scale = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 16));
        odd_scale = _mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 16));
    }
    for (int t = 0; t < NT; t++) {
        const int8_t* xt = x + size_t(t) * a.q_stride;
        const size_t i = at + size_t(t) * groups;
        __m512 sum;
        if constexpr (K == Kind::Q6_K) {
            const __m512i u = _mm512_sub_epi32(dot<0, 4>(w, xt), _mm512_set1_epi32(32 * int32_t(a.sum16[2 * i])));
            const __m512i v = _mm512_sub_epi32(dot<4, 8>(w, xt), _mm512_set1_epi32(32 * int32_t(a.sum16[2 * i + 1])));
            sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(v), odd_scale, _mm512_mul_ps(_mm512_cvtepi32_ps(u), even_scale));
        } else {
            sum = _mm512_cvtepi32_ps(dot<0, 8>(w, xt));
        }
        if constexpr (offset != 0) sum = _mm512_fnmadd_ps(_mm512_set1_ps(float(offset)), _mm512_set1_ps(a.sum[i]), sum);
        f[t] = _mm512_fmadd_ps(scale, _mm512_mul_ps(sum, _mm512_set1_ps(a.scale[i])), f[t]);
        if constexpr (K == Kind::Q4_K || K == Kind::Q5_K)
            f[t] = _mm512_fnmadd_ps(minimum, _mm512_set1_ps(a.scaled[i]), f[t]);
        else if constexpr (has_minimum)
            f[t] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(a.scaled[i]), f[t]);
    }
}

template <Kind K, int NT>
void panel_tile(const Matrix& m, const Activations& a, int p, int t0, const MatmulOut& out) {
    const uint8_t* q = m.q + size_t(p) * m.q_stride;
    const uint8_t* s = m.scales + size_t(p) * m.scale_stride;
    __m512 f[NT];
    for (int t = 0; t < NT; t++) f[t] = _mm512_setzero_ps();
    for (int g = 0; g < a.groups(); g++) {
        add_group<K, NT>(q, s, g, a, t0, f);
        q += kGroupBytes<K>;
        if (!kSuper<K> || g % 8 == 7) s += kScaleBytes<K>;
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
