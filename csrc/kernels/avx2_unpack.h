// Weights as packed (matrix.h) to bytes in 256-bit registers, and their scales; for avx2_products.h.
#pragma once
#include "kernels/common.h"

namespace outrider {
namespace {

// An I16 has 16 lanes, one for each row of a panel: of 32 bits, of two integers of 16 bits, or of four bytes.
template <class Op>
inline __attribute__((always_inline)) I16 each(const I16& x, const Op& op) {
    return {op(x.a), op(x.b)};
}
template <class Op>
inline __attribute__((always_inline)) I16 each(const I16& x, const I16& y, const Op& op) {
    return {op(x.a, y.a), op(x.b, y.b)};
}
inline I16 plus(const I16& x, const I16& y) {
    return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
inline I16 plus(const I16& x, __m256i y) { return plus(x, I16{y, y}); }
inline I16 minus(const I16& x, __m256i y) { return {_mm256_sub_epi32(x.a, y), _mm256_sub_epi32(x.b, y)}; }
inline I16 multiply_words(const I16& x, const I16& y) {
    return {_mm256_madd_epi16(x.a, y.a), _mm256_madd_epi16(x.b, y.b)};
}

// Makes the compiler compute x here. (Otherwise GCC moves the additions of all sums behind all products, and
// writes most products to memory.)
inline void keep(I16& x) { asm("" : "+x"(x.a), "+x"(x.b)); }

// A value from memory in all lanes.
inline __m256i broadcast4(const void* p) {
    int32_t v;
    std::memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

inline __m128i half_line(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline I16 line(const uint8_t* p) {
    const auto at = [](const uint8_t* q) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q)); };
    return {at(p), at(p + 32)};
}
inline I16 masked(const I16& x, __m256i mask) {
    return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
}
inline I16 or_masked(const I16& low, const I16& h, __m256i mask) {
    const I16 m = masked(h, mask);
    return {_mm256_or_si256(low.a, m.a), _mm256_or_si256(low.b, m.b)};
}
// Shifts of 16-bit lanes, whose bits that reach the neighbouring byte are masked afterwards.
template <int BY>
inline I16 right(const I16& x) {
    return {_mm256_srli_epi16(x.a, BY), _mm256_srli_epi16(x.b, BY)};
}
template <int BY>
inline I16 left(const I16& x) {
    return {_mm256_slli_epi16(x.a, BY), _mm256_slli_epi16(x.b, BY)};
}

// The scales of a panel.
template <WeightType W>
inline V16 load_scales(const uint8_t* s) {
    if constexpr (kHasZeroPoint<W>) return vload(reinterpret_cast<const float*>(s));
    if constexpr (!kHasExponents<W>) return vload(reinterpret_cast<const uint16_t*>(s));
    const auto half = [](const uint8_t* p) {
        const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
        const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
        const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(kE8M0HalfSubnormal), e);
        return _mm256_castsi256_ps(
            _mm256_blendv_epi8(normal, subnormal, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
    };
    return {half(s), half(s + 8)};
}

// The zero points of a panel, of weights as `unpack` gives them.
template <WeightType W>
inline V16 load_zeros(const uint8_t* scales) {
    const auto half = [](const uint8_t* p) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
        return _mm256_cvtepi32_ps(
            _mm256_sub_epi32(_mm256_cvtepu8_epi32(bytes), _mm256_set1_epi32(kSigned<W> ? 128 : 0)));
    };
    return {half(scales + 64), half(scales + 72)};
}

// The bytes of two groups, as the low and high 16 bits of each lane.
inline I16 load_group_pair(const uint8_t* p) {
    const __m128i even = half_line(p), odd = half_line(p + 16);
    return {_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(even, odd)),
            _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(even, odd))};
}
// Signed bytes, two for each row, as the low and high 16 bits of each lane.
inline I16 load_signed_pairs(const uint8_t* p) {
    return {_mm256_cvtepi8_epi16(half_line(p)), _mm256_cvtepi8_epi16(half_line(p + 16))};
}

// The scales of groups i and i + 1 of a superblock, one scale a group.
template <WeightType W>
inline I16 load_group_scales(const uint8_t* s, int i) {
    if constexpr (!kHasFactors<W>) return {_mm256_set1_epi16(1), _mm256_set1_epi16(1)};
    if constexpr (kHasMinimum<W>) return load_group_pair(s + 64 + 16 * i);
    return load_signed_pairs(s + 32 + 16 * i);
}

// The scales, and the minimums, of the halves of group i.
template <WeightType W>
inline I16 load_half_scales(const uint8_t* s, int i) {
    if constexpr (!kHasMinimum<W>) return load_signed_pairs(s + 32 + 32 * i);
    return masked(load_signed_pairs(s + 64 + 32 * i), _mm256_set1_epi16(15));
}
inline I16 load_half_minimums(const uint8_t* s, int i) {
    return masked(right<4>(load_signed_pairs(s + 64 + 32 * i)), _mm256_set1_epi16(15));
}

// The codebook, for shuffles.
template <WeightType W>
inline __m256i table() {
    const auto &bytes = kByteTable < W, kSigned<W> ? 0 : kOffset < W >>.values;
    return _mm256_broadcastsi128_si256(half_line(bytes));
}
template <WeightType W>
inline I16 looked_up(const I16& q) {
    if constexpr (kHasCodebook<W>)
        return each(q, [](__m256i x) { return _mm256_shuffle_epi8(table<W>(), x); });
    else
        return q;
}

template <WeightType W, class Use>
inline __attribute__((always_inline)) void unpack_2_bits(const uint8_t* p, const Use& use) {
    static_assert(kFractionBits<W> == 3);
    const __m256i mask = _mm256_set1_epi8(3 << 3);
    const I16 l0 = line(p), l1 = line(p + 64);
    use(0, masked(left<3>(l0), mask)), use(1, masked(left<3>(l1), mask));
    use(2, masked(left<1>(l0), mask)), use(3, masked(left<1>(l1), mask));
    use(4, masked(right<1>(l0), mask)), use(5, masked(right<1>(l1), mask));
    use(6, masked(right<3>(l0), mask)), use(7, masked(right<3>(l1), mask));
}

template <WeightType W, class Use>
inline __attribute__((always_inline)) void unpack_3_bits(const uint8_t* p, const Use& use) {
    constexpr int fraction = kHasCodebook<W> ? 0 : kFractionBits<W>;
    const __m256i mask = _mm256_set1_epi8(7 << fraction);
    const I16 l0 = line(p), l1 = line(p + 64), l2 = line(p + 128);
    // Slices of the lowest bits, and of those above.
    const auto lower = [&](const I16& l) {
        return looked_up<W>(masked(fraction ? left<fraction>(l) : l, mask));
    };
    const auto upper = [&](const I16& l) {
        return looked_up<W>(masked(fraction == 3 ? l : right<3>(l), mask));
    };
    use(0, lower(l0)), use(1, lower(l1)), use(2, lower(l2));
    use(3, upper(l0)), use(4, upper(l1)), use(5, upper(l2));
    I16 last = masked(right<6>(l0), _mm256_set1_epi8(3));
    last = or_masked(last, right<4>(l1), _mm256_set1_epi8(12));
    last = or_masked(last, right<2>(l2), _mm256_set1_epi8(48));
    use(6, lower(last)), use(7, upper(last));
}

// Calls use(slice, bytes) for the 8 slices of one group: unsigned unless kSigned.
template <WeightType W, class Use>
inline __attribute__((always_inline)) void unpack(const uint8_t* p, const Use& use) {
    const __m256i nibble = _mm256_set1_epi8(15), bit = _mm256_set1_epi8(16), two = _mm256_set1_epi8(48);
    const auto low = [&](int i) { return looked_up<W>(masked(line(p + 64 * i), nibble)); };
    const auto high = [&](int i) { return looked_up<W>(masked(right<4>(line(p + 64 * i)), nibble)); };
    if constexpr (kBits<W> == 2) {
        unpack_2_bits<W>(p, use);
    } else if constexpr (kBits<W> == 3) {
        unpack_3_bits<W>(p, use);
    } else if constexpr (kBits<W> == 8) {
        const auto at = [&](int i) {
            const __m256i flip = _mm256_set1_epi8(kSigned<W> ? -128 : 0);
            return each(line(p + 64 * i), [&](__m256i x) { return _mm256_xor_si256(x, flip); });
        };
        use(0, at(0)), use(1, at(1)), use(2, at(2)), use(3, at(3));
        use(4, at(4)), use(5, at(5)), use(6, at(6)), use(7, at(7));
    } else if constexpr (kBits<W> == 5) {
        const I16 h = line(p + 256);
        use(0, or_masked(low(0), left<4>(h), bit)), use(1, or_masked(low(1), left<3>(h), bit));
        use(2, or_masked(low(2), left<2>(h), bit)), use(3, or_masked(low(3), left<1>(h), bit));
        use(4, or_masked(high(0), h, bit)), use(5, or_masked(high(1), right<1>(h), bit));
        use(6, or_masked(high(2), right<2>(h), bit)), use(7, or_masked(high(3), right<3>(h), bit));
    } else if constexpr (kBits<W> == 6) {
        const I16 h0 = line(p + 256), h1 = line(p + 320);
        use(0, or_masked(low(0), left<4>(h0), two)), use(1, or_masked(low(1), left<2>(h0), two));
        use(2, or_masked(low(2), h0, two)), use(3, or_masked(low(3), right<2>(h0), two));
        use(4, or_masked(high(0), left<4>(h1), two)), use(5, or_masked(high(1), left<2>(h1), two));
        use(6, or_masked(high(2), h1, two)), use(7, or_masked(high(3), right<2>(h1), two));
    } else {
        use(0, low(0)), use(1, low(1)), use(2, low(2)), use(3, low(3));
        use(4, high(0)), use(5, high(1)), use(6, high(2)), use(7, high(3));
    }
}

}  // namespace
}  // namespace outrider
