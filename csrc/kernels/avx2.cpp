// AVX2: the two halves of a panel (8 rows each) one after the other; the second finds its lines in cache.
// Products of unsigned weights and signed activations are summed in 16 bits as long as they cannot overflow,
// then widened once.
#include "kernels/kernels.h"
#if defined(__x86_64__) && defined(__AVX2__)
#define OUTRIDER_AVX2
#include "kernels/common.h"

namespace outrider {
namespace {

inline __m256i line(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m128i half_line(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline __m256 halves(const uint8_t* p) { return _mm256_cvtph_ps(half_line(p)); }
inline __m256i merge(__m256i low, __m256i h, __m256i mask) {
    return _mm256_or_si256(low, _mm256_and_si256(h, mask));
}
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

// How many slices may be summed in 16 bits: 8 * 2 * 15 * 127, 4 * 2 * 31 * 127, 2 * 2 * 63 * 127 and 2 * 128
// * 127 fit.
template <Kind K>
constexpr int kNarrow = K == Kind::Q8_0         ? 1
                        : K == Kind::Q6_K       ? 2
                        : kGroupBytes<K> == 320 ? 4
                                                : 8;

// sum[part][token] += the products of one group of 32 columns, half a panel and NT tokens; Q6_K has two
// parts, its halves.
template <Kind K, int NT>
inline __attribute__((always_inline)) void multiply(const uint8_t* lines, const int8_t* x,
                                                    __m256i (*sum)[NT]) {
    __m256i narrow[NT];
    unpack<K>(lines, [&](int slice, __m256i w) __attribute__((always_inline)) {
        const int part = K == Kind::Q6_K ? slice / 4 : 0;
        __m256i magnitude = w;
        if constexpr (K == Kind::Q8_0) magnitude = _mm256_abs_epi8(w);
#pragma GCC unroll 8
        for (int t = 0; t < NT; t++) {
            __m256i v = four(x + kGroup * t + 4 * slice);
            if constexpr (K == Kind::Q8_0) v = _mm256_sign_epi8(v, w);
            v = _mm256_maddubs_epi16(magnitude, v);
            narrow[t] = slice % kNarrow<K> == 0 ? v : _mm256_add_epi16(narrow[t], v);
            if (slice % kNarrow<K> == kNarrow<K> - 1)
                sum[part][t] =
                    _mm256_add_epi32(sum[part][t], _mm256_madd_epi16(narrow[t], _mm256_set1_epi16(1)));
        }
    });
}

inline __m256i all(int32_t x) { return _mm256_set1_epi32(x); }

// Adds one group and half a panel to f[token]. Every integer here stays below 2^24, so that floats hold it
// exactly and it does not matter which build adds in integers and which in floats.
template <Kind K, int NT>
inline __attribute__((always_inline)) void add_group(const uint8_t* q, const uint8_t* s, int half,
                                                     const Activations& a, size_t at, __m256* f) {
    constexpr int offset = K == Kind::Q8_0 ? 0 : kOffset<K>;  // Q8_0 is signed already
    const __m256 scale = halves(s + 16 * half);
    __m256i sum[1][NT];
    for (int t = 0; t < NT; t++) sum[0][t] = all(-offset * a.sum[at + t]);
    multiply<K, NT>(q + 32 * half, a.q + kGroup * at, sum);
#pragma GCC unroll 8
    for (int t = 0; t < NT; t++) {
        const size_t i = at + t;
        f[t] = _mm256_fmadd_ps(
            scale, _mm256_mul_ps(_mm256_cvtepi32_ps(sum[0][t]), _mm256_set1_ps(a.scale[i])), f[t]);
        if constexpr (kMinimum<K>)
            f[t] = _mm256_fmadd_ps(halves(s + 32 + 16 * half), _mm256_set1_ps(a.scaled[i]), f[t]);
    }
}

// The bytes of two groups, a 16-bit lane each.
inline __m256i two_groups(const uint8_t* p) {
    const auto wide = [](const uint8_t* from) {
        return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    };
    return _mm256_or_si256(wide(p), _mm256_slli_epi32(wide(p + 16), 16));
}
// The low 16 bits of a >> right, and above them those of b >> (16 - left).
inline __m256i narrowed(__m256i a, int32_t right, __m256i b, int32_t left) {
    return _mm256_blend_epi16(_mm256_srl_epi32(a, _mm_cvtsi32_si128(right)),
                              _mm256_sll_epi32(b, _mm_cvtsi32_si128(left)), 0xaa);
}

// total[token] += two groups of a superblock of Q4_K or Q5_K
template <Kind K, int NT>
inline __attribute__((always_inline)) void add_groups(const uint8_t* lines, __m256i scales,
                                                      const Activations& a, size_t at, __m256i* total) {
    const size_t next = at + size_t(a.pitch);
    __m256i even[1][NT], odd[1][NT];
    for (int t = 0; t < NT; t++) even[0][t] = all(rounding<K>(a, at + t, 0));
    multiply<K, NT>(lines, a.q + kGroup * at, even);
    for (int t = 0; t < NT; t++) odd[0][t] = all(rounding<K>(a, next + t, 1));
    multiply<K, NT>(lines + kGroupBytes<K>, a.q + kGroup * next, odd);
    for (int t = 0; t < NT; t++) {
        const int32_t right = a.shifts[2 * (at + t)] + kNarrower<K>,
                      left = a.shifts[2 * (next + t) + 1] - kNarrower<K>;
        total[t] = _mm256_add_epi32(total[t],
                                    _mm256_madd_epi16(narrowed(even[0][t], right, odd[0][t], left), scales));
    }
}

// total[token] += one group of Q6_K
template <int NT>
inline __attribute__((always_inline)) void add_halves(const uint8_t* lines, __m256i scales,
                                                      const Activations& a, size_t at, __m256i* total) {
    __m256i sum[2][NT];
    for (int t = 0; t < NT; t++)
        for (int h = 0; h < 2; h++) sum[h][t] = all(a.centre[2 * (at + t) + h]);
    multiply<Kind::Q6_K, NT>(lines, a.q + kGroup * at, sum);
    for (int t = 0; t < NT; t++) {
        const int32_t* shifts = a.shifts + 2 * (at + t);
        total[t] = _mm256_add_epi32(
            total[t], _mm256_madd_epi16(narrowed(sum[0][t], shifts[0], sum[1][t], shifts[1]), scales));
    }
}

// Adds one superblock and half a panel to f[token], in integers but for its own scales.
template <Kind K, int NT>
inline __attribute__((always_inline)) void add_block(const uint8_t* q, const uint8_t* s, int half,
                                                     const Activations& a, const Place& place, __m256* f) {
    constexpr bool six = K == Kind::Q6_K;
    const size_t pitch = size_t(a.pitch);
    size_t at = place.at;
    __m256i total[NT];
    for (int t = 0; t < NT; t++) total[t] = _mm256_setzero_si256();
    const uint8_t* lines = q + 32 * half;
    for (int i = 0; i < kParts; i += six ? 1 : 2) {
        if constexpr (six) {
            add_halves<NT>(lines, _mm256_cvtepi8_epi16(half_line(s + 32 + 32 * i + 16 * half)), a, at, total);
            at += pitch;
            lines += kGroupBytes<K>;
        } else {
            add_groups<K, NT>(lines, two_groups(s + 64 + 16 * i + 8 * half), a, at, total);
            at += 2 * pitch;
            lines += 2 * kGroupBytes<K>;
        }
    }
    const __m256 step = _mm256_mul_ps(halves(s + 16 * half), _mm256_set1_ps(2 << kNarrower<K>));
    for (int t = 0; t < NT; t++) {
        const __m256 products = _mm256_cvtepi32_ps(total[t]);
        __m256 value;
        if constexpr (six) {
            value = _mm256_mul_ps(step, products);
        } else {
            __m256i less = _mm256_setzero_si256();
            for (size_t j = 0; j < kParts / 2; j++)
                less = _mm256_add_epi32(
                    less, _mm256_madd_epi16(two_groups(s + 192 + 32 * j + 8 * size_t(half)),
                                            pair(a.eighths + 2 * (place.pair_at + j * pitch + size_t(t)))));
            const __m256 minimum = _mm256_mul_ps(halves(s + 32 + 16 * half), _mm256_set1_ps(0.125f));
            value = _mm256_fmsub_ps(step, products, _mm256_mul_ps(minimum, _mm256_cvtepi32_ps(less)));
        }
        f[t] = _mm256_fmadd_ps(_mm256_set1_ps(a.whole[place.whole_at + t]), value, f[t]);
    }
}

template <Kind K, int NT>
void panel_tile(const Matrix& m, const Activations& a, int p, int t0, const MatmulOut& out) {
    constexpr int bytes = (kSuper<K> ? kParts : 1) * kGroupBytes<K>;
    __m256 f[2][NT];
    for (int half = 0; half < 2; half++) {
        __m256 sums[NT];  // (of a fixed place, so that they stay in registers)
        for (int t = 0; t < NT; t++) sums[t] = _mm256_setzero_ps();
        each_part<K>(m, a, p, t0,
                     [&](const uint8_t* q, const uint8_t* s, const Place& place)
                         __attribute__((always_inline)) {
                             // The next panel is asked for while this one is multiplied, half of it each
                             // time.
                             for (int b = 64 * half; b < bytes; b += 128)
                                 _mm_prefetch(reinterpret_cast<const char*>(q) + m.q_stride + b, _MM_HINT_T1);
                             if constexpr (kSuper<K>)
                                 add_block<K, NT>(q, s, half, a, place, sums);
                             else
                                 add_group<K, NT>(q, s, half, a, place.at, sums);
                         });
        for (int t = 0; t < NT; t++) f[half][t] = sums[t];
    }
    for (int t = 0; t < NT; t++) store_panel(out, m.rows, p, t0 + t, V16{f[0][t], f[1][t]});
}

template <Kind K>
void integer_matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    constexpr int widest = 4;
    for (int p = p0; p < p1; p++)
        each_tile<widest>(a,
                          [&](int t, auto width) { panel_tile<K, decltype(width)::value>(m, a, p, t, out); });
}

}  // namespace

OUTRIDER_KERNEL_TABLE(avx2_kernels, "avx2")

}  // namespace outrider
#else
namespace outrider {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace outrider
#endif
