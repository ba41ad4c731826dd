// AVX-512 products of two panels at once, by up to four tokens.
//
// A tile of eight tokens and one panel reads an activation from memory for every product. Processors with two
// units for 512 bits start two products in a cycle, and two loads: those of weights, scales and starts are
// then too many. Here an activation is loaded once for 32 rows. (docs/notes/kernels-log.md has what that
// gains, and other shapes.)
//
// Included by avx512.cpp, after the products of one panel. Sums are arrays that only constants index: GCC
// keeps those that a loop's variable selects in memory.
#pragma once
#include "kernels/common.h"

namespace outrider {
namespace {

constexpr int kWidePanels = kPairPanels, kWideTile = 4;

// Calls use(0), use(1) … with compile-time constants.
template <int COUNT, int FIRST = 0, class Use>
inline __attribute__((always_inline)) void for_constants(const Use& use) {
    if constexpr (FIRST < COUNT) {
        use(std::integral_constant<int, FIRST>{});
        for_constants<COUNT, FIRST + 1>(use);
    }
}

// 32 bits, in all lanes. (An instruction of its own, because both panels use them.)
inline __attribute__((always_inline)) __m512i spread(const void* p) {
    __m512i x;
    asm("vpbroadcastd %1, %0" : "=v"(x) : "m"(dword(p)));
    return x;
}

// Which groups of the next two panels a tile prefetches: those whose number is `mine` modulo kShares. The
// last kShares tiles of a pass share them out; were all asked for in one tile, memory would idle during the
// others.
struct WidePrefetch {
    static constexpr int kShares = 8;
    int mine;

    // (For the tiles before the last ones, a number that no group has.)
    WidePrefetch(int tokens, int t0)
        : mine(t0 / kWideTile + kShares - (tokens + kWideTile - 1) / kWideTile) {}
    bool has(int group) const { return group % kShares == mine; }
};
static_assert(kPairTokens >= WidePrefetch::kShares * kWideTile);

// Where a group or superblock of two panels is.
struct WideWeights {
    const uint8_t *q, *scales;
    size_t q_stride, scale_stride;
    WidePrefetch prefetch;
    int group;  // of the panels

    const uint8_t* panel_scales(int p) const { return scales + size_t(p) * scale_stride; }
};

// Sums of one group: of both panels and NT tokens, of each half with kHalfGroups.
template <WeightType W, int NT>
struct WideSums {
    static constexpr int kHalves = kHalfGroups<W> ? 2 : 1;
    __m512i of[kHalves][kWidePanels][NT];
};

template <WeightType W, int S>
inline __attribute__((always_inline)) __m512i unpacked_slice(const uint8_t* p) {
    __m512i found = _mm512_setzero_si512();
    unpack<W>(p, [&](int slice, __m512i w) __attribute__((always_inline)) {
        if (slice == S) found = w;
    });
    return found;
}

// sums += the products of the group `group` after that of `w`
template <WeightType W, int NT>
inline __attribute__((always_inline)) void multiply_wide(const WideWeights& w, int group, const int8_t* x,
                                                         WideSums<W, NT>& sums) {
    const uint8_t *q0 = w.q + group * kGroupBytes<W>, *q1 = q0 + w.q_stride;
    if (w.prefetch.has(w.group + group))
        for (int b = 0; b < kGroupBytes<W>; b += 64)
            for (const uint8_t* q : {q0, q1})
                _mm_prefetch(reinterpret_cast<const char*>(q + kWidePanels * w.q_stride) + b, _MM_HINT_T1);
    for_constants<8>([&](auto slice) __attribute__((always_inline)) {
        constexpr int half = kHalfGroups<W> ? slice() / 4 : 0;
        const __m512i w0 = unpacked_slice<W, slice()>(q0), w1 = unpacked_slice<W, slice()>(q1);
        for_constants<NT>([&](auto t) __attribute__((always_inline)) {
            const __m512i a = spread(x + kGroup * t() + 4 * slice());
            __m512i &first = sums.of[half][0][t()], &second = sums.of[half][1][t()];
            first = _mm512_dpbusd_epi32(first, w0, a);
            second = _mm512_dpbusd_epi32(second, w1, a);
        });
    });
}

// What the sums of a group begin with, whose number modulo 2 is ODD.
template <WeightType W, int ODD, int NT>
inline __attribute__((always_inline)) void start_wide(const Activations& a, size_t at,
                                                      WideSums<W, NT>& sums) {
    constexpr int extra = kExtraShift<W>;
    for_constants<NT>([&](auto t) __attribute__((always_inline)) {
        const auto start = [&](int half) {
            if constexpr (!kHalfGroups<W>)
                return rounded_start<W>(a, at + t(), ODD);
            else if constexpr (extra != 0)
                return ODD * ((1 << extra) - 1);
            else
                return half_start<W>(a, at + t(), half, ODD);
        };
        for_constants<WideSums<W, NT>::kHalves>([&](auto half) __attribute__((always_inline)) {
            sums.of[half()][0][t()] = sums.of[half()][1][t()] = broadcast(start(half()));
        });
    });
}

// total[panel] += pairs of sums, shifted and narrowed, times their scales
inline __attribute__((always_inline)) void add_narrowed(__m512i* total, const __m512i* low,
                                                        const int32_t* down, const __m512i* high,
                                                        const int32_t* up, const __m512i* scales) {
    const __m512i by = spread(down), back = spread(up);
    for_constants<kWidePanels>([&](auto p) __attribute__((always_inline)) {
        const __m512i pair = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srlv_epi32(low[p()], by),
                                                     _mm512_sllv_epi32(high[p()], back));
        total[p()] = _mm512_dpwssd_epi32(total[p()], pair, scales[p()]);
    });
}

// add_group_pair for two panels: groups 2 `pair` and 2 `pair` + 1 of a superblock.
template <WeightType W, int NT>
inline __attribute__((always_inline)) void add_wide_pair(const WideWeights& w, int pair, const Activations& a,
                                                         size_t at, __m512i (*total)[kWidePanels]) {
    constexpr int extra = kExtraShift<W>;
    const size_t next = at + size_t(a.tile_tokens);
    WideSums<W, NT> even, odd;
    start_wide<W, 0>(a, at, even);
    multiply_wide<W, NT>(w, 2 * pair, a.q + kGroup * at, even);
    start_wide<W, 1>(a, next, odd);
    multiply_wide<W, NT>(w, 2 * pair + 1, a.q + kGroup * next, odd);
    const __m512i scales[] = {load_group_scales<W>(w.panel_scales(0), 2 * pair),
                              load_group_scales<W>(w.panel_scales(1), 2 * pair)};
    for_constants<NT>([&](auto t) __attribute__((always_inline)) {
        const auto shifted = [](__m512i sum) { return extra ? _mm512_srli_epi32(sum, extra) : sum; };
        const __m512i low[] = {shifted(even.of[0][0][t()]), shifted(even.of[0][1][t()])},
                      high[] = {shifted(odd.of[0][0][t()]), shifted(odd.of[0][1][t()])};
        add_narrowed(total[t()], low, a.shifts + 2 * (at + t()), high, a.shifts + 2 * (next + t()) + 1,
                     scales);
    });
}

// add_halves for two panels: group `group` of a superblock.
template <WeightType W, int ODD, int NT>
inline __attribute__((always_inline)) void add_wide_halves(const WideWeights& w, int group,
                                                           const Activations& a, size_t at,
                                                           __m512i (*total)[kWidePanels]) {
    constexpr int extra = kExtraShift<W>;
    WideSums<W, NT> sums;
    start_wide<W, ODD>(a, at, sums);
    multiply_wide<W, NT>(w, group, a.q + kGroup * at, sums);
    const __m512i scales[] = {load_half_scales<W>(w.panel_scales(0), group),
                              load_half_scales<W>(w.panel_scales(1), group)};
    for_constants<NT>([&](auto t) __attribute__((always_inline)) {
        const int32_t* starts = a.centred_start + 2 * (at + t());
        const auto centred = [&](int half, int p) {
            const __m512i sum = sums.of[half][p][t()];
            return extra ? plus(_mm512_srai_epi32(sum, extra), dword(starts + half)) : sum;
        };
        const __m512i low[] = {centred(0, 0), centred(0, 1)}, high[] = {centred(1, 0), centred(1, 1)};
        add_narrowed(total[t()], low, a.shifts + 2 * (at + t()), high, a.shifts + 2 * (at + t()) + 1, scales);
    });
}

// add_superblock for two panels.
template <WeightType W, int NT>
inline __attribute__((always_inline)) void add_wide_superblock(const WideWeights& w, const Activations& a,
                                                               const ActivationIndex& index,
                                                               __m512 (*f)[kWidePanels]) {
    __m512i total[NT][kWidePanels];
    for_constants<NT>([&](auto t) { total[t()][0] = total[t()][1] = _mm512_setzero_si512(); });
    size_t at = index.group;
    const size_t step = size_t(a.tile_tokens);
#pragma GCC unroll 1
    for (int pair = 0; pair < kSuperblockGroups / 2; pair++, at += 2 * step) {
        if constexpr (kHalfGroups<W>) {
            add_wide_halves<W, 0, NT>(w, 2 * pair, a, at, total);
            add_wide_halves<W, 1, NT>(w, 2 * pair + 1, a, at + step, total);
        } else {
            add_wide_pair<W, NT>(w, pair, a, at, total);
        }
    }
    for_constants<kWidePanels>([&](auto p) __attribute__((always_inline)) {
        const uint8_t* s = w.panel_scales(p());
        __m512i minimums[kMinimumParts<W> + 1];
        for_constants<kMinimumParts<W>>([&](auto part) { minimums[part()] = load_minimums<W>(s, part()); });
        const __m512 scale = superblock_scales<W>(s), minimum = superblock_minimums<W>(s);
        for_constants<NT>([&](auto t) __attribute__((always_inline)) {
            f[t()][p()] = add_scaled_superblock<W>(
                total[t()][p()], scale, minimum, [&](int part) { return minimums[part]; }, a, index, t(),
                f[t()][p()]);
        });
    });
}

// add_group for two panels.
template <WeightType W, int NT>
inline __attribute__((always_inline)) void add_wide_group(const WideWeights& w, const Activations& a,
                                                          size_t at, __m512 (*f)[kWidePanels]) {
    WideSums<W, NT> sums;
    for_constants<NT>([&](auto t) { sums.of[0][0][t()] = sums.of[0][1][t()] = _mm512_setzero_si512(); });
    multiply_wide<W, NT>(w, 0, a.q + kGroup * at, sums);
    for_constants<kWidePanels>([&](auto p) __attribute__((always_inline)) {
        const uint8_t* s = w.panel_scales(p());
        const __m512 scale = load_scales<W>(s), second = load_second<W>(s);
        for_constants<NT>([&](auto t) __attribute__((always_inline)) {
            f[t()][p()] = add_scaled_group<W>(sums.of[0][p()][t()], scale, second, a, at + t(), f[t()][p()]);
        });
    });
}

// Panels [p, p + 2) times NT tokens.
template <WeightType W, int NT>
void wide_tile(const Matrix& m, const Activations& a, int p, int t0, const MatmulOut& out) {
    const WidePrefetch prefetch(a.tokens, t0);
    int group = 0;
    __m512 f[NT][kWidePanels];
    for_constants<NT>([&](auto t) { f[t()][0] = f[t()][1] = _mm512_setzero_ps(); });
    for_groups<W>(m, a, p, t0,
                  [&](const uint8_t* q, const uint8_t* s, const ActivationIndex& index)
                      __attribute__((always_inline)) {
                          const WideWeights w{q, s, m.q_stride, m.scale_stride, prefetch, group};
                          group += kIsSuperblock<W> ? kSuperblockGroups : 1;
                          if constexpr (kIsSuperblock<W>)
                              add_wide_superblock<W, NT>(w, a, index, f);
                          else
                              add_wide_group<W, NT>(w, a, index.group, f);
                      });
    for_constants<NT>([&](auto t) {
        for_constants<kWidePanels>(
            [&](auto i) { store_panel(out, m.rows, p + i(), t0 + t(), V16{f[t()][i()]}); });
    });
}

template <WeightType W>
void integer_matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    int p = p0;
    if (a.tokens >= kPairTokens)
        for (; p + kWidePanels <= p1; p += kWidePanels)
            for_register_tiles<kWideTile>(
                a, [&](int t, auto width) { wide_tile<W, decltype(width)::value>(m, a, p, t, out); });
    for (; p < p1; p++)
        for_register_tiles<kTokenTile>(
            a, [&](int t, auto width) { panel_tile<W, decltype(width)::value>(m, a, p, t, out); });
}

}  // namespace
}  // namespace outrider
