// Weights as packed (matrix.h) to bytes in 512-bit registers, and their scales; for avx512.cpp and amx.cpp.
#pragma once
#include "kernels/common.h"

namespace outrider {
namespace {

inline __m512i line(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline __m512 load_binary16(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// low | (h & mask)
inline __m512i or_masked(__m512i low, __m512i h, __m512i mask) {
    return _mm512_ternarylogic_epi32(low, h, mask, 0xf8);
}

// A 32-bit operand in memory that an instruction broadcasts to all rows by itself (embedded broadcast).
// Compilers use a separate instruction for the broadcast, half as many instructions again, so the five that
// are needed are written in assembly (docs/notes/kernels-log.md has what it gains).
struct Dword {
    int8_t bytes[4];
};
inline const Dword& dword(const void* p) { return *static_cast<const Dword*>(p); }

// sum += w's unsigned bytes times the signed bytes of x
inline __attribute__((always_inline)) void add_bytes(__m512i& sum, __m512i w, const Dword& x) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(x));
}
// sum += w's 16-bit integers times those of x
inline __attribute__((always_inline)) void add_words(__m512i& sum, __m512i w, const Dword& x) {
    asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(x));
}
inline __attribute__((always_inline)) __m512i plus(__m512i a, const Dword& x) {
    asm("vpaddd %1%{1to16%}, %0, %0" : "+v"(a) : "m"(x));
    return a;
}
// logical shifts
inline __attribute__((always_inline)) __m512i right(__m512i a, const Dword& by) {
    asm("vpsrlvd %1%{1to16%}, %0, %0" : "+v"(a) : "m"(by));
    return a;
}
inline __attribute__((always_inline)) __m512i left(__m512i a, const Dword& by) {
    asm("vpsllvd %1%{1to16%}, %0, %0" : "+v"(a) : "m"(by));
    return a;
}

// The scales of a panel.
template <WeightType W>
inline __m512 load_scales(const uint8_t* p) {
    if constexpr (kHasZeroPoint<W>) return _mm512_loadu_ps(p);
    if constexpr (!kHasExponents<W>) return load_binary16(p);
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __mmask16 tiny = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(
        _mm512_mask_sllv_epi32(normal, tiny, _mm512_set1_epi32(kE8M0HalfSubnormal), e));
}

// The codebook, for shuffles.
template <WeightType W>
inline __m512i table() {
    const void* bytes = kByteTable<W, kOffset<W>>.values;
    return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(bytes)));
}

// Calls use(slice, unsigned bytes) for the 8 slices of one group.
template <WeightType W, class Use>
inline __attribute__((always_inline)) void unpack(const uint8_t* p, const Use& use) {
    if constexpr (kBits<W> == 8) {
        use(0, line(p)), use(1, line(p + 64)), use(2, line(p + 128)), use(3, line(p + 192));
        use(4, line(p + 256)), use(5, line(p + 320)), use(6, line(p + 384)), use(7, line(p + 448));
        return;
    }
    if constexpr (kBits<W> == 2) {
        static_assert(kFractionBits<W> == 3);
        const __m512i mask = _mm512_set1_epi8(3 << 3), l0 = line(p), l1 = line(p + 64);
        const auto bits = [&](__m512i l) { return _mm512_and_si512(l, mask); };
        use(0, bits(_mm512_slli_epi16(l0, 3))), use(1, bits(_mm512_slli_epi16(l1, 3)));
        use(2, bits(_mm512_slli_epi16(l0, 1))), use(3, bits(_mm512_slli_epi16(l1, 1)));
        use(4, bits(_mm512_srli_epi16(l0, 1))), use(5, bits(_mm512_srli_epi16(l1, 1)));
        use(6, bits(_mm512_srli_epi16(l0, 3))), use(7, bits(_mm512_srli_epi16(l1, 3)));
        return;
    }
    if constexpr (kBits<W> == 3) {
        constexpr int fraction = kHasCodebook<W> ? 0 : kFractionBits<W>;
        const __m512i mask = _mm512_set1_epi8(7 << fraction);
        const __m512i l0 = line(p), l1 = line(p + 64), l2 = line(p + 128);
        const auto value = [&](__m512i q) {
            if constexpr (kHasCodebook<W>)
                return _mm512_shuffle_epi8(table<W>(), q);
            else
                return q;
        };
        // Slices of the lowest bits, and of those above.
        const auto lower = [&](__m512i l) {
            return value(_mm512_and_si512(fraction ? _mm512_slli_epi16(l, fraction) : l, mask));
        };
        const auto upper = [&](__m512i l) {
            return value(_mm512_and_si512(fraction == 3 ? l : _mm512_srli_epi16(l, 3), mask));
        };
        use(0, lower(l0)), use(1, lower(l1)), use(2, lower(l2));
        use(3, upper(l0)), use(4, upper(l1)), use(5, upper(l2));
        __m512i last = _mm512_and_si512(_mm512_srli_epi16(l0, 6), _mm512_set1_epi8(3));
        last = or_masked(last, _mm512_srli_epi16(l1, 4), _mm512_set1_epi8(12));
        last = or_masked(last, _mm512_srli_epi16(l2, 2), _mm512_set1_epi8(48));
        use(6, lower(last)), use(7, upper(last));
        return;
    }
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m512i l0 = line(p), l1 = line(p + 64), l2 = line(p + 128), l3 = line(p + 192);
    const auto low = [&](__m512i l) { return _mm512_and_si512(l, nibble); };
    const auto high = [&](__m512i l) { return _mm512_and_si512(_mm512_srli_epi16(l, 4), nibble); };
    if constexpr (kBits<W> == 5) {
        const __m512i h = line(p + 256), bit = _mm512_set1_epi8(16);
        use(0, or_masked(low(l0), _mm512_slli_epi16(h, 4), bit));
        use(1, or_masked(low(l1), _mm512_slli_epi16(h, 3), bit));
        use(2, or_masked(low(l2), _mm512_slli_epi16(h, 2), bit));
        use(3, or_masked(low(l3), _mm512_slli_epi16(h, 1), bit));
        use(4, or_masked(high(l0), h, bit));
        use(5, or_masked(high(l1), _mm512_srli_epi16(h, 1), bit));
        use(6, or_masked(high(l2), _mm512_srli_epi16(h, 2), bit));
        use(7, or_masked(high(l3), _mm512_srli_epi16(h, 3), bit));
    } else if constexpr (kBits<W> == 6) {
        const __m512i h0 = line(p + 256), h1 = line(p + 320), bits = _mm512_set1_epi8(48);
        use(0, or_masked(low(l0), _mm512_slli_epi16(h0, 4), bits));
        use(1, or_masked(low(l1), _mm512_slli_epi16(h0, 2), bits));
        use(2, or_masked(low(l2), h0, bits));
        use(3, or_masked(low(l3), _mm512_srli_epi16(h0, 2), bits));
        use(4, or_masked(high(l0), _mm512_slli_epi16(h1, 4), bits));
        use(5, or_masked(high(l1), _mm512_slli_epi16(h1, 2), bits));
        use(6, or_masked(high(l2), h1, bits));
        use(7, or_masked(high(l3), _mm512_srli_epi16(h1, 2), bits));
    } else if constexpr (kHasCodebook<W>) {
        const __m512i values = table<W>();
        const auto value = [&](__m512i q) { return _mm512_shuffle_epi8(values, q); };
        use(0, value(low(l0))), use(1, value(low(l1))), use(2, value(low(l2))), use(3, value(low(l3)));
        use(4, value(high(l0))), use(5, value(high(l1))), use(6, value(high(l2))), use(7, value(high(l3)));
    } else {
        use(0, low(l0)), use(1, low(l1)), use(2, low(l2)), use(3, low(l3));
        use(4, high(l0)), use(5, high(l1)), use(6, high(l2)), use(7, high(l3));
    }
}

inline __m512i broadcast(int32_t x) { return _mm512_set1_epi32(x); }

// The zero points of a panel.
inline __m512 load_zeros(const uint8_t* scales) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + 64));
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}

// The bytes of two groups, as the low and high 16 bits of each lane.
inline __m512i load_group_pair(const uint8_t* p) {
    const auto wide = [](const uint8_t* from) {
        return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    };
    return _mm512_or_si512(wide(p), _mm512_slli_epi32(wide(p + 16), 16));
}
// Low 16 bits of each lane: a >> down; high 16 bits: b >> (16 - up). (On Zen 4 a blend does not compete with
// vpdpbusd for an execution unit; vpternlogd does.)
inline __m512i narrow_pair(__m512i a, const int32_t* down, __m512i b, const int32_t* up) {
    return _mm512_mask_blend_epi16(0xaaaaaaaa, right(a, dword(down)), left(b, dword(up)));
}

// The scales of groups i and i + 1 of a superblock, one scale a group, as the low and high 16 bits of each
// lane.
template <WeightType W>
inline __m512i load_group_scales(const uint8_t* s, int i) {
    if constexpr (!kHasFactors<W>) return _mm512_set1_epi16(1);
    if constexpr (kHasMinimum<W>) return load_group_pair(s + 64 + 16 * i);
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(s + 32 + 16 * i)));
}

// The scales, and the minimums, of the halves of group i, as the low and high 16 bits of each lane.
inline __m256i half_bytes(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
template <WeightType W>
inline __m512i load_half_scales(const uint8_t* s, int i) {
    if constexpr (!kHasMinimum<W>) return _mm512_cvtepi8_epi16(half_bytes(s + 32 + 32 * i));
    return _mm512_cvtepu8_epi16(_mm256_and_si256(half_bytes(s + 64 + 32 * i), _mm256_set1_epi8(15)));
}
inline __m512i load_half_minimums(const uint8_t* s, int i) {
    return _mm512_srli_epi16(_mm512_cvtepu8_epi16(half_bytes(s + 64 + 32 * i)), 4);
}

}  // namespace
}  // namespace outrider
