// AVX2: the two halves of a panel (8 rows each) one after the other; the second finds its lines in cache. Products of unsigned weights and
// signed activations are summed in 16 bits as long as they cannot overflow, then widened once.
#include "kernels.h"
#if defined(__x86_64__) && defined(__AVX2__)
#define OUTRIDER_AVX2
#include "kernels_common.h"

namespace outrider {
namespace {

inline __m256i line(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m128i half_line(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline __m256 halves(const uint8_t* p) { return _mm256_cvtph_ps(half_line(p)); }
inline __m256i merge(__m256i low, __m256i h, __m256i mask) { return _mm256_or_si256(low, _mm256_and_si256(h, mask)); }
inline __m256i four(const int8_t* a) {
    int32_t v;
    std::memcpy(&v, a, 4);
    return _mm256_set1_epi32(v);
}
inline __m256i pair(const int16_t* a) {
    int32_t v;
    std::memcpy(&v, a, 4);
    return _mm256_set1_epi32(v);
}

// Calls feed(slice, bytes) for the 8 slices of one group and half panel: unsigned (signed for Q8_0).
template <Kind K, class Feed>
inline __attribute__((always_inline)) void unpack(const uint8_t* p, const Feed& feed) {
    const __m256i nibble = _mm256_set1_epi8(15), bit = _mm256_set1_epi8(16), two = _mm256_set1_epi8(48);
    const auto low = [&](int i) { return _mm256_and_si256(line(p + 64 * i), nibble); };
    const auto high = [&](int i) { return _mm256_and_si256(_mm256_srli_epi16(line(p + 64 * i), 4), nibble); };
    if constexpr (K == Kind::Q8_0) {
        const __m256i flip = _mm256_set1_epi8(-128);
        const auto at = [&](int i) { return _mm256_xor_si256(line(p + 64 * i), flip); };
        feed(0, at(0)), feed(1, at(1)), feed(2, at(2)), feed(3, at(3));
        feed(4, at(4)), feed(5, at(5)), feed(6, at(6)), feed(7, at(7));
    } else if constexpr (K == Kind::Q3_0) {
        const __m256i three = _mm256_set1_epi8(7), l0 = line(p), l1 = line(p + 64), l2 = line(p + 128);
        const auto bits = [&](__m256i l) { return _mm256_and_si256(l, three); };
        feed(0, bits(l0)), feed(1, bits(l1)), feed(2, bits(l2));
        feed(3, bits(_mm256_srli_epi16(l0, 3))), feed(4, bits(_mm256_srli_epi16(l1, 3)));
        feed(5, bits(_mm256_srli_epi16(l2, 3)));
        __m256i rest = _mm256_and_si256(_mm256_srli_epi16(l0, 6), _mm256_set1_epi8(3));
        rest = merge(rest, _mm256_srli_epi16(l1, 4), _mm256_set1_epi8(12));
        rest = merge(rest, _mm256_srli_epi16(l2, 2), two);
        feed(6, bits(rest)), feed(7, bits(_mm256_srli_epi16(rest, 3)));
    } else if constexpr (kGroupBytes<K> == 320) {
        const __m256i h = line(p + 256);
        feed(0, merge(low(0), _mm256_slli_epi16(h, 4), bit));
        feed(1, merge(low(1), _mm256_slli_epi16(h, 3), bit));
        feed(2, merge(low(2), _mm256_slli_epi16(h, 2), bit));
        feed(3, merge(low(3), _mm256_slli_epi16(h, 1), bit));
        feed(4, merge(high(0), h, bit));
        feed(5, merge(high(1), _mm256_srli_epi16(h, 1), bit));
        feed(6, merge(high(2), _mm256_srli_epi16(h, 2), bit));
        feed(7, merge(high(3), _mm256_srli_epi16(h, 3), bit));
    } else if constexpr (K == Kind::Q6_K) {
        const __m256i h0 = line(p + 256), h1 = line(p + 320);
        feed(0, merge(low(0), _mm256_slli_epi16(h0, 4), two));
        feed(1, merge(low(1), _mm256_slli_epi16(h0, 2), two));
        feed(2, merge(low(2), h0, two));
        feed(3, merge(low(3), _mm256_srli_epi16(h0, 2), two));
        feed(4, merge(high(0), _mm256_slli_epi16(h1, 4), two));
        feed(5, merge(high(1), _mm256_slli_epi16(h1, 2), two));
        feed(6, merge(high(2), h1, two));
        feed(7, merge(high(3), _mm256_srli_epi16(h1, 2), two));
    } else {
        feed(0, low(0)), feed(1, low(1)), feed(2, low(2)), feed(3, low(3));
        feed(4, high(0)), feed(5, high(1)), feed(6, high(2)), feed(7, high(3));
    }
}

// How many slices may be summed in 16 bits: 8 * 2 * 15 * 127, 4 * 2 * 31 * 127, 2 * 2 * 63 * 127 and 2 * 128 * 127 fit.
template <Kind K>
constexpr int kNarrow = K == Kind::Q8_0 ? 1 : K == Kind::Q6_K ? 2 : kGroupBytes<K> == 320 ? 4 : 8;

inline __m256 bytes_to_float(const uint8_t* p) {
    int64_t eight;
    std::memcpy(&eight, p, 8);
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(eight)));
}

// One group of 32 columns and half a panel for NT tokens; of Q6_K what the superblock's scale is still to be multiplied
// with. Every integer here stays below 2^24, so that floats
// hold it exactly and it does not matter which build adds in integers and which in floats.
template <Kind K, int NT>
inline __attribute__((always_inline)) void add_group(const uint8_t* q, const uint8_t* s, int half, int g,
                                                     const Activations& a, size_t at, __m256* f) {
    constexpr int offset = K == Kind::Q8_0 ? 0 : kOffset<K>;  // Q8_0 is signed already
    const int8_t* x = a.q + kGroup * at;
    const uint8_t* lines = q + 32 * half;
    __m256 scale = halves(s + 16 * half), minimum = scale;
    __m256i factor[2], pairs = _mm256_setzero_si256();
    factor[0] = factor[1] = _mm256_set1_epi16(1);
    if constexpr (K == Kind::Q4_1 || K == Kind::Q5_1) minimum = halves(s + 32 + 16 * half);
    if constexpr (K == Kind::Q4_K || K == Kind::Q5_K) {
        scale = _mm256_mul_ps(scale, bytes_to_float(s + 64 + 16 * (g % 8) + 8 * half));
        minimum = _mm256_mul_ps(halves(s + 32 + 16 * half), bytes_to_float(s + 192 + 16 * (g % 8) + 8 * half));
    }
    if constexpr (K == Kind::Q6_K) {
        const __m256i even = _mm256_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13, 0, 1, 0, 1, 4, 5, 4, 5,
                                              8, 9, 8, 9, 12, 13, 12, 13);
        pairs = _mm256_cvtepi8_epi16(half_line(s + 32 + 32 * (g % 8) + 16 * half));
        factor[0] = _mm256_shuffle_epi8(pairs, even);
        factor[1] = _mm256_shuffle_epi8(pairs, _mm256_add_epi8(even, _mm256_set1_epi8(2)));
    }
    __m256i narrow[NT], sum[NT];
    unpack<K>(lines, [&](int slice, __m256i w) __attribute__((always_inline)) {
        __m256i magnitude = w;
        if constexpr (K == Kind::Q8_0) magnitude = _mm256_abs_epi8(w);
#pragma GCC unroll 8
        for (int t = 0; t < NT; t++) {
            __m256i v = four(x + kGroup * t + 4 * slice);
            if constexpr (K == Kind::Q8_0) v = _mm256_sign_epi8(v, w);
            v = _mm256_maddubs_epi16(magnitude, v);
            narrow[t] = slice % kNarrow<K> == 0 ? v : _mm256_add_epi16(narrow[t], v);
            if (slice % kNarrow<K> == kNarrow<K> - 1) {
                v = _mm256_madd_epi16(narrow[t], factor[slice / 4]);
                sum[t] = slice < kNarrow<K> ? v : _mm256_add_epi32(sum[t], v);
            }
        }
    });
#pragma GCC unroll 8
    for (int t = 0; t < NT; t++) {
        const size_t i = at + t;
        if constexpr (K == Kind::Q6_K)
            sum[t] = _mm256_sub_epi32(sum[t], _mm256_slli_epi32(_mm256_madd_epi16(pairs, pair(a.sum16 + 2 * i)), 5));
        if constexpr (offset != 0) sum[t] = _mm256_sub_epi32(sum[t], _mm256_set1_epi32(offset * a.sum[i]));
        const __m256 v = _mm256_cvtepi32_ps(sum[t]);
        if constexpr (K == Kind::Q6_K) {
            f[t] = _mm256_fmadd_ps(v, _mm256_set1_ps(a.scale[i]), f[t]);
            continue;
        }
        f[t] = _mm256_fmadd_ps(scale, _mm256_mul_ps(v, _mm256_set1_ps(a.scale[i])), f[t]);
        if constexpr (K == Kind::Q4_K || K == Kind::Q5_K)
            f[t] = _mm256_fnmadd_ps(minimum, _mm256_set1_ps(a.scaled[i]), f[t]);
        else if constexpr (K == Kind::Q4_1 || K == Kind::Q5_1)
            f[t] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(a.scaled[i]), f[t]);
    }
}

template <Kind K, int NT>
void panel_tile(const Matrix& m, const Activations& a, int p, int t0, const MatmulOut& out) {
    constexpr bool six = K == Kind::Q6_K;
    __m256 f[2][NT];
    for (int half = 0; half < 2; half++) {
        const uint8_t* q = m.q + size_t(p) * m.q_stride;
        const uint8_t* s = m.scales + size_t(p) * m.scale_stride;
        __m256 sums[NT];  // (of a fixed place, so that they stay in registers)
        for (int t = 0; t < NT; t++) sums[t] = f[half][t] = _mm256_setzero_ps();
        size_t at = a.at(t0, 0);
        for (int g = 0; g < a.groups(); g++, at += size_t(a.pitch)) {
            // The next panel is asked for while this one is multiplied, half of it each time.
            for (int b = 64 * half; b < kGroupBytes<K>; b += 128)
                _mm_prefetch(reinterpret_cast<const char*>(q) + m.q_stride + b, _MM_HINT_T1);
            add_group<K, NT>(q, s, half, g, a, at, sums);
            q += kGroupBytes<K>;
            if (six && g % 8 == 7)
                for (int t = 0; t < NT; t++) {
                    f[half][t] = _mm256_fmadd_ps(halves(s + 16 * half), sums[t], f[half][t]);
                    sums[t] = _mm256_setzero_ps();
                }
            if (!kSuper<K> || g % 8 == 7) s += kScaleBytes<K>;
        }
        for (int t = 0; !six && t < NT; t++) f[half][t] = sums[t];
    }
    for (int t = 0; t < NT; t++) store_panel(out, m.rows, p, t0 + t, V16{f[0][t], f[1][t]});
}

template <Kind K>
void integer_matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    constexpr int widest = 4;
    for (int p = p0; p < p1; p++)
        each_tile<widest>(a, [&](int t, auto width) { panel_tile<K, decltype(width)::value>(m, a, p, t, out); });
}

}  // namespace

OUTRIDER_KERNEL_TABLE(avx2_kernels, "avx2")

}  // namespace outrider
#else
namespace outrider {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace outrider
#endif
