// AMX with AVX-512: one tile instruction multiplies a group of 16 rows by 16 tokens; everything but the
// integer products of wide passes is that of AVX-512.
//
// A panel's group, unpacked, is a tile as it lies (8 slices are 8 rows of 64 bytes), and so are the
// activations of a token tile. The sums of a token are then one vector of 16 rows, in the lanes that all
// other kernels have them in. No tile sums over more than what has one scale, because such sums are rounded
// (docs/kernels.md), so that tiles are half full (32 columns), or a quarter (16).
#include "kernels/kernels.h"
#if defined(__x86_64__) && defined(__AVX512VNNI__) && defined(__AMX_INT8__)
#define OUTRIDER_AVX512
#pragma GCC diagnostic ignored "-Wunused-function"  // the norms, attention … that avx512.cpp compiles
#include "kernels/amx_tiles.h"
#include "kernels/avx512_unpack.h"

namespace outrider {
namespace {

constexpr int kTokenTile = kTileRows, kUsualTokenTile = kTileRows;
constexpr int kRunGroups = 8;          // groups that are unpacked, and added, together: a superblock
constexpr int kBlockTiles = 16;        // token tiles that use what is unpacked
constexpr int kPrefetchAhead = 16384;  // of weights, in bytes, into the second cache (as in avx512.cpp)

// Columns whose products one tile instruction adds, and how many of its results a group has.
template <WeightType W>
constexpr int kParts = kHalfGroups<W> ? 2 : 1;

// What one panel and some token tiles need, in the first cache. Weights and products are there twice: tile
// instructions work on the next while vector instructions read the last.
template <WeightType W>
struct Scratch {
    alignas(64) uint8_t weights[2][kRunGroups * kPanel * kGroup];
    alignas(64) int32_t products[2][kRunGroups * kParts<W> * kTileSums];
    alignas(64) float results[kBlockTiles * kTileRows][kPanel];
};

// What is taken from the unpacked integers, so that they fit signed bytes. It is their offset, which then
// need not be taken from the products, except for bytes with a zero point.
template <WeightType W>
constexpr int kCentre = kLargest<W> - kOffset<W> <= 127 ? kOffset<W> : 128;

// A group's weights as signed bytes.
template <WeightType W>
inline void unpack_signed(const uint8_t* q, uint8_t* weights) {
    static_assert(kCentre<W> <= 128 && kLargest<W> <= 127 + kCentre<W>);
    static_assert(kCentre<W> == kOffset<W> || kHasZeroPoint<W>);
    for (int b = 0; b < kGroupBytes<W>; b += 64)
        _mm_prefetch(reinterpret_cast<const char*>(q) + b + kPrefetchAhead, _MM_HINT_T1);
    unpack<W>(q, [&](int slice, __m512i w) __attribute__((always_inline)) {
        if constexpr (kCentre<W> != 0) w = _mm512_sub_epi8(w, _mm512_set1_epi8(char(kCentre<W>)));
        _mm512_store_si512(weights + 64 * slice, w);
    });
}

// The products of one run of groups and one token tile, begun two groups at a time between the vector
// instructions of the run or tile before. Pointers are to what the next one reads and writes.
template <WeightType W>
struct Products {
    static constexpr int columns = kGroup / kParts<W>;

    const Tiles* tiles;
    size_t step;  // from group to group of the activations
    const int8_t* activations;
    const uint8_t* weights;
    int32_t* sums;
    int groups;  // that are left

    void next_two() {
        next<0>();
        next<kParts<W> == 1>();
    }

  private:
    template <int SET>
    void next() {
        if (groups == 0) return;
        tiles->multiply<SET>(activations, weights, sums);
        if constexpr (kParts<W> == 2)
            tiles->multiply<1>(activations + columns, weights + columns * kPanel, sums + kTileSums);
        activations += step;
        weights += kGroup * kPanel;
        sums += kParts<W> * kTileSums;
        groups--;
    }
};

// Calls add(t) for each token, and begins all products of `next` evenly between.
template <WeightType W, class Add>
inline __attribute__((always_inline)) void for_tokens(int tokens, Products<W>& next, const Add& add) {
    constexpr int shares = kRunGroups / 2;
    for (int i = 1, t = 0; i <= shares; i++) {
        next.next_two();
        for (const int end = tokens * i / shares; t < end; t++) add(t);
    }
}

// Two sums as 16 bits, and the step to those of the next two groups, or of the next group's halves. Pointers
// are to a token's first group. (The empty asm keeps compilers from an index of its own for each group, for
// which there are not enough registers.)
template <WeightType W>
struct Narrowed {
    const int32_t *rounding, *shifts;
    size_t step;

    // A sum that is ready to be shifted by a.shifts: (2^e r + odd + p) >> e is r + ((odd + p) >> e).
    static inline __attribute__((always_inline)) __m512i rounded(const int32_t* products, int odd,
                                                                 const int32_t* rounding) {
        constexpr int extra = kExtraShift<W>;
        __m512i sum = _mm512_load_si512(products);
        if constexpr (extra != 0) {
            if (odd) sum = _mm512_add_epi32(sum, broadcast((1 << extra) - 1));
            sum = _mm512_srai_epi32(sum, extra);
        }
        return plus(sum, dword(rounding));
    }
    inline __attribute__((always_inline)) __m512i pair(const int32_t* products, int i) {
        constexpr int groups = 2 / kParts<W>;
        const size_t apart = (groups - 1) * step;
        const __m512i low = rounded(products, groups == 1 ? i % 2 : 0, rounding);
        const __m512i high = rounded(products + kTileSums, groups == 1 ? i % 2 : 1, rounding + apart);
        const __m512i words = narrow_pair(low, shifts, high, shifts + 2 * apart + 1);
        rounding += groups * step;
        shifts += 2 * groups * step;
        asm("" : "+r"(rounding), "+r"(shifts));
        return words;
    }
};

// Adds a superblock's products to f[token], in the same steps as avx512.cpp's add_superblock.
template <WeightType W>
inline void add_superblock(const int32_t* products, const uint8_t* s, const Activations& a,
                           const ActivationIndex& index, int tokens, float (*f)[kPanel], Products<W>& next) {
    constexpr int pairs = kParts<W> * kSuperblockGroups / 2;
    constexpr int minimum_parts = kHasHalfMinimums<W> ? kSuperblockGroups : kSuperblockGroups / 2;
    const size_t step = size_t(a.tile_tokens);
    __m512i scales[pairs], minimums[minimum_parts];
#pragma GCC unroll 8
    for (int i = 0; i < pairs; i++)
        scales[i] = kParts<W> == 2 ? load_half_scales<W>(s, i) : load_group_scales<W>(s, 2 * i);
#pragma GCC unroll 8
    for (int i = 0; i < minimum_parts && kHasMinimum<W>; i++)
        minimums[i] = kHasHalfMinimums<W> ? load_half_minimums(s, i) : load_group_pair(s + 192 + 32 * i);
    const __m512 scale = _mm512_mul_ps(load_binary16(s), _mm512_set1_ps(kProductScale<W>));
    const __m512 minimum =
        kHasMinimum<W> ? _mm512_mul_ps(load_binary16(s + 32), _mm512_set1_ps(kMinimumScale<W>)) : scale;
    const int32_t *const roundings = a.rounding + index.group, *const shifts = a.shifts + 2 * index.group;
    const int16_t* const minimum_sums =
        kHasHalfMinimums<W> ? a.half_sums_q4 + 2 * index.group : a.min_sums_q3 + 2 * index.pair;
    const float* const superblock_scales = a.superblock_scale + index.superblock;
    for_tokens<W>(tokens, next, [&](int t) __attribute__((always_inline)) {
        Narrowed<W> narrowed{roundings + t, shifts + 2 * t, step};
        const int32_t* of_token = products + kPanel * t;
        __m512i total = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int i = 0; i < pairs; i++)
            total = _mm512_dpwssd_epi32(total, narrowed.pair(of_token + 2 * i * kTileSums, i), scales[i]);
        __m512 value = _mm512_cvtepi32_ps(total);
        if constexpr (kHasMinimum<W>) {
            const int16_t* x = minimum_sums + 2 * t;
            __m512i minimum_sum = _mm512_setzero_si512();
#pragma GCC unroll 8
            for (int i = 0; i < minimum_parts; i++, x += 2 * step) {
                add_words(minimum_sum, minimums[i], dword(x));
                asm("" : "+r"(x));
            }
            value = _mm512_fmsub_ps(scale, value, _mm512_mul_ps(minimum, _mm512_cvtepi32_ps(minimum_sum)));
        } else {
            value = _mm512_mul_ps(scale, value);
        }
        _mm512_store_ps(f[t],
                        _mm512_fmadd_ps(_mm512_set1_ps(superblock_scales[t]), value, _mm512_load_ps(f[t])));
    });
}

// Adds GROUPS groups' products to f[token], in the same steps as avx512.cpp's add_group; `s` are the scales
// of the matrix's panel, `group` the number of the first.
template <WeightType W, int GROUPS>
inline void add_groups(const int32_t* products, const uint8_t* s, int group, const Activations& a, size_t at,
                       int tokens, float (*f)[kPanel], Products<W>& next) {
    const size_t step = size_t(a.tile_tokens);
    __m512 scales[GROUPS], others[GROUPS];  // others: minimums, or zero points
#pragma GCC unroll 8
    for (int i = 0; i < GROUPS; i++) {
        const uint8_t* own = s + size_t((group + i) / kShareScales<W>) * kScaleBytes<W>;
        scales[i] = load_scales<W>(own);
        if constexpr (kHasMinimum<W>) others[i] = load_binary16(own + 32);
        if constexpr (kHasZeroPoint<W>) others[i] = load_zeros(own);
    }
    for_tokens<W>(tokens, next, [&](int t) __attribute__((always_inline)) {
        __m512 sum = _mm512_load_ps(f[t]);
        size_t cell = at + size_t(t);
#pragma GCC unroll 8
        for (int i = 0; i < GROUPS; i++, cell += step) {
            asm("" : "+r"(cell));  // as in Narrowed
            __m512i integers = _mm512_load_si512(products + i * kTileSums + kPanel * t);
            if constexpr (kCentre<W> != kOffset<W>)
                integers = _mm512_add_epi32(integers, broadcast(a.sum[cell] * (kCentre<W> - kOffset<W>)));
            __m512 exact = _mm512_cvtepi32_ps(integers);
            if constexpr (kHasZeroPoint<W>)
                exact = _mm512_fnmadd_ps(others[i], _mm512_set1_ps(float(a.sum[cell])), exact);
            sum = _mm512_fmadd_ps(scales[i], _mm512_mul_ps(exact, _mm512_set1_ps(a.scale[cell])), sum);
            if constexpr (kHasMinimum<W>)
                sum = _mm512_fmadd_ps(others[i], _mm512_set1_ps(a.scaled_sum[cell]), sum);
        }
        _mm512_store_ps(f[t], sum);
    });
}

// One panel times the token tiles that begin at token `first`, kBlockTiles of them at most. A run of groups
// is unpacked once and multiplied by all of them; what is summed of each token waits in the scratch.
template <WeightType W>
void panel_block(const Tiles& tiles, Scratch<W>& scratch, const Matrix& m, const Activations& a, int p,
                 int first, const MatmulOut& out) {
    const int width = a.tile_tokens, last = imin(a.tokens, first + kBlockTiles * width);
    const int count = (last - first + width - 1) / width;  // token tiles
    const int runs = (a.groups() + kRunGroups - 1) / kRunGroups;
    const uint8_t* const q = m.q + size_t(p) * m.q_stride;
    const uint8_t* const s = m.scales + size_t(p) * m.scale_stride;
    const auto groups_of = [&](int run) { return imin(kRunGroups, a.groups() - run * kRunGroups); };
    // The work in order: all token tiles of the first run, then of the next.
    const auto begin = [&](int work) {
        const int run = work / count, tile = work % count, group = run * kRunGroups;
        uint8_t* const weights = scratch.weights[run % 2];
        for (int i = 0; tile == 0 && i < groups_of(run); i++)
            unpack_signed<W>(q + size_t(group + i) * kGroupBytes<W>, weights + i * kGroup * kPanel);
        return Products<W>{
            &tiles,  kGroup * size_t(width),     a.q + kGroup * a.at(first + tile * width, group),
            weights, scratch.products[work % 2], groups_of(run)};
    };
    for (int t = first; t < last; t++) vstore(scratch.results[t - first], vset(0.0f));
    Products<W> next = begin(0);
    for (int i = 0; i < kRunGroups / 2; i++) next.next_two();
    for (int work = 0; work < runs * count; work++) {
        if (work + 1 < runs * count) next = begin(work + 1);
        const int run = work / count, t = first + work % count * width, group = run * kRunGroups;
        const int tokens = imin(width, last - t);
        const int32_t* const products = scratch.products[work % 2];
        float (*const f)[kPanel] = scratch.results + (t - first);
        if constexpr (kIsSuperblock<W>) {
            add_superblock<W>(products, s + size_t(run) * kScaleBytes<W>, a,
                              {a.at(t, group), a.at(t, group, 2), a.at(t, group, kSuperblockGroups)}, tokens,
                              f, next);
        } else if (groups_of(run) == kRunGroups) {
            add_groups<W, kRunGroups>(products, s, group, a, a.at(t, group), tokens, f, next);
        } else {
            for (int i = 0; i < groups_of(run); i++)
                add_groups<W, 1>(products + i * kTileSums, s, group + i, a, a.at(t, group + i), tokens, f,
                                 next);
        }
    }
    for (int t = first; t < last; t++) store_panel(out, m.rows, p, t, vload(scratch.results[t - first]));
}

template <WeightType W>
void integer_matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    const Tiles tiles(a.tile_tokens, kGroup / kParts<W>);
    Scratch<W> scratch;
    for (int p = p0; p < p1; p++)
        for (int first = 0; first < a.tokens; first += kBlockTiles * a.tile_tokens)
            panel_block<W>(tiles, scratch, m, a, p, first, out);
}

// Passes over fewer tokens wait for memory rather than for products: they are multiplied as with AVX-512.
constexpr int kFewestTokens = kTileRows;

void matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    if (info(m.type).is_float || a.tokens < kFewestTokens || a.tile_tokens > kTileRows)
        return avx512_kernels()->matmul(m, a, p0, p1, out);
    switch (m.type) {
        OUTRIDER_INTEGER_MATMUL_CASES
        default:
            return;
    }
}

}  // namespace

const Kernels* amx_kernels() {
    static const Kernels table = with_products(*avx512_kernels(), "amx", kTokenTile, kUsualTokenTile, matmul);
    return &table;
}

}  // namespace outrider
#else
namespace outrider {
const Kernels* amx_kernels() { return nullptr; }
}  // namespace outrider
#endif
