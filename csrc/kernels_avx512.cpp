// AVX-512 with VNNI: one vpdpbusd multiplies 16 rows by 4 columns and adds into 32 bits.
#include "kernels.h"
#if defined(__x86_64__) && defined(__AVX512VNNI__)
#define OUTRIDER_AVX512
#include "kernels_common.h"

namespace outrider {
namespace {

inline __m512i line(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline __m512 halves(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// low | ((h shifted so that the wanted bits reach bit 4 and up) & mask)
inline __m512i merge(__m512i low, __m512i h, __m512i mask) {
    return _mm512_ternarylogic_epi32(low, h, mask, 0xf8);  // a | (b & c)
}

inline __m512i four(const int8_t* a) {
    int32_t v;
    std::memcpy(&v, a, 4);
    return _mm512_set1_epi32(v);
}

// Calls feed(slice, unsigned bytes) for the 8 slices of one group.
template <Kind K, class Feed>
inline __attribute__((always_inline)) void unpack(const uint8_t* p, const Feed& feed) {
    if constexpr (K == Kind::Q8_0) {
        feed(0, line(p)), feed(1, line(p + 64)), feed(2, line(p + 128)), feed(3, line(p + 192));
        feed(4, line(p + 256)), feed(5, line(p + 320)), feed(6, line(p + 384)), feed(7, line(p + 448));
        return;
    }
    if constexpr (K == Kind::Q3_0) {
        const __m512i three = _mm512_set1_epi8(7), l0 = line(p), l1 = line(p + 64), l2 = line(p + 128);
        const auto bits = [&](__m512i l) { return _mm512_and_si512(l, three); };
        feed(0, bits(l0)), feed(1, bits(l1)), feed(2, bits(l2));
        feed(3, bits(_mm512_srli_epi16(l0, 3))), feed(4, bits(_mm512_srli_epi16(l1, 3)));
        feed(5, bits(_mm512_srli_epi16(l2, 3)));
        __m512i rest = _mm512_and_si512(_mm512_srli_epi16(l0, 6), _mm512_set1_epi8(3));
        rest = merge(rest, _mm512_srli_epi16(l1, 4), _mm512_set1_epi8(12));
        rest = merge(rest, _mm512_srli_epi16(l2, 2), _mm512_set1_epi8(48));
        feed(6, bits(rest)), feed(7, bits(_mm512_srli_epi16(rest, 3)));
        return;
    }
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m512i l0 = line(p), l1 = line(p + 64), l2 = line(p + 128), l3 = line(p + 192);
    const auto low = [&](__m512i l) { return _mm512_and_si512(l, nibble); };
    const auto high = [&](__m512i l) { return _mm512_and_si512(_mm512_srli_epi16(l, 4), nibble); };
    if constexpr (kGroupBytes<K> == 320) {
        const __m512i h = line(p + 256), bit = _mm512_set1_epi8(16);
        feed(0, merge(low(l0), _mm512_slli_epi16(h, 4), bit));
        feed(1, merge(low(l1), _mm512_slli_epi16(h, 3), bit));
        feed(2, merge(low(l2), _mm512_slli_epi16(h, 2), bit));
        feed(3, merge(low(l3), _mm512_slli_epi16(h, 1), bit));
        feed(4, merge(high(l0), h, bit));
        feed(5, merge(high(l1), _mm512_srli_epi16(h, 1), bit));
        feed(6, merge(high(l2), _mm512_srli_epi16(h, 2), bit));
        feed(7, merge(high(l3), _mm512_srli_epi16(h, 3), bit));
    } else if constexpr (K == Kind::Q6_K) {
        const __m512i h0 = line(p + 256), h1 = line(p + 320), bits = _mm512_set1_epi8(48);
        feed(0, merge(low(l0), _mm512_slli_epi16(h0, 4), bits));
        feed(1, merge(low(l1), _mm512_slli_epi16(h0, 2), bits));
        feed(2, merge(low(l2), h0, bits));
        feed(3, merge(low(l3), _mm512_srli_epi16(h0, 2), bits));
        feed(4, merge(high(l0), _mm512_slli_epi16(h1, 4), bits));
        feed(5, merge(high(l1), _mm512_slli_epi16(h1, 2), bits));
        feed(6, merge(high(l2), h1, bits));
        feed(7, merge(high(l3), _mm512_srli_epi16(h1, 2), bits));
    } else {
        feed(0, low(l0)), feed(1, low(l1)), feed(2, low(l2)), feed(3, low(l3));
        feed(4, high(l0)), feed(5, high(l1)), feed(6, high(l2)), feed(7, high(l3));
    }
}

inline __m512 bytes_to_float(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

// One group of 32 columns for NT tokens; of Q6_K what the superblock's scale is still to be multiplied with. Each
// slice goes to all tokens before the next is unpacked: neighbouring instructions then belong to different sums, and
// the latency of vpdpbusd hides without a deep window. Few tokens have two sums each for the same reason. Every
// integer here stays below 2^24, so that floats hold it exactly and it does not matter which build adds in integers
// and which in floats.
template <Kind K, int NT>
inline __attribute__((always_inline)) void add_group(const uint8_t* q, const uint8_t* s, int g, const Activations& a,
                                                     size_t at, __m512* f) {
    constexpr int offset = kOffset<K>;
    constexpr bool is_super = K == Kind::Q4_K || K == Kind::Q5_K, six = K == Kind::Q6_K;
    constexpr int chains = six || NT <= 4 ? 2 : 1;
    const int8_t* x = a.q + kGroup * at;
    __m512i sum[chains][NT];
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++)
        for (int c = 0; c < chains; c++)
            sum[c][t] = six ? _mm512_set1_epi32(a.centre[2 * (at + t) + c]) : _mm512_setzero_si512();
    unpack<K>(q, [&](int slice, __m512i w) __attribute__((always_inline)) {
        const int c = six ? slice / 4 : chains == 2 ? slice % 2 : 0;
#pragma GCC unroll 16
        for (int t = 0; t < NT; t++) sum[c][t] = _mm512_dpbusd_epi32(sum[c][t], w, four(x + kGroup * t + 4 * slice));
    });
    __m512 scale = halves(s), minimum = scale, even_scale = scale, odd_scale = scale;
    if constexpr (K == Kind::Q4_1 || K == Kind::Q5_1) minimum = halves(s + 32);
    if constexpr (is_super) {
        scale = _mm512_mul_ps(scale, bytes_to_float(s + 64 + 16 * (g % 8)));
        minimum = _mm512_mul_ps(halves(s + 32), bytes_to_float(s + 192 + 16 * (g % 8)));
    }
    if constexpr (six) {
        const __m512i pairs =
            _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(s + 32 + 32 * (g % 8))));
        even_scale = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 16));
        odd_scale = _mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 16));
    }
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++) {
        const size_t i = at + t;
        __m512 total;
        if constexpr (six) {
            total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[1][t]), odd_scale,
                                    _mm512_mul_ps(_mm512_cvtepi32_ps(sum[0][t]), even_scale));
        } else {
            __m512i whole = chains == 2 ? _mm512_add_epi32(sum[0][t], sum[chains - 1][t]) : sum[0][t];
            if constexpr (offset != 0)  // in integers, and shifted: vpdpbusd leaves no time for another multiplication
                whole = _mm512_sub_epi32(whole, _mm512_slli_epi32(_mm512_set1_epi32(a.sum[i]), __builtin_ctz(offset)));
            total = _mm512_cvtepi32_ps(whole);
        }
        if constexpr (six) {
            f[t] = _mm512_fmadd_ps(total, _mm512_set1_ps(a.scale[i]), f[t]);
            continue;
        }
        f[t] = _mm512_fmadd_ps(scale, _mm512_mul_ps(total, _mm512_set1_ps(a.scale[i])), f[t]);
        if constexpr (is_super) f[t] = _mm512_fnmadd_ps(minimum, _mm512_set1_ps(a.scaled[i]), f[t]);
        if constexpr (K == Kind::Q4_1 || K == Kind::Q5_1)
            f[t] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(a.scaled[i]), f[t]);
    }
}

// How far ahead of the group at hand weights are asked for, in bytes: several tokens' work on a group takes longer
// than the hardware looks ahead, and two threads of one core share what does the looking. From memory they come into
// the second cache, and from there into the first. (Asked for straight from memory, a line holds one of the few
// places of the first cache's misses all the way, and the loads at hand wait for one.)
constexpr int kFar = 16384, kNear = 2048;

template <Kind K, int NT>
void panel_tile(const Matrix& m, const Activations& a, int p, int t0, const MatmulOut& out) {
    const uint8_t* q = m.q + size_t(p) * m.q_stride;
    const uint8_t* s = m.scales + size_t(p) * m.scale_stride;
    constexpr bool six = K == Kind::Q6_K;
    __m512 f[NT], sums[NT];
    for (int t = 0; t < NT; t++) f[t] = sums[t] = _mm512_setzero_ps();
    size_t at = a.at(t0, 0);
    for (int g = 0; g < a.groups(); g++, at += size_t(a.pitch)) {
        for (int b = 0; b < kGroupBytes<K>; b += 64) {
            _mm_prefetch(reinterpret_cast<const char*>(q) + kFar + b, _MM_HINT_T1);
            _mm_prefetch(reinterpret_cast<const char*>(q) + kNear + b, _MM_HINT_T0);
        }
        add_group<K, NT>(q, s, g, a, at, six ? sums : f);
        q += kGroupBytes<K>;
        if (six && g % 8 == 7)
            for (int t = 0; t < NT; t++) {
                f[t] = _mm512_fmadd_ps(halves(s), sums[t], f[t]);
                sums[t] = _mm512_setzero_ps();
            }
        if (!kSuper<K> || g % 8 == 7) s += kScaleBytes<K>;
    }
    for (int t = 0; t < NT; t++) store_panel(out, m.rows, p, t0 + t, V16{f[t]});
}

template <Kind K>
void integer_matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    constexpr int widest = kBundle;
    for (int p = p0; p < p1; p++)
        each_tile<widest>(a, [&](int t, auto width) { panel_tile<K, decltype(width)::value>(m, a, p, t, out); });
}

}  // namespace

OUTRIDER_KERNEL_TABLE(avx512_kernels, "avx512")

}  // namespace outrider
#else
namespace outrider {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace outrider
#endif
