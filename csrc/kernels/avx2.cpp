// AVX2: products of unsigned weights and signed activations (vpmaddubsw) are summed in 16 bits for as long as
// they cannot overflow, then widened once.
#include "kernels/kernels.h"
#if defined(__x86_64__) && defined(__AVX2__)
#define OUTRIDER_AVX2
#include "kernels/common.h"

namespace outrider {
namespace {

// Whether weights are unpacked as signed bytes: where products of the unsigned ones may exceed 16 bits.
template <WeightType W>
constexpr bool kSigned = 2 * kLargest<W> * 127 >= 1 << 15;

}  // namespace
}  // namespace outrider

#include "kernels/avx2_products.h"

namespace outrider {
namespace {

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

// The products of a slice and four activations, in pairs of 16 bits.
template <WeightType W>
inline __attribute__((always_inline)) I16 multiply_slice(const I16& w, __m256i x) {
    return each(w, [&](__m256i v) __attribute__((always_inline)) {
        if constexpr (kSigned<W>) return _mm256_maddubs_epi16(_mm256_abs_epi8(v), _mm256_sign_epi8(x, v));
        return _mm256_maddubs_epi16(v, x);
    });
}
inline I16 plus_words(const I16& x, const I16& y) {
    return {_mm256_add_epi16(x.a, y.a), _mm256_add_epi16(x.b, y.b)};
}

template <WeightType W, int NT, class Start>
inline __attribute__((always_inline)) void multiply(const uint8_t* lines, const int8_t* x, I16 (*sum)[NT],
                                                    const Start& start) {
    constexpr int slices = kNarrowSlices<W>, part_slices = kHalfGroups<W> ? 4 : 8;
    I16 narrow[NT], before{};
    unpack<W>(lines, [&](int slice, const I16& w) __attribute__((always_inline)) {
        if (slices == 2 && slice % 2 == 0) {  // two slices at once: their sums take no registers of their own
            before = w;
            return;
        }
        const int part = slice / part_slices;
#pragma GCC unroll 8
        for (int t = 0; t < NT; t++) {
            const int8_t* const at = x + kGroup * t + 4 * slice;
            I16 products = multiply_slice<W>(w, broadcast4(at));
            if (slices == 2) products = plus_words(multiply_slice<W>(before, broadcast4(at - 4)), products);
            narrow[t] = slices <= 2 || slice % slices == 0 ? products : plus_words(narrow[t], products);
            keep(narrow[t]);
            if (slice % slices != slices - 1) continue;
            const __m256i one = _mm256_set1_epi16(1);
            const I16 wide = multiply_words(narrow[t], I16{one, one});
            const bool first = slice % part_slices == slices - 1;
            sum[part][t] = first ? plus(wide, start(part, t)) : plus(sum[part][t], wide);
            keep(sum[part][t]);
        }
    });
}

}  // namespace

OUTRIDER_KERNEL_TABLE(avx2_kernels, "avx2")

}  // namespace outrider
#else
namespace outrider {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace outrider
#endif
