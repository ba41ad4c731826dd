// The oracle: plain C++ with the same integers and the same order of float steps as every other build.
#define OUTRIDER_PORTABLE
#include "kernels_common.h"

namespace outrider {
namespace {

// Slice s, row r, column c of a group's lines (layout.h).
template <Kind K>
inline int weight(const uint8_t* lines, int s, int byte) {
    if constexpr (K == Kind::Q8_0) return lines[64 * s + byte];
    if constexpr (K == Kind::Q3_0) {
        if (s < 6) return lines[64 * (s % 3) + byte] >> (3 * (s / 3)) & 7;
        int rest = 0;
        for (int i = 0; i < 3; i++) rest |= lines[64 * i + byte] >> 6 << (2 * i);
        return rest >> (3 * (s - 6)) & 7;
    }
    const int low = lines[64 * (s % 4) + byte] >> (s < 4 ? 0 : 4) & 15;
    if constexpr (K == Kind::Q5_0 || K == Kind::Q5_1 || K == Kind::Q5_K)
        return low | (lines[256 + byte] >> s & 1) << 4;
    if constexpr (K == Kind::Q6_K) return low | (lines[256 + 64 * (s / 4) + byte] >> (2 * (s % 4)) & 3) << 4;
    return low;
}

// sum[row] = products of slices [s0, s1) of one group
template <Kind K>
inline void dot(const uint8_t* lines, const int8_t* a, int s0, int s1, int32_t* sum) {
    for (int r = 0; r < kPanel; r++) sum[r] = 0;
    for (int s = s0; s < s1; s++)
        for (int r = 0; r < kPanel; r++)
            for (int c = 0; c < 4; c++) sum[r] += weight<K>(lines, s, 4 * r + c) * a[4 * s + c];
}

inline V16 to_float(const int32_t* v) {
    V16 r;
    for (int i = 0; i < 16; i++) r.v[i] = float(v[i]);
    return r;
}

inline V16 halves(const uint8_t* p) { return vload(reinterpret_cast<const uint16_t*>(p)); }

// The contribution of one group of 32 columns, in the order that every build follows; of Q6_K what the superblock's
// scale is still to be multiplied with.
template <Kind K>
inline V16 add_group(const uint8_t* lines, const uint8_t* scales, int g, const Activations& a, int t, V16 f) {
    constexpr int offset = kOffset<K>;
    const size_t at = a.at(t, g);
    const int8_t* q = a.q + kGroup * at;
    const V16 activation_scale = vset(a.scale[at]), scaled_sum = vset(a.scaled[at]);
    int32_t total[kPanel];
    if constexpr (K == Kind::Q6_K) {
        int32_t part[kPanel] = {0};
        std::memset(total, 0, sizeof total);
        for (int h = 0; h < 2; h++) {
            dot<K>(lines, q, 4 * h, 4 * h + 4, part);
            for (int r = 0; r < kPanel; r++) {
                const int32_t scale = int8_t(scales[32 + 32 * (g % 8) + 2 * r + h]);
                total[r] += scale * (part[r] - 32 * int32_t(a.sum16[2 * at + h]));
            }
        }
        return vfma(to_float(total), activation_scale, f);
    }
    dot<K>(lines, q, 0, 8, total);
    for (int r = 0; r < kPanel; r++) total[r] -= offset * a.sum[at];
    const V16 product = vmul(to_float(total), activation_scale);
    if constexpr (K == Kind::Q4_K || K == Kind::Q5_K) {
        V16 scale, minimum;
        for (int r = 0; r < kPanel; r++) {
            scale.v[r] = float(scales[64 + 16 * (g % 8) + r]);
            minimum.v[r] = float(scales[192 + 16 * (g % 8) + r]);
        }
        f = vfma(vmul(halves(scales), scale), product, f);
        return vfma(vmul(halves(scales + 32), minimum), vsub(vset(-0.0f), scaled_sum), f);
    }
    f = vfma(halves(scales), product, f);
    if constexpr (K == Kind::Q4_1 || K == Kind::Q5_1) f = vfma(halves(scales + 32), scaled_sum, f);
    return f;
}

template <Kind K>
void integer_matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    const int groups_per_scale = info(K).block_columns / kGroup;
    for (int p = p0; p < p1; p++)
        for (int t = 0; t < a.tokens; t++) {
            V16 f = vset(0.0f), sum = f;  // of Q6_K's superblock at hand
            for (int g = 0; g < a.groups(); g++) {
                const uint8_t* lines = m.q + p * m.q_stride + size_t(g) * info(K).q_group_bytes;
                const uint8_t* scales = m.scales + p * m.scale_stride + size_t(g / groups_per_scale) * info(K).scale_bytes;
                if constexpr (K == Kind::Q6_K) {
                    sum = add_group<K>(lines, scales, g, a, t, g % 8 == 0 ? vset(0.0f) : sum);
                    if (g % 8 == 7) f = vfma(halves(scales), sum, f);
                } else {
                    f = add_group<K>(lines, scales, g, a, t, f);
                }
            }
            store_panel(out, m.rows, p, t, f);
        }
}

}  // namespace

OUTRIDER_KERNEL_TABLE(portable_kernels, "portable")

}  // namespace outrider
