// AVX2: processes the two halves of a panel (8 rows each) one after the other; the second finds its lines in
// the cache. // Products of unsigned weights and signed activations are summed in 16 bits as long as they
// cannot overflow, then widened once.
#include "kernels/kernels.h"
#if defined(__x86_64__) && defined(__AVX2__)
#define OUTRIDER_AVX2
#include "kernels/common.h"

namespace outrider {
namespace {

constexpr int kTokenTile = 10, kUsualTokenTile = 8;
constexpr int kRegisterTile = 4;  // tokens whose sums the registers hold

inline __m256i line(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m128i half_line(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline __m256 load_binary16(const uint8_t* p) { return _mm256_cvtph_ps(half_line(p)); }
inline __m256i or_masked(__m256i low, __m256i h, __m256i mask) {
    return _mm256_or_si256(low, _mm256_and_si256(h, mask));
}
inline __m256i broadcast4(const int8_t* a) {
    int32_t v;
    std::memcpy(&v, a, 4);
    return _mm256_set1_epi32(v);
}
inline __m256i broadcast2(const int16_t* a) {
    int32_t v;
    std::memcpy(&v, a, 4);
    return _mm256_set1_epi32(v);
}

// Whether weights are unpacked as signed bytes: where products of the unsigned ones may exceed 16 bits.
template <WeightType W>
constexpr bool kSigned = 2 * kLargest<W> * 127 >= 1 << 15;

// The scales of half a panel.
template <WeightType W>
inline __m256 load_scales(const uint8_t* scales, int half) {
    if constexpr (kHasZeroPoint<W>) return _mm256_loadu_ps(reinterpret_cast<const float*>(scales) + 8 * half);
    if constexpr (!kHasExponents<W>) return load_binary16(scales + 16 * half);
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + 8 * half));
    const __m256i e = _mm256_cvtepu8_epi32(bytes);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(kE8M0HalfSubnormal), e);
    return _mm256_castsi256_ps(
        _mm256_blendv_epi8(normal, subnormal, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

// The codebook, for shuffles.
template <WeightType W>
inline __m256i table() {
    const auto &bytes = kByteTable < W, kSigned<W> ? 0 : kOffset < W >>.values;
    return _mm256_broadcastsi128_si256(half_line(bytes));
}

// Calls use(slice, bytes) for the 8 slices of one group and half a panel: unsigned unless kSigned.
template <WeightType W, class Use>
inline __attribute__((always_inline)) void unpack(const uint8_t* p, const Use& use) {
    const __m256i nibble = _mm256_set1_epi8(15), bit = _mm256_set1_epi8(16), two = _mm256_set1_epi8(48);
    const auto low = [&](int i) { return _mm256_and_si256(line(p + 64 * i), nibble); };
    const auto high = [&](int i) { return _mm256_and_si256(_mm256_srli_epi16(line(p + 64 * i), 4), nibble); };
    if constexpr (kBits<W> == 8) {
        const __m256i flip = _mm256_set1_epi8(-128);
        const auto at = [&](int i) { return _mm256_xor_si256(line(p + 64 * i), flip); };
        use(0, at(0)), use(1, at(1)), use(2, at(2)), use(3, at(3));
        use(4, at(4)), use(5, at(5)), use(6, at(6)), use(7, at(7));
    } else if constexpr (kBits<W> == 2) {
        static_assert(kFractionBits<W> == 3);
        const __m256i mask = _mm256_set1_epi8(3 << 3), l0 = line(p), l1 = line(p + 64);
        const auto bits = [&](__m256i l) { return _mm256_and_si256(l, mask); };
        use(0, bits(_mm256_slli_epi16(l0, 3))), use(1, bits(_mm256_slli_epi16(l1, 3)));
        use(2, bits(_mm256_slli_epi16(l0, 1))), use(3, bits(_mm256_slli_epi16(l1, 1)));
        use(4, bits(_mm256_srli_epi16(l0, 1))), use(5, bits(_mm256_srli_epi16(l1, 1)));
        use(6, bits(_mm256_srli_epi16(l0, 3))), use(7, bits(_mm256_srli_epi16(l1, 3)));
    } else if constexpr (kBits<W> == 3) {
        constexpr int fraction = kHasCodebook<W> ? 0 : kFractionBits<W>;
        const __m256i mask = _mm256_set1_epi8(7 << fraction);
        const __m256i l0 = line(p), l1 = line(p + 64), l2 = line(p + 128);
        const auto value = [&](__m256i q) {
            if constexpr (kHasCodebook<W>)
                return _mm256_shuffle_epi8(table<W>(), q);
            else
                return q;
        };
        // Slices of the lowest bits, and of those above.
        const auto lower = [&](__m256i l) {
            return value(_mm256_and_si256(fraction ? _mm256_slli_epi16(l, fraction) : l, mask));
        };
        const auto upper = [&](__m256i l) {
            return value(_mm256_and_si256(fraction == 3 ? l : _mm256_srli_epi16(l, 3), mask));
        };
        use(0, lower(l0)), use(1, lower(l1)), use(2, lower(l2));
        use(3, upper(l0)), use(4, upper(l1)), use(5, upper(l2));
        __m256i last = _mm256_and_si256(_mm256_srli_epi16(l0, 6), _mm256_set1_epi8(3));
        last = or_masked(last, _mm256_srli_epi16(l1, 4), _mm256_set1_epi8(12));
        last = or_masked(last, _mm256_srli_epi16(l2, 2), two);
        use(6, lower(last)), use(7, upper(last));
    } else if constexpr (kBits<W> == 5) {
        const __m256i h = line(p + 256);
        use(0, or_masked(low(0), _mm256_slli_epi16(h, 4), bit));
        use(1, or_masked(low(1), _mm256_slli_epi16(h, 3), bit));
        use(2, or_masked(low(2), _mm256_slli_epi16(h, 2), bit));
        use(3, or_masked(low(3), _mm256_slli_epi16(h, 1), bit));
        use(4, or_masked(high(0), h, bit));
        use(5, or_masked(high(1), _mm256_srli_epi16(h, 1), bit));
        use(6, or_masked(high(2), _mm256_srli_epi16(h, 2), bit));
        use(7, or_masked(high(3), _mm256_srli_epi16(h, 3), bit));
    } else if constexpr (kBits<W> == 6) {
        const __m256i h0 = line(p + 256), h1 = line(p + 320);
        use(0, or_masked(low(0), _mm256_slli_epi16(h0, 4), two));
        use(1, or_masked(low(1), _mm256_slli_epi16(h0, 2), two));
        use(2, or_masked(low(2), h0, two));
        use(3, or_masked(low(3), _mm256_srli_epi16(h0, 2), two));
        use(4, or_masked(high(0), _mm256_slli_epi16(h1, 4), two));
        use(5, or_masked(high(1), _mm256_slli_epi16(h1, 2), two));
        use(6, or_masked(high(2), h1, two));
        use(7, or_masked(high(3), _mm256_srli_epi16(h1, 2), two));
    } else if constexpr (kHasCodebook<W>) {
        const __m256i values = table<W>();
        const auto value = [&](__m256i q) { return _mm256_shuffle_epi8(values, q); };
        use(0, value(low(0))), use(1, value(low(1))), use(2, value(low(2))), use(3, value(low(3)));
        use(4, value(high(0))), use(5, value(high(1))), use(6, value(high(2))), use(7, value(high(3)));
    } else {
        use(0, low(0)), use(1, low(1)), use(2, low(2)), use(3, low(3));
        use(4, high(0)), use(5, high(1)), use(6, high(2)), use(7, high(3));
    }
}

// How many slices may be summed in 16 bits: those whose products stay below 2^15.
template <WeightType W>
constexpr int narrow_slices() {
    if (kSigned<W>) return 1;
    int slices = kHalfGroups<W> ? 4 : 8;
    while (slices * 2 * kLargest<W> * 127 >= 1 << 15) slices /= 2;
    return slices;
}
template <WeightType W>
constexpr int kNarrowSlices = narrow_slices<W>();

// sum[part][token] += the products of one group of 32 columns, half a panel and NT tokens; with kHalfGroups
// the halves are two parts.
template <WeightType W, int NT>
inline __attribute__((always_inline)) void multiply(const uint8_t* lines, const int8_t* x,
                                                    __m256i (*sum)[NT]) {
    __m256i narrow[NT];
    unpack<W>(lines, [&](int slice, __m256i w) __attribute__((always_inline)) {
        const int part = kHalfGroups<W> ? slice / 4 : 0;
        __m256i magnitude = w;
        if constexpr (kSigned<W>) magnitude = _mm256_abs_epi8(w);
#pragma GCC unroll 8
        for (int t = 0; t < NT; t++) {
            __m256i v = broadcast4(x + kGroup * t + 4 * slice);
            if constexpr (kSigned<W>) v = _mm256_sign_epi8(v, w);
            v = _mm256_maddubs_epi16(magnitude, v);
            narrow[t] = slice % kNarrowSlices<W> == 0 ? v : _mm256_add_epi16(narrow[t], v);
            if (slice % kNarrowSlices<W> == kNarrowSlices<W> - 1)
                sum[part][t] =
                    _mm256_add_epi32(sum[part][t], _mm256_madd_epi16(narrow[t], _mm256_set1_epi16(1)));
        }
    });
}

inline __m256i broadcast(int32_t x) { return _mm256_set1_epi32(x); }

// The zero points of half a panel, of weights as `unpack` gives them.
template <WeightType W>
inline __m256 load_zeros(const uint8_t* scales, int half) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + 64 + 8 * half));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_cvtepu8_epi32(bytes), broadcast(kSigned<W> ? 128 : 0)));
}

// Adds one group and half a panel to f[token]. Every integer stays below 2^24, so that a float holds it
// exactly, and kernels may add in integers or in floats with the same result.
template <WeightType W, int NT>
inline __attribute__((always_inline)) void add_group(const uint8_t* q, const uint8_t* s, int half,
                                                     const Activations& a, size_t at, __m256* f) {
    constexpr int offset = kSigned<W> ? 0 : kOffset<W>;
    const __m256 scale = load_scales<W>(s, half);
    __m256i sum[1][NT];
    for (int t = 0; t < NT; t++) sum[0][t] = broadcast(-offset * a.sum[at + t]);
    multiply<W, NT>(q + 32 * half, a.q + kGroup * at, sum);
#pragma GCC unroll 8
    for (int t = 0; t < NT; t++) {
        const size_t i = at + t;
        __m256 products = _mm256_cvtepi32_ps(sum[0][t]);
        if constexpr (kHasZeroPoint<W>)
            products = _mm256_fnmadd_ps(load_zeros<W>(s, half), _mm256_set1_ps(float(a.sum[i])), products);
        f[t] = _mm256_fmadd_ps(scale, _mm256_mul_ps(products, _mm256_set1_ps(a.scale[i])), f[t]);
        if constexpr (kHasMinimum<W>)
            f[t] = _mm256_fmadd_ps(load_binary16(s + 32 + 16 * half), _mm256_set1_ps(a.scaled_sum[i]), f[t]);
    }
}

// The bytes of two groups, as the low and high 16 bits of each lane.
inline __m256i load_group_pair(const uint8_t* p) {
    const auto wide = [](const uint8_t* from) {
        return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    };
    return _mm256_or_si256(wide(p), _mm256_slli_epi32(wide(p + 16), 16));
}
// Low 16 bits of each lane: a >> right; high 16 bits: b >> (16 - left).
inline __m256i narrow_pair(__m256i a, int32_t right, __m256i b, int32_t left) {
    return _mm256_blend_epi16(_mm256_srl_epi32(a, _mm_cvtsi32_si128(right)),
                              _mm256_sll_epi32(b, _mm_cvtsi32_si128(left)), 0xaa);
}

// The scales of half a panel and groups i and i + 1 of a superblock, one scale a group, as the low and high
// 16 bits of each lane.
template <WeightType W>
inline __m256i load_group_scales(const uint8_t* s, int half, int i) {
    if constexpr (!kHasFactors<W>) return _mm256_set1_epi16(1);
    if constexpr (kHasMinimum<W>) return load_group_pair(s + 64 + 16 * i + 8 * half);
    return _mm256_cvtepi8_epi16(half_line(s + 32 + 16 * i + 16 * half));
}

// total[token] += two groups of a superblock, whose groups have one scale each
template <WeightType W, int NT>
inline __attribute__((always_inline)) void add_group_pair(const uint8_t* lines, __m256i scales,
                                                          const Activations& a, size_t at, __m256i* total) {
    constexpr int offset = kSigned<W> ? 0 : kOffset<W>;
    const size_t next = at + size_t(a.tile_tokens);
    __m256i even[1][NT], odd[1][NT];
    for (int t = 0; t < NT; t++) even[0][t] = broadcast(rounded_start<W, offset>(a, at + t, 0));
    multiply<W, NT>(lines, a.q + kGroup * at, even);
    for (int t = 0; t < NT; t++) odd[0][t] = broadcast(rounded_start<W, offset>(a, next + t, 1));
    multiply<W, NT>(lines + kGroupBytes<W>, a.q + kGroup * next, odd);
    for (int t = 0; t < NT; t++) {
        const int32_t right = a.shifts[2 * (at + t)] + kExtraShift<W>,
                      left = a.shifts[2 * (next + t) + 1] - kExtraShift<W>;
        total[t] = _mm256_add_epi32(
            total[t], _mm256_madd_epi16(narrow_pair(even[0][t], right, odd[0][t], left), scales));
    }
}

// The scales, and the minimums, of half a panel and the halves of group i, as the low and high 16 bits of
// each lane.
template <WeightType W>
inline __m256i load_half_scales(const uint8_t* s, int half, int i) {
    if constexpr (!kHasMinimum<W>) return _mm256_cvtepi8_epi16(half_line(s + 32 + 32 * i + 16 * half));
    return _mm256_cvtepu8_epi16(_mm_and_si128(half_line(s + 64 + 32 * i + 16 * half), _mm_set1_epi8(15)));
}
inline __m256i load_half_minimums(const uint8_t* s, int half, int i) {
    const __m128i bytes = _mm_srli_epi16(half_line(s + 64 + 32 * i + 16 * half), 4);
    return _mm256_cvtepu8_epi16(_mm_and_si128(bytes, _mm_set1_epi8(15)));
}

// total[token] += group i of a superblock, whose halves have scales of their own. With an extra shift, what
// centred_start stands for (half_start) is added after that: (2^e c + odd + p) >> e is c + ((odd + p) >> e).
template <WeightType W, int NT>
inline __attribute__((always_inline)) void add_halves(const uint8_t* lines, __m256i scales,
                                                      const Activations& a, size_t at, int i,
                                                      __m256i* total) {
    constexpr int extra = kExtraShift<W>;
    __m256i sum[2][NT];
    for (int t = 0; t < NT; t++)
        for (int h = 0; h < 2; h++)
            sum[h][t] = broadcast(extra ? i % 2 * ((1 << extra) - 1) : half_start<W>(a, at + t, h, i % 2));
    multiply<W, NT>(lines, a.q + kGroup * at, sum);
    for (int t = 0; t < NT; t++) {
        const int32_t *shifts = a.shifts + 2 * (at + t), *starts = a.centred_start + 2 * (at + t);
        for (int h = 0; h < 2 && extra; h++)
            sum[h][t] = _mm256_add_epi32(_mm256_srai_epi32(sum[h][t], extra), broadcast(starts[h]));
        total[t] = _mm256_add_epi32(
            total[t], _mm256_madd_epi16(narrow_pair(sum[0][t], shifts[0], sum[1][t], shifts[1]), scales));
    }
}

// The products of half a panel's minimums in a superblock with the sums of token t's activations.
template <WeightType W>
inline __attribute__((always_inline)) __m256i minimum_sum(const uint8_t* s, int half, const Activations& a,
                                                          const ActivationIndex& index, int t) {
    const size_t next_group = size_t(a.tile_tokens);
    __m256i sum = _mm256_setzero_si256();
    const auto add = [&](__m256i minimums, const int16_t* x) {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(minimums, broadcast2(x)));
    };
    if constexpr (kHasHalfMinimums<W>) {
        for (size_t j = 0; j < kSuperblockGroups; j++)
            add(load_half_minimums(s, half, int(j)),
                a.half_sums_q4 + 2 * (index.group + j * next_group + size_t(t)));
    } else {
        for (size_t j = 0; j < kSuperblockGroups / 2; j++)
            add(load_group_pair(s + 192 + 32 * j + 8 * size_t(half)),
                a.min_sums_q3 + 2 * (index.pair + j * next_group + size_t(t)));
    }
    return sum;
}

// Adds one superblock and half a panel to f[token]. Only its own scales are floats.
template <WeightType W, int NT>
inline __attribute__((always_inline)) void add_superblock(const uint8_t* q, const uint8_t* s, int half,
                                                          const Activations& a, const ActivationIndex& index,
                                                          __m256* f) {
    constexpr bool half_groups = kHalfGroups<W>;
    const size_t next_group = size_t(a.tile_tokens);
    size_t at = index.group;
    __m256i total[NT];
    for (int t = 0; t < NT; t++) total[t] = _mm256_setzero_si256();
    const uint8_t* lines = q + 32 * half;
    for (int i = 0; i < kSuperblockGroups; i += half_groups ? 1 : 2) {
        if constexpr (half_groups) {
            add_halves<W, NT>(lines, load_half_scales<W>(s, half, i), a, at, i, total);
            at += next_group;
            lines += kGroupBytes<W>;
        } else {
            add_group_pair<W, NT>(lines, load_group_scales<W>(s, half, i), a, at, total);
            at += 2 * next_group;
            lines += 2 * kGroupBytes<W>;
        }
    }
    const __m256 scale = _mm256_mul_ps(load_binary16(s + 16 * half), _mm256_set1_ps(kProductScale<W>));
    for (int t = 0; t < NT; t++) {
        const __m256 products = _mm256_cvtepi32_ps(total[t]);
        __m256 value;
        if constexpr (!kHasMinimum<W>) {
            value = _mm256_mul_ps(scale, products);
        } else {
            const __m256 minimum =
                _mm256_mul_ps(load_binary16(s + 32 + 16 * half), _mm256_set1_ps(kMinimumScale<W>));
            const __m256 minimums = _mm256_cvtepi32_ps(minimum_sum<W>(s, half, a, index, t));
            value = _mm256_fmsub_ps(scale, products, _mm256_mul_ps(minimum, minimums));
        }
        f[t] = _mm256_fmadd_ps(_mm256_set1_ps(a.superblock_scale[index.superblock + t]), value, f[t]);
    }
}

template <WeightType W, int NT>
void panel_tile(const Matrix& m, const Activations& a, int p, int t0, const MatmulOut& out) {
    constexpr int bytes = (kIsSuperblock<W> ? kSuperblockGroups : 1) * kGroupBytes<W>;
    __m256 f[2][NT];
    for (int half = 0; half < 2; half++) {
        __m256 sums[NT];  // not f[half], which is indexed by a variable and would live in memory
        for (int t = 0; t < NT; t++) sums[t] = _mm256_setzero_ps();
        for_groups<W>(m, a, p, t0,
                      [&](const uint8_t* q, const uint8_t* s,
                          const ActivationIndex& index) __attribute__((always_inline)) {
                          // Prefetches the next panel while this one is multiplied, half of it each
                          // time.
                          for (int b = 64 * half; b < bytes; b += 128)
                              _mm_prefetch(reinterpret_cast<const char*>(q) + m.q_stride + b, _MM_HINT_T1);
                          if constexpr (kIsSuperblock<W>)
                              add_superblock<W, NT>(q, s, half, a, index, sums);
                          else
                              add_group<W, NT>(q, s, half, a, index.group, sums);
                      });
        for (int t = 0; t < NT; t++) f[half][t] = sums[t];
    }
    for (int t = 0; t < NT; t++) store_panel(out, m.rows, p, t0 + t, V16{f[0][t], f[1][t]});
}

template <WeightType W>
void integer_matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    for (int p = p0; p < p1; p++)
        for_register_tiles<kRegisterTile>(
            a, [&](int t, auto width) { panel_tile<W, decltype(width)::value>(m, a, p, t, out); });
}

}  // namespace

OUTRIDER_KERNEL_TABLE(avx2_kernels, "avx2")

}  // namespace outrider
#else
namespace outrider {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace outrider
#endif
