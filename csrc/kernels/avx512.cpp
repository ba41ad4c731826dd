// AVX-512 with VNNI: one vpdpbusd multiplies 16 rows by 4 columns and adds into 32 bits.
#include "kernels/kernels.h"
#if defined(__x86_64__) && defined(__AVX512VNNI__)
#define OUTRIDER_AVX512
#include "kernels/avx512_unpack.h"

namespace outrider {
namespace {

// Ten tokens fill the registers; eight leave some free for weights and cost no more for each token, so that
// only batches that would need a second tile for one or two tokens use ten.
constexpr int kTokenTile = 10, kUsualTokenTile = 8;

// How far ahead weights are prefetched, in bytes. The hardware prefetcher does not look far enough ahead when
// several tokens use each group, and the two threads of a core share it. Weights are prefetched from memory
// into the second-level cache, and later from there into the first. (A line that is prefetched from memory
// into the first-level cache occupies one of its few miss buffers all the time, which the current loads then
// wait for.) Some processors drop prefetches while their miss buffers are full (kDropsPrefetches), and the
// fewer the tokens, the faster prefetches are issued. There, a tile of one token repeats them twice, one of
// two tokens once. For the same reason, tiles of few tokens prefetch further ahead into the first-level
// cache.
constexpr int kPrefetchL2 = 16384, kPrefetchL2Again[] = {12288, 8192};
template <int NT>
constexpr int kPrefetchL1 = NT <= 3 ? 4096 : 2048;

// Sums of a token. Tiles of few tokens have two, so that the latency of one addition hides behind others;
// with kHalfGroups there is one for each half of a group.
template <WeightType W, int NT>
constexpr int kChains = kHalfGroups<W> || NT <= 4 ? 2 : 1;

// Adds the products of one group of 32 columns and NT tokens to sum[chain][token]. Each slice is multiplied
// by all tokens before the next is unpacked: neighbouring instructions then add to different sums, so that
// the latency of vpdpbusd hides without a deep out-of-order window.
template <WeightType W, int NT>
inline __attribute__((always_inline)) void multiply(const uint8_t* q, const int8_t* x, __m512i (*sum)[NT]) {
    const bool again = NT <= 2 && kDropsPrefetches;
    for (int b = 0; b < kGroupBytes<W>; b += 64) {
        const char* const at = reinterpret_cast<const char*>(q) + b;
        _mm_prefetch(at + kPrefetchL2, _MM_HINT_T1);
        for (int i = NT - 1; again && i < 2; i++) _mm_prefetch(at + kPrefetchL2Again[i], _MM_HINT_T1);
        _mm_prefetch(at + kPrefetchL1<NT>, _MM_HINT_T0);
    }
    unpack<W>(q, [&](int slice, __m512i w) __attribute__((always_inline)) {
        const int c = kHalfGroups<W> ? slice / 4 : slice % kChains<W, NT>;
#pragma GCC unroll 16
        for (int t = 0; t < NT; t++) add_bytes(sum[c][t], w, dword(x + kGroup * t + 4 * slice));
    });
}

// sum[0][token] = start(token) + one group's products
template <WeightType W, int NT, class Start>
inline __attribute__((always_inline)) void group_sums(const uint8_t* q, const Activations& a, size_t at,
                                                      __m512i (*sum)[NT], const Start& start) {
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++) {
        sum[0][t] = start(at + t);
        if (kChains<W, NT> == 2) sum[1][t] = _mm512_setzero_si512();
    }
    multiply<W, NT>(q, a.q + kGroup * at, sum);
#pragma GCC unroll 16
    for (int t = 0; t < NT && kChains<W, NT> == 2; t++) sum[0][t] = _mm512_add_epi32(sum[0][t], sum[1][t]);
}

// f + one group's products, scaled; `second` is the group's minimums or its zero points. Every integer stays
// below 2^24, so that a float holds it exactly, and kernels may add in integers or in floats with the same
// result.
template <WeightType W>
inline __attribute__((always_inline)) __m512 add_scaled_group(__m512i products, __m512 scale, __m512 second,
                                                              const Activations& a, size_t at, __m512 f) {
    // The offset is a power of two: a shift, because vpdpbusd occupies the multipliers all the time.
    if constexpr (kOffset<W> != 0)
        products =
            _mm512_sub_epi32(products, _mm512_slli_epi32(broadcast(a.sum[at]), __builtin_ctz(kOffset<W>)));
    __m512 exact = _mm512_cvtepi32_ps(products);
    if constexpr (kHasZeroPoint<W>) exact = _mm512_fnmadd_ps(second, _mm512_set1_ps(float(a.sum[at])), exact);
    f = _mm512_fmadd_ps(scale, _mm512_mul_ps(exact, _mm512_set1_ps(a.scale[at])), f);
    if constexpr (kHasMinimum<W>) f = _mm512_fmadd_ps(second, _mm512_set1_ps(a.scaled_sum[at]), f);
    return f;
}

// The minimums of a group, or its zero points.
template <WeightType W>
inline __m512 load_second(const uint8_t* s) {
    if constexpr (kHasZeroPoint<W>) return load_zeros(s);
    if constexpr (kHasMinimum<W>) return load_binary16(s + 32);
    return _mm512_setzero_ps();
}

// Adds one group of 32 columns to f[token].
template <WeightType W, int NT>
inline __attribute__((always_inline)) void add_group(const uint8_t* q, const uint8_t* s, const Activations& a,
                                                     size_t at, __m512* f) {
    __m512i sum[2][NT];
    group_sums<W, NT>(q, a, at, sum, [](size_t) { return _mm512_setzero_si512(); });
    const __m512 scale = load_scales<W>(s), second = load_second<W>(s);
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++) f[t] = add_scaled_group<W>(sum[0][t], scale, second, a, at + t, f[t]);
}

// total[token] += two groups of a superblock, whose groups have one scale each
template <WeightType W, int NT>
inline __attribute__((always_inline)) void add_group_pair(const uint8_t* q, __m512i scales,
                                                          const Activations& a, size_t at, __m512i* total) {
    const size_t next = at + size_t(a.tile_tokens);
    __m512i even[2][NT], odd[2][NT];
    group_sums<W, NT>(q, a, at, even, [&](size_t i) { return broadcast(rounded_start<W>(a, i, 0)); });
    group_sums<W, NT>(q + kGroupBytes<W>, a, next, odd,
                      [&](size_t i) { return broadcast(rounded_start<W>(a, i, 1)); });
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++) {
        const auto shifted = [](__m512i sum) {
            return kExtraShift<W> ? _mm512_srli_epi32(sum, kExtraShift<W>) : sum;
        };
        const int32_t *down = a.shifts + 2 * (at + t), *up = a.shifts + 2 * (next + t) + 1;
        total[t] = _mm512_dpwssd_epi32(
            total[t], narrow_pair(shifted(even[0][t]), down, shifted(odd[0][t]), up), scales);
    }
}

// total[token] += group i of a superblock, whose halves have scales of their own. With an extra shift, what
// centred_start stands for (half_start) is added after that: (2^e c + odd + p) >> e is c + ((odd + p) >> e).
template <WeightType W, int NT>
inline __attribute__((always_inline)) void add_halves(const uint8_t* q, __m512i scales, const Activations& a,
                                                      size_t at, int i, __m512i* total) {
    constexpr int extra = kExtraShift<W>;
    __m512i sum[2][NT];
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++)
        for (int h = 0; h < 2; h++)
            sum[h][t] = broadcast(extra ? i % 2 * ((1 << extra) - 1) : half_start<W>(a, at + t, h, i % 2));
    multiply<W, NT>(q, a.q + kGroup * at, sum);
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++) {
        const int32_t *shifts = a.shifts + 2 * (at + t), *starts = a.centred_start + 2 * (at + t);
        for (int h = 0; h < 2 && extra; h++)
            sum[h][t] = plus(_mm512_srai_epi32(sum[h][t], extra), dword(starts + h));
        total[t] =
            _mm512_dpwssd_epi32(total[t], narrow_pair(sum[0][t], shifts, sum[1][t], shifts + 1), scales);
    }
}

// What a superblock's sums are multiplied by and added to, for a panel: its scales and minimums (dmin), and
// the minimums of its groups, by pairs of groups or the halves of a group.
template <WeightType W>
constexpr int kMinimumParts = !kHasMinimum<W>       ? 0
                              : kHasHalfMinimums<W> ? kSuperblockGroups
                                                    : kSuperblockGroups / 2;
template <WeightType W>
inline __m512 superblock_scales(const uint8_t* s) {
    return _mm512_mul_ps(load_binary16(s), _mm512_set1_ps(kProductScale<W>));
}
template <WeightType W>
inline __m512 superblock_minimums(const uint8_t* s) {
    if constexpr (!kHasMinimum<W>) return _mm512_setzero_ps();
    return _mm512_mul_ps(load_binary16(s + 32), _mm512_set1_ps(kMinimumScale<W>));
}
template <WeightType W>
inline __m512i load_minimums(const uint8_t* s, int part) {
    return kHasHalfMinimums<W> ? load_half_minimums(s, part) : load_group_pair(s + 192 + 32 * part);
}

// f + a superblock, of which `total` is the integer sum, for the token `t` after that of `index`.
// minimums(part) is load_minimums of the superblock.
template <WeightType W, class Minimums>
inline __attribute__((always_inline)) __m512 add_scaled_superblock(__m512i total, __m512 scale,
                                                                   __m512 minimum, const Minimums& minimums,
                                                                   const Activations& a,
                                                                   const ActivationIndex& index, int t,
                                                                   __m512 f) {
    const __m512 products = _mm512_cvtepi32_ps(total);
    __m512 value;
    if constexpr (!kHasMinimum<W>) {
        value = _mm512_mul_ps(scale, products);
    } else {
        __m512i minimum_sum = _mm512_setzero_si512();
        const int16_t* sums =
            kHasHalfMinimums<W> ? a.half_sums_q4 + 2 * index.group : a.min_sums_q3 + 2 * index.pair;
#pragma GCC unroll 8
        for (int part = 0; part < kMinimumParts<W>; part++)
            add_words(minimum_sum, minimums(part),
                      dword(sums + 2 * (size_t(part) * size_t(a.tile_tokens) + size_t(t))));
        value = _mm512_fmsub_ps(scale, products, _mm512_mul_ps(minimum, _mm512_cvtepi32_ps(minimum_sum)));
    }
    return _mm512_fmadd_ps(_mm512_set1_ps(a.superblock_scale[index.superblock + size_t(t)]), value, f);
}

// Adds one superblock to f[token]. Only its own scales are floats: vpdpwssd multiplies the groups' sums,
// narrowed to 16 bits, by their integer scales, two groups at a time.
template <WeightType W, int NT>
inline __attribute__((always_inline)) void add_superblock(const uint8_t* q, const uint8_t* s,
                                                          const Activations& a, const ActivationIndex& index,
                                                          __m512* f) {
    constexpr bool half_groups = kHalfGroups<W>;
    const size_t next_group = size_t(a.tile_tokens);
    size_t at = index.group;
    __m512i total[NT], minimums[kMinimumParts<W> + 1];
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++) total[t] = _mm512_setzero_si512();
    for (int i = 0; i < kSuperblockGroups; i += half_groups ? 1 : 2) {
        if constexpr (half_groups) {
            add_halves<W, NT>(q, load_half_scales<W>(s, i), a, at, i, total);
            at += next_group;
            q += kGroupBytes<W>;
        } else {
            add_group_pair<W, NT>(q, load_group_scales<W>(s, i), a, at, total);
            at += 2 * next_group;
            q += 2 * kGroupBytes<W>;
        }
    }
    for (int part = 0; part < kMinimumParts<W>; part++) minimums[part] = load_minimums<W>(s, part);
    const __m512 scale = superblock_scales<W>(s), minimum = superblock_minimums<W>(s);
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++)
        f[t] = add_scaled_superblock<W>(
            total[t], scale, minimum, [&](int part) { return minimums[part]; }, a, index, t, f[t]);
}

template <WeightType W, int NT>
void panel_tile(const Matrix& m, const Activations& a, int p, int t0, const MatmulOut& out) {
    __m512 f[NT];
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++) f[t] = _mm512_setzero_ps();
    for_groups<W>(m, a, p, t0,
                  [&](const uint8_t* q, const uint8_t* s, const ActivationIndex& index)
                      __attribute__((always_inline)) {
                          if constexpr (kIsSuperblock<W>)
                              add_superblock<W, NT>(q, s, a, index, f);
                          else
                              add_group<W, NT>(q, s, a, index.group, f);
                      });
    // A copy, because the loop below indexes it by a variable, and would keep f itself in memory.
    __m512 sums[NT];
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++) sums[t] = f[t];
    for (int t = 0; t < NT; t++) store_panel(out, m.rows, p, t0 + t, V16{sums[t]});
}

}  // namespace
}  // namespace outrider

#include "kernels/avx512_wide.h"

namespace outrider {
OUTRIDER_KERNEL_TABLE(avx512_kernels, "avx512")

}  // namespace outrider
#else
namespace outrider {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace outrider
#endif
