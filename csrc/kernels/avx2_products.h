// The integer matrix products in 256-bit registers: everything but the multiplication of bytes, which
// avx2.cpp and avxvnni.cpp do in different ways. A file that includes this defines kSigned before and
// `multiply` after.
#pragma once
#include "kernels/avx2_unpack.h"

namespace outrider {
namespace {

constexpr int kTokenTile = 10, kUsualTokenTile = 8;
// Tokens that are multiplied by both halves of a panel at once: eight registers of sums, so that a weight is
// unpacked once for four tokens, and an activation loaded once for 16 rows.
#if defined(OUTRIDER_EMULATED_AVXVNNI)
constexpr int kRegisterTile = 2;  // half the time to compile
#else
constexpr int kRegisterTile = 4;
#endif

// sum[part][token] = start(part, token) + the products of one group of 32 columns and NT tokens; with
// kHalfGroups the halves are two parts.
template <WeightType W, int NT, class Start>
void multiply(const uint8_t* lines, const int8_t* x, I16 (*sum)[NT], const Start& start);

// How far ahead of the products weights are prefetched into the second cache, in bytes. (4 to 16 kB, or
// into the first cache, made no difference on a Zen 3: docs/notes/kernels-log.md.)
constexpr int kPrefetchAhead = 16384;

// `multiply`, and a prefetch of as many bytes as it reads. Those of a whole superblock at once would be
// dropped in part: a processor waits for so many lines only.
template <WeightType W, int NT, class Start>
inline __attribute__((always_inline)) void prefetch_and_multiply(const uint8_t* lines, const int8_t* x,
                                                                 I16 (*sum)[NT], const Start& start) {
    for (int b = 0; b < kGroupBytes<W>; b += 64)
        _mm_prefetch(reinterpret_cast<const char*>(lines) + b + kPrefetchAhead, _MM_HINT_T1);
    multiply<W, NT>(lines, x, sum, start);
}

// The offset of weights as `unpack` gives them.
template <WeightType W>
constexpr int kUnpackedOffset = kSigned<W> ? 0 : kOffset<W>;

// x times OFFSET, by shifts
template <int OFFSET>
inline __m256i times(__m256i x) {
    constexpr int low = __builtin_ctz(OFFSET), rest = OFFSET & (OFFSET - 1);
    const __m256i shifted = _mm256_slli_epi32(x, low);
    if constexpr (rest == 0) return shifted;
    static_assert((rest & (rest - 1)) == 0);
    return _mm256_add_epi32(shifted, _mm256_slli_epi32(x, __builtin_ctz(rest)));
}

// Adds one group to f[token]. Every integer stays below 2^24, so that a float holds it exactly, and kernels
// may add in integers or in floats with the same result.
template <WeightType W, int NT>
inline __attribute__((always_inline)) void add_group(const uint8_t* q, const uint8_t* s, const Activations& a,
                                                     size_t at, V16* f) {
    I16 sum[1][NT];
    prefetch_and_multiply<W, NT>(q, a.q + kGroup * at, sum, [](int, int) { return _mm256_setzero_si256(); });
    const V16 scale = load_scales<W>(s);
#pragma GCC unroll 8
    for (int t = 0; t < NT; t++) {
        const size_t i = at + size_t(t);
        I16 products = sum[0][t];
        if constexpr (kUnpackedOffset<W> != 0)
            products = minus(products, times<kUnpackedOffset<W>>(broadcast4(a.sum + i)));
        V16 exact = to_floats(products);
        if constexpr (kHasZeroPoint<W>) {
            const V16 zeros = load_zeros<W>(s);
            const __m256 sums = _mm256_cvtepi32_ps(broadcast4(a.sum + i));
            exact = {_mm256_fnmadd_ps(zeros.a, sums, exact.a), _mm256_fnmadd_ps(zeros.b, sums, exact.b)};
        }
        f[t] = vfma(scale, vmul(exact, vset(a.scale[i])), f[t]);
        if constexpr (kHasMinimum<W>)
            f[t] = vfma(vload(reinterpret_cast<const uint16_t*>(s + 32)), vset(a.scaled_sum[i]), f[t]);
    }
}

// The rounding of a group's sum before it is shifted, less the offset (common.h's rounded_start); odd is the
// group's number modulo 2.
template <WeightType W>
inline __m256i start_of_group(const Activations& a, size_t at, int odd) {
    constexpr int extra = kExtraShift<W>, offset = kUnpackedOffset<W>;
    __m256i start = broadcast4(a.rounding + at);
    if constexpr (extra) {
        start = _mm256_slli_epi32(start, extra);
        if (odd) start = _mm256_add_epi32(start, _mm256_set1_epi32((1 << extra) - 1));
    }
    if constexpr (offset) start = _mm256_sub_epi32(start, times<offset>(broadcast4(a.sum + at)));
    return start;
}

// Logical shifts of all lanes by *by + MORE.
template <int MORE = 0>
inline __m256i shift_by(const int32_t* by) {
    const __m256i count = broadcast4(by);
    return MORE ? _mm256_add_epi32(count, _mm256_set1_epi32(MORE)) : count;
}
inline I16 shifted_right(const I16& x, __m256i by) {
    return {_mm256_srlv_epi32(x.a, by), _mm256_srlv_epi32(x.b, by)};
}
inline I16 shifted_left(const I16& x, __m256i by) {
    return {_mm256_sllv_epi32(x.a, by), _mm256_sllv_epi32(x.b, by)};
}
// total += scales times: the low 16 bits of each lane of `low`, the high 16 bits of `high`
inline void add_pair(I16& total, const I16& low, const I16& high, const I16& scales) {
    const I16 words{_mm256_blend_epi16(low.a, high.a, 0xaa), _mm256_blend_epi16(low.b, high.b, 0xaa)};
    total = plus(total, multiply_words(words, scales));
}

// total[token] += two groups of a superblock, whose groups have one scale each
template <WeightType W, int NT>
inline __attribute__((always_inline)) void add_group_pair(const uint8_t* lines, const uint8_t* s, int i,
                                                          const Activations& a, size_t at, I16* total) {
    constexpr int extra = kExtraShift<W>;
    const size_t next = at + size_t(a.tile_tokens);
    I16 even[1][NT], odd[1][NT];
    prefetch_and_multiply<W, NT>(lines, a.q + kGroup * at, even,
                                 [&](int, int t) { return start_of_group<W>(a, at + size_t(t), 0); });
#pragma GCC unroll 8
    for (int t = 0; t < NT; t++)
        even[0][t] = shifted_right(even[0][t], shift_by<extra>(a.shifts + 2 * (at + size_t(t))));
    prefetch_and_multiply<W, NT>(lines + kGroupBytes<W>, a.q + kGroup * next, odd,
                                 [&](int, int t) { return start_of_group<W>(a, next + size_t(t), 1); });
    const I16 scales = load_group_scales<W>(s, i);
#pragma GCC unroll 8
    for (int t = 0; t < NT; t++)
        add_pair(total[t], even[0][t],
                 shifted_left(odd[0][t], shift_by<-extra>(a.shifts + 2 * (next + size_t(t)) + 1)), scales);
}

// total[token] += group i of a superblock, whose halves have scales of their own. With an extra shift, what
// centred_start stands for (half_start) is added after that: (2^e c + odd + p) >> e is c + ((odd + p) >> e).
template <WeightType W, int NT>
inline __attribute__((always_inline)) void add_halves(const uint8_t* lines, const uint8_t* s, int i,
                                                      const Activations& a, size_t at, I16* total) {
    constexpr int extra = kExtraShift<W>;
    const auto start_of_half = [&](int half, int t) {
        const size_t cell = at + size_t(t);
        return kHasMinimum<W> ? broadcast4(a.rounding + cell)
                              : broadcast4(a.centred_start + 2 * cell + size_t(half));
    };
    I16 sum[2][NT];
    prefetch_and_multiply<W, NT>(lines, a.q + kGroup * at, sum, [&](int half, int t) {
        return extra ? _mm256_set1_epi32(i % 2 * ((1 << extra) - 1)) : start_of_half(half, t);
    });
    const I16 scales = load_half_scales<W>(s, i);
#pragma GCC unroll 8
    for (int t = 0; t < NT; t++) {
        const int32_t* shifts = a.shifts + 2 * (at + size_t(t));
        for (int h = 0; h < 2 && extra; h++)
            sum[h][t] = plus(each(sum[h][t], [](__m256i x) { return _mm256_srai_epi32(x, extra); }),
                             start_of_half(h, t));
        add_pair(total[t], shifted_right(sum[0][t], shift_by(shifts)),
                 shifted_left(sum[1][t], shift_by(shifts + 1)), scales);
    }
}

// sum[token] = the products of a superblock's minimums with the sums of the activations
template <WeightType W, int NT>
inline __attribute__((always_inline)) void minimum_sums(const uint8_t* s, const Activations& a,
                                                        const ActivationIndex& index, I16* sum) {
    constexpr int parts = kHasHalfMinimums<W> ? kSuperblockGroups : kSuperblockGroups / 2;
    const int16_t* x =
        kHasHalfMinimums<W> ? a.half_sums_q4 + 2 * index.group : a.min_sums_q3 + 2 * index.pair;
#pragma GCC unroll 8
    for (int j = 0; j < parts; j++, x += 2 * a.tile_tokens) {
        const I16 minimums =
            kHasHalfMinimums<W> ? load_half_minimums(s, j) : load_group_pair(s + 192 + 32 * j);
#pragma GCC unroll 8
        for (int t = 0; t < NT; t++) {
            const __m256i v = broadcast4(x + 2 * t);
            const I16 products = multiply_words(minimums, I16{v, v});
            sum[t] = j == 0 ? products : plus(sum[t], products);
        }
    }
}

// Adds one superblock to f[token]. Only its own scales are floats.
template <WeightType W, int NT>
inline __attribute__((always_inline)) void add_superblock(const uint8_t* q, const uint8_t* s,
                                                          const Activations& a, const ActivationIndex& index,
                                                          V16* f) {
    constexpr bool half_groups = kHalfGroups<W>;
    constexpr int step = half_groups ? 1 : 2;
    size_t at = index.group;
    I16 total[NT];
#pragma GCC unroll 8
    for (int t = 0; t < NT; t++) total[t] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int i = 0; i < kSuperblockGroups; i += step) {
        if constexpr (half_groups)
            add_halves<W, NT>(q, s, i, a, at, total);
        else
            add_group_pair<W, NT>(q, s, i, a, at, total);
        at += step * size_t(a.tile_tokens);
        q += step * kGroupBytes<W>;
    }
    I16 minimums[NT];
    V16 minimum{};
    if constexpr (kHasMinimum<W>) {
        minimum_sums<W, NT>(s, a, index, minimums);
        minimum = vmul(vload(reinterpret_cast<const uint16_t*>(s + 32)), vset(-kMinimumScale<W>));
    }
    const V16 scale = vmul(vload(reinterpret_cast<const uint16_t*>(s)), vset(kProductScale<W>));
#pragma GCC unroll 8
    for (int t = 0; t < NT; t++) {
        const V16 products = to_floats(total[t]);
        V16 value;
        if constexpr (kHasMinimum<W>)
            value = vfma(scale, products, vmul(minimum, to_floats(minimums[t])));
        else
            value = vmul(scale, products);
        f[t] = vfma(vset(a.superblock_scale[index.superblock + size_t(t)]), value, f[t]);
    }
}

template <WeightType W, int NT>
void panel_tile(const Matrix& m, const Activations& a, int p, int t0, const MatmulOut& out) {
    V16 f[NT];
#pragma GCC unroll 8
    for (int t = 0; t < NT; t++) f[t] = vset(0.0f);
    for_groups<W>(m, a, p, t0,
                  [&](const uint8_t* q, const uint8_t* s, const ActivationIndex& index)
                      __attribute__((always_inline)) {
                          if constexpr (kIsSuperblock<W>)
                              add_superblock<W, NT>(q, s, a, index, f);
                          else
                              add_group<W, NT>(q, s, a, index.group, f);
                      });
#pragma GCC unroll 8
    for (int t = 0; t < NT; t++) store_panel(out, m.rows, p, t0 + t, f[t]);
}

template <WeightType W>
void integer_matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    for (int p = p0; p < p1; p++)
        for_register_tiles<kRegisterTile>(
            a, [&](int t, auto width) { panel_tile<W, decltype(width)::value>(m, a, p, t, out); });
}

}  // namespace
}  // namespace outrider
