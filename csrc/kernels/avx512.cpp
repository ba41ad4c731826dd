// AVX-512 with VNNI: one vpdpbusd multiplies 16 rows by 4 columns and adds into 32 bits.
#include "kernels/kernels.h"
#if defined(__x86_64__) && defined(__AVX512VNNI__)
#define OUTRIDER_AVX512
#include "kernels/common.h"

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

// 32 bits of memory that all rows have for an operand. An instruction can read and spread them by itself, but
// compilers give that one of its own, and so need half as many again (docs/kernels.md says what it costs).
struct Four {
    int8_t bytes[4];
};
inline const Four& four(const void* p) { return *static_cast<const Four*>(p); }

// sum += w's unsigned bytes times the signed bytes of x
inline __attribute__((always_inline)) void add_bytes(__m512i& sum, __m512i w, const Four& x) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(x));
}
// sum += w's 16-bit integers times those of x
inline __attribute__((always_inline)) void add_words(__m512i& sum, __m512i w, const Four& x) {
    asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(x));
}
inline __attribute__((always_inline)) __m512i right(__m512i a, const Four& by) {
    asm("vpsrlvd %1%{1to16%}, %0, %0" : "+v"(a) : "m"(by));
    return a;
}
inline __attribute__((always_inline)) __m512i left(__m512i a, const Four& by) {
    asm("vpsllvd %1%{1to16%}, %0, %0" : "+v"(a) : "m"(by));
    return a;
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

// How far ahead of the group at hand weights are asked for, in bytes: several tokens' work on a group takes
// longer than the hardware looks ahead, and two threads of one core share what does the looking. From memory
// they come into the second cache, and from there into the first. (Asked for straight from memory, a line
// holds one of the few places of the first cache's misses all the way, and the loads at hand wait for one.)
// Some processors forget what they are asked for while as much as they can keep in mind is under way, and the
// fewer the tokens, the faster a tile asks. So it asks again there for what may have been forgotten: a tile
// of one token twice, one of two tokens once. For the same reason few tokens need lines in the first cache
// from further ahead.
constexpr int kFar = 16384, kAgain[] = {12288, 8192};
template <int NT>
constexpr int kNear = NT <= 3 ? 4096 : 2048;

// Few tokens have two sums each, so that a chain's latency hides; Q6_K's are those of its two halves.
template <Kind K, int NT>
constexpr int kChains = K == Kind::Q6_K || NT <= 4 ? 2 : 1;

// Adds the products of one group of 32 columns and NT tokens to sum[chain][token]. Each slice goes to all
// tokens before the next is unpacked: neighbouring instructions then belong to different sums, and the
// latency of vpdpbusd hides without a deep window.
template <Kind K, int NT>
inline __attribute__((always_inline)) void multiply(const uint8_t* q, const int8_t* x, __m512i (*sum)[NT]) {
    const bool again = NT <= 2 && kForgets;
    for (int b = 0; b < kGroupBytes<K>; b += 64) {
        const char* const at = reinterpret_cast<const char*>(q) + b;
        _mm_prefetch(at + kFar, _MM_HINT_T1);
        for (int i = NT - 1; again && i < 2; i++) _mm_prefetch(at + kAgain[i], _MM_HINT_T1);
        _mm_prefetch(at + kNear<NT>, _MM_HINT_T0);
    }
    unpack<K>(q, [&](int slice, __m512i w) __attribute__((always_inline)) {
        const int c = K == Kind::Q6_K ? slice / 4 : slice % kChains<K, NT>;
#pragma GCC unroll 16
        for (int t = 0; t < NT; t++) add_bytes(sum[c][t], w, four(x + kGroup * t + 4 * slice));
    });
}

inline __m512i all(int32_t x) { return _mm512_set1_epi32(x); }

// sum[0][token] = start(token) + one group's products
template <Kind K, int NT, class Start>
inline __attribute__((always_inline)) void group_sums(const uint8_t* q, const Activations& a, size_t at,
                                                      __m512i (*sum)[NT], const Start& start) {
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++) {
        sum[0][t] = start(at + t);
        if (kChains<K, NT> == 2) sum[1][t] = _mm512_setzero_si512();
    }
    multiply<K, NT>(q, a.q + kGroup * at, sum);
#pragma GCC unroll 16
    for (int t = 0; t < NT && kChains<K, NT> == 2; t++) sum[0][t] = _mm512_add_epi32(sum[0][t], sum[1][t]);
}

// Adds one group of 32 columns to f[token]. Every integer here stays below 2^24, so that floats hold it
// exactly and it does not matter which build adds in integers and which in floats.
template <Kind K, int NT>
inline __attribute__((always_inline)) void add_group(const uint8_t* q, const uint8_t* s, const Activations& a,
                                                     size_t at, __m512* f) {
    __m512i sum[2][NT];
    group_sums<K, NT>(q, a, at, sum, [](size_t) { return _mm512_setzero_si512(); });
    const __m512 scale = halves(s);
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++) {
        const size_t i = at + t;
        __m512i whole = sum[0][t];
        if constexpr (kOffset<K> !=
                      0)  // in integers, and shifted: vpdpbusd leaves no time for another multiplication
            whole = _mm512_sub_epi32(whole, _mm512_slli_epi32(all(a.sum[i]), __builtin_ctz(kOffset<K>)));
        f[t] = _mm512_fmadd_ps(scale, _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(a.scale[i])),
                               f[t]);
        if constexpr (kMinimum<K>) f[t] = _mm512_fmadd_ps(halves(s + 32), _mm512_set1_ps(a.scaled[i]), f[t]);
    }
}

// The bytes of two groups, a 16-bit lane each.
inline __m512i two_groups(const uint8_t* p) {
    const auto wide = [](const uint8_t* from) {
        return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    };
    return _mm512_or_si512(wide(p), _mm512_slli_epi32(wide(p + 16), 16));
}
// The low 16 bits of a >> down, and above them those of b >> (16 - up). (A blend takes no time from vpdpbusd
// on Zen 4; vpternlogd, which reads three registers, does.)
inline __m512i narrow(__m512i a, const int32_t* down, __m512i b, const int32_t* up) {
    return _mm512_mask_blend_epi16(0xaaaaaaaa, right(a, four(down)), left(b, four(up)));
}

// total[token] += two groups of a superblock of Q4_K or Q5_K
template <Kind K, int NT>
inline __attribute__((always_inline)) void add_groups(const uint8_t* q, __m512i scales, const Activations& a,
                                                      size_t at, __m512i* total) {
    const size_t next = at + size_t(a.pitch);
    __m512i even[2][NT], odd[2][NT];
    group_sums<K, NT>(q, a, at, even, [&](size_t i) { return all(rounding<K>(a, i, 0)); });
    group_sums<K, NT>(q + kGroupBytes<K>, a, next, odd, [&](size_t i) { return all(rounding<K>(a, i, 1)); });
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++) {
        const auto less = [](__m512i sum) {
            return kNarrower<K> ? _mm512_srli_epi32(sum, kNarrower<K>) : sum;
        };
        const int32_t *down = a.shifts + 2 * (at + t), *up = a.shifts + 2 * (next + t) + 1;
        total[t] = _mm512_dpwssd_epi32(total[t], narrow(less(even[0][t]), down, less(odd[0][t]), up), scales);
    }
}

// total[token] += one group of Q6_K
template <int NT>
inline __attribute__((always_inline)) void add_halves(const uint8_t* q, __m512i scales, const Activations& a,
                                                      size_t at, __m512i* total) {
    __m512i sum[2][NT];
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++)
        for (int h = 0; h < 2; h++) sum[h][t] = all(a.centre[2 * (at + t) + h]);
    multiply<Kind::Q6_K, NT>(q, a.q + kGroup * at, sum);
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++) {
        const int32_t* shifts = a.shifts + 2 * (at + t);
        total[t] = _mm512_dpwssd_epi32(total[t], narrow(sum[0][t], shifts, sum[1][t], shifts + 1), scales);
    }
}

// Adds one superblock to f[token], in integers but for its own scales: vpdpwssd multiplies sums of products,
// narrowed to 16 bits, by the groups' scales, two at a time.
template <Kind K, int NT>
inline __attribute__((always_inline)) void add_block(const uint8_t* q, const uint8_t* s, const Activations& a,
                                                     const Place& place, __m512* f) {
    constexpr bool six = K == Kind::Q6_K;
    const size_t pitch = size_t(a.pitch);
    size_t at = place.at;
    __m512i total[NT], minimums[kParts / 2];
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++) total[t] = _mm512_setzero_si512();
    for (int i = 0; i < kParts; i += six ? 1 : 2) {
        if constexpr (six) {
            const auto* scales = reinterpret_cast<const __m256i*>(s + 32 + 32 * i);
            add_halves<NT>(q, _mm512_cvtepi8_epi16(_mm256_loadu_si256(scales)), a, at, total);
            at += pitch;
            q += kGroupBytes<K>;
        } else {
            add_groups<K, NT>(q, two_groups(s + 64 + 16 * i), a, at, total);
            at += 2 * pitch;
            q += 2 * kGroupBytes<K>;
        }
    }
    for (int j = 0; j < kParts / 2 && !six; j++) minimums[j] = two_groups(s + 192 + 32 * j);
    const __m512 step = _mm512_mul_ps(halves(s), _mm512_set1_ps(2 << kNarrower<K>));
    const __m512 minimum = six ? step : _mm512_mul_ps(halves(s + 32), _mm512_set1_ps(0.125f));
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++) {
        const __m512 products = _mm512_cvtepi32_ps(total[t]);
        __m512 value;
        if constexpr (six) {
            value = _mm512_mul_ps(step, products);
        } else {
            __m512i less = _mm512_setzero_si512();
#pragma GCC unroll 4
            for (size_t j = 0; j < kParts / 2; j++)
                add_words(less, minimums[j], four(a.eighths + 2 * (place.pair_at + j * pitch + size_t(t))));
            value = _mm512_fmsub_ps(step, products, _mm512_mul_ps(minimum, _mm512_cvtepi32_ps(less)));
        }
        f[t] = _mm512_fmadd_ps(_mm512_set1_ps(a.whole[place.whole_at + t]), value, f[t]);
    }
}

template <Kind K, int NT>
void panel_tile(const Matrix& m, const Activations& a, int p, int t0, const MatmulOut& out) {
    __m512 f[NT];
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++) f[t] = _mm512_setzero_ps();
    each_part<K>(m, a, p, t0,
                 [&](const uint8_t* q, const uint8_t* s, const Place& place) __attribute__((always_inline)) {
                     if constexpr (kSuper<K>)
                         add_block<K, NT>(q, s, a, place, f);
                     else
                         add_group<K, NT>(q, s, a, place.at, f);
                 });
    __m512 sums[NT];  // (Indexed by what is no constant, f itself would be written to memory all along.)
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++) sums[t] = f[t];
    for (int t = 0; t < NT; t++) store_panel(out, m.rows, p, t0 + t, V16{sums[t]});
}

template <Kind K>
void integer_matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    constexpr int widest = kBundle;
    for (int p = p0; p < p1; p++)
        each_tile<widest>(a,
                          [&](int t, auto width) { panel_tile<K, decltype(width)::value>(m, a, p, t, out); });
}

}  // namespace

OUTRIDER_KERNEL_TABLE(avx512_kernels, "avx512")

}  // namespace outrider
#else
namespace outrider {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace outrider
#endif
