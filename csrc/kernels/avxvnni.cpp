// AVX-VNNI: one vpdpbusd multiplies 8 rows by 4 columns and adds into 32 bits, on Intel's processors without
// AVX-512 (client processors since 2021, Sierra Forest). Everything but the integer products is AVX2's.
//
// With OUTRIDER_EMULATED_AVXVNNI the instruction is replaced by AVX2's with the same sums, so that the code
// can be checked on processors that lack it (csrc/tests/emulated_avxvnni.cpp).
#include "kernels/kernels.h"
#if defined(__x86_64__) && defined(__AVX2__) && (defined(__AVXVNNI__) || defined(OUTRIDER_EMULATED_AVXVNNI))
#define OUTRIDER_AVX2
#pragma GCC diagnostic ignored "-Wunused-function"  // the norms, attention … that avx2.cpp compiles
#include "kernels/common.h"

namespace outrider {
namespace {

// Sums of 32 bits hold all products, so no weights need to be signed.
template <WeightType W>
constexpr bool kSigned = false;

// sum + w's unsigned bytes times the signed bytes of x
#if defined(OUTRIDER_EMULATED_AVXVNNI)
__attribute__((noinline)) __m256i add_bytes(__m256i sum, __m256i w, __m256i x) {  // quicker to compile
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(255)),
                                           _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(x, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
#else
inline __m256i add_bytes(__m256i sum, __m256i w, __m256i x) { return _mm256_dpbusd_avx_epi32(sum, w, x); }
#endif

}  // namespace
}  // namespace outrider

#include "kernels/avx2_products.h"

namespace outrider {
namespace {

template <WeightType W, int NT, class Start>
inline __attribute__((always_inline)) void multiply(const uint8_t* lines, const int8_t* x, I16 (*sum)[NT],
                                                    const Start& start) {
    constexpr int part_slices = kHalfGroups<W> ? 4 : 8;
    unpack<W>(lines, [&](int slice, const I16& w) __attribute__((always_inline)) {
        const int part = slice / part_slices;
#pragma GCC unroll 8
        for (int t = 0; t < NT; t++) {
            I16& s = sum[part][t];
            if (slice % part_slices == 0) s.a = s.b = start(part, t);
            const __m256i v = broadcast4(x + kGroup * t + 4 * slice);
            s = {add_bytes(s.a, w.a, v), add_bytes(s.b, w.b, v)};
        }
    });
}

void matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    switch (m.type) {
        OUTRIDER_INTEGER_MATMUL_CASES
        case WeightType::F32:
        case WeightType::F16:
        case WeightType::BF16:
        case WeightType::F8_32:
        case WeightType::F8_128:
            return avx2_kernels()->matmul(m, a, p0, p1, out);
    }
}

}  // namespace

const Kernels* avxvnni_kernels() {
    static const Kernels table =
        with_products(*avx2_kernels(), "avxvnni", kTokenTile, kUsualTokenTile, matmul);
    return &table;
}

}  // namespace outrider
#else
namespace outrider {
const Kernels* avxvnni_kernels() { return nullptr; }
}  // namespace outrider
#endif
