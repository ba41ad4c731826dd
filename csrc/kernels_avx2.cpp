// AVX2: the two halves of a panel (8 rows each) one after the other; the second finds its lines in cache. Products of unsigned weights and
// signed activations are summed in 16 bits as long as they cannot overflow, then widened once.
#include "kernels.h"
#if defined(__x86_64__) && defined(__AVX2__)
#define OUTRIDER_AVX2
#include "kernels_common.h"

namespace outrider {
namespace {

template <Kind K>
constexpr bool kSuper = K == Kind::Q4_K || K == Kind::Q5_K || K == Kind::Q6_K;
template <Kind K>
constexpr int kGroupBytes = K == Kind::Q8_0 ? 512 : K == Kind::Q6_K ? 384
                            : K == Kind::Q4_0 || K == Kind::Q4_1 || K == Kind::Q4_K ? 256 : 320;
template <Kind K>
constexpr int kScaleBytes = K == Kind::Q6_K ? 288 : kSuper<K> ? 320 : K == Kind::Q4_1 || K == Kind::Q5_1 ? 64 : 32;

inline __m256i line(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m128i half_line(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline __m256 halves(const uint8_t* p) { return _mm256_cvtph_ps(half_line(p)); }
inline __m256i merge(__m256i low, __m256i h, __m256i mask) { return _mm256_or_si256(low, _mm256_and_si256(h, mask)); }
inline __m256i four(const int8_t* a) {
    int32_t v;
    std::memcpy(&v, a, 4);
    return _mm256_set1_epi32(v);
}
inline __m256i pair(const int16_t* a) {
    int32_t v;
    std::memcpy(&v, a, 4);
    return _mm256_set1_epi32(v);
}

// Slices [4 * H, 4 * H + 4) of one group and half panel, as unsigned bytes (signed for Q8_0).
template <Kind K, int H>
inline void unpack(const uint8_t* p, __m256i* w) {
    if constexpr (K == Kind::Q8_0) {
        for (int s = 0; s < 4; s++) w[s] = _mm256_xor_si256(line(p + 64 * (4 * H + s)), _mm256_set1_epi8(-128));
        return;
    }
    const __m256i nibble = _mm256_set1_epi8(15);
    for (int i = 0; i < 4; i++) {
        const __m256i l = line(p + 64 * i);
        w[i] = _mm256_and_si256(H ? _mm256_srli_epi16(l, 4) : l, nibble);
    }
    if constexpr (kGroupBytes<K> == 320) {
        const __m256i h = line(p + 256), bit = _mm256_set1_epi8(16);
        w[0] = merge(w[0], H ? h : _mm256_slli_epi16(h, 4), bit);
        w[1] = merge(w[1], H ? _mm256_srli_epi16(h, 1) : _mm256_slli_epi16(h, 3), bit);
        w[2] = merge(w[2], H ? _mm256_srli_epi16(h, 2) : _mm256_slli_epi16(h, 2), bit);
        w[3] = merge(w[3], H ? _mm256_srli_epi16(h, 3) : _mm256_slli_epi16(h, 1), bit);
    }
    if constexpr (K == Kind::Q6_K) {
        const __m256i l = line(p + 256 + 64 * H), bits = _mm256_set1_epi8(48);
        w[0] = merge(w[0], _mm256_slli_epi16(l, 4), bits);
        w[1] = merge(w[1], _mm256_slli_epi16(l, 2), bits);
        w[2] = merge(w[2], l, bits);
        w[3] = merge(w[3], _mm256_srli_epi16(l, 2), bits);
    }
}

// Products of 4 slices, times `scale` (16-bit lanes, a row's twice), as 32-bit sums. Largest 16-bit sum:
// 8 * 15 * 127 and 8 * 31 * 127 fit for four slices, 4 * 63 * 127 for two of Q6_K, 2 * 128 * 127 for one of Q8_0.
template <Kind K>
inline __m256i dot4(const __m256i* w, const int8_t* a, __m256i scale) {
    if constexpr (K == Kind::Q8_0) {
        __m256i sum = _mm256_setzero_si256();
        for (int s = 0; s < 4; s++) {
            const __m256i product = _mm256_maddubs_epi16(_mm256_abs_epi8(w[s]), _mm256_sign_epi8(four(a + 4 * s), w[s]));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(product, scale));
        }
        return sum;
    } else {
        const __m256i u = _mm256_add_epi16(_mm256_maddubs_epi16(w[0], four(a)), _mm256_maddubs_epi16(w[1], four(a + 4)));
        const __m256i v =
            _mm256_add_epi16(_mm256_maddubs_epi16(w[2], four(a + 8)), _mm256_maddubs_epi16(w[3], four(a + 12)));
        if constexpr (K == Kind::Q6_K)
            return _mm256_add_epi32(_mm256_madd_epi16(u, scale), _mm256_madd_epi16(v, scale));
        return _mm256_madd_epi16(_mm256_add_epi16(u, v), scale);
    }
}

inline __m256 bytes_to_float(const uint8_t* p) {
    int64_t eight;
    std::memcpy(&eight, p, 8);
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(eight)));
}

// One group of 32 columns and half a panel for NT tokens. Every integer here stays below 2^24, so that floats
// hold it exactly and it does not matter which build adds in integers and which in floats.
template <Kind K, int NT>
inline void add_group(const uint8_t* q, const uint8_t* s, int half, int g, const Activations& a, int t0, __m256* f) {
    constexpr int offset = K == Kind::Q4_0 ? 8 : K == Kind::Q5_0 ? 16 : 0;  // Q8_0 is signed already
    const size_t groups = size_t(a.groups()), at = size_t(t0) * groups + g;
    const int8_t* x = a.q + size_t(t0) * a.q_stride + kGroup * size_t(g);
    const uint8_t* lines = q + 32 * half;
    __m256 scale = halves(s + 16 * half), minimum = scale;
    __m256i factor[2], pairs = _mm256_setzero_si256();
    factor[0] = factor[1] = _mm256_set1_epi16(1);
    if constexpr (K == Kind::Q4_1 || K == Kind::Q5_1) minimum = halves(s + 32 + 16 * half);
    if constexpr (K == Kind::Q4_K || K == Kind::Q5_K) {
        scale = _mm256_mul_ps(scale, bytes_to_float(s + 64 + 16 * (g % 8) + 8 * half));
        minimum = _mm256_mul_ps(halves(s + 32 + 16 * half), bytes_to_float(s + 192 + 16 * (g % 8) + 8 * half));
    }
    if constexpr (K == Kind::Q6_K) {
        const __m256i even = _mm256_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13, 0, 1, 0, 1, 4, 5, 4, 5,
                                              8, 9, 8, 9, 12, 13, 12, 13);
        pairs = _mm256_cvtepi8_epi16(half_line(s + 32 + 32 * (g % 8) + 16 * half));
        factor[0] = _mm256_shuffle_epi8(pairs, even);
        factor[1] = _mm256_shuffle_epi8(pairs, _mm256_add_epi8(even, _mm256_set1_epi8(2)));
    }
    __m256i w[4], sum[NT];
    unpack<K, 0>(lines, w);
    for (int t = 0; t < NT; t++) sum[t] = dot4<K>(w, x + size_t(t) * a.q_stride, factor[0]);
    unpack<K, 1>(lines, w);
    for (int t = 0; t < NT; t++) {
        const size_t i = at + size_t(t) * groups;
        sum[t] = _mm256_add_epi32(sum[t], dot4<K>(w, x + size_t(t) * a.q_stride + 16, factor[1]));
        if constexpr (K == Kind::Q6_K)
            sum[t] = _mm256_sub_epi32(sum[t], _mm256_slli_epi32(_mm256_madd_epi16(pairs, pair(a.sum16 + 2 * i)), 5));
        __m256 v = _mm256_cvtepi32_ps(sum[t]);
        if constexpr (offset != 0) v = _mm256_fnmadd_ps(_mm256_set1_ps(float(offset)), _mm256_set1_ps(a.sum[i]), v);
        f[t] = _mm256_fmadd_ps(scale, _mm256_mul_ps(v, _mm256_set1_ps(a.scale[i])), f[t]);
        if constexpr (K == Kind::Q4_K || K == Kind::Q5_K)
            f[t] = _mm256_fnmadd_ps(minimum, _mm256_set1_ps(a.scaled[i]), f[t]);
        else if constexpr (K == Kind::Q4_1 || K == Kind::Q5_1)
            f[t] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(a.scaled[i]), f[t]);
    }
}

template <Kind K, int NT>
void panel_tile(const Matrix& m, const Activations& a, int p, int t0, const MatmulOut& out) {
    __m256 f[2][NT];
    for (int half = 0; half < 2; half++)
        for (int t = 0; t < NT; t++) f[half][t] = _mm256_setzero_ps();
    for (int half = 0; half < 2; half++) {
        const uint8_t* q = m.q + size_t(p) * m.q_stride;
        const uint8_t* s = m.scales + size_t(p) * m.scale_stride;
        for (int g = 0; g < a.groups(); g++) {
            add_group<K, NT>(q, s, half, g, a, t0, f[half]);
            q += kGroupBytes<K>;
            if (!kSuper<K> || g % 8 == 7) s += kScaleBytes<K>;
        }
    }
    for (int t = 0; t < NT; t++) store_panel(out, m.rows, p, t0 + t, V16{f[0][t], f[1][t]});
}

template <Kind K>
void integer_matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    constexpr int widest = 4;
    for (int p = p0; p < p1; p++)
        for (int t = 0, tiles = (a.tokens + widest - 1) / widest; t < a.tokens; tiles--) {
            const int width = (a.tokens - t + tiles - 1) / tiles;  // tiles of nearly equal width
            switch (width) {
                case 1: panel_tile<K, 1>(m, a, p, t, out); break;
                case 2: panel_tile<K, 2>(m, a, p, t, out); break;
                case 3: panel_tile<K, 3>(m, a, p, t, out); break;
                default: panel_tile<K, 4>(m, a, p, t, out); break;
            }
            t += width;
        }
}

}  // namespace

OUTRIDER_KERNEL_TABLE(avx2_kernels, "avx2")

}  // namespace outrider
#else
namespace outrider {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace outrider
#endif
