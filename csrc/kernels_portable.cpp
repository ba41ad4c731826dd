// The oracle: plain C++ with the same integers and the same order of float steps as every other build.
#define OUTRIDER_PORTABLE
#include "kernels_common.h"

namespace outrider {
namespace {

// Slice s, row r, column c of a group's lines (layout.h).
template <Kind K>
inline int weight(const uint8_t* lines, int s, int byte) {
    if constexpr (K == Kind::Q8_0) return lines[64 * s + byte];
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

template <Kind K>
inline V16 k_block(const uint8_t* lines, const uint8_t* scales, const int8_t* a, const int16_t* sum16,
                   const int16_t* sum32) {
    int32_t total[kPanel] = {0}, offset[kPanel] = {0}, part[kPanel];
    for (int g = 0; g < 8; g++, lines += info(K).q_group_bytes) {
        if constexpr (K == Kind::Q6_K) {
            for (int h = 0; h < 2; h++) {
                dot<K>(lines, a + 32 * g, 4 * h, 4 * h + 4, part);
                for (int r = 0; r < kPanel; r++) {
                    const int32_t scale = int8_t(scales[32 + 32 * g + 2 * r + h]);
                    total[r] += scale * (part[r] - 32 * int32_t(sum16[2 * g + h]));
                }
            }
        } else {
            dot<K>(lines, a + 32 * g, 0, 8, part);
            for (int r = 0; r < kPanel; r++) {
                total[r] += int32_t(scales[64 + 16 * g + r]) * part[r];
                offset[r] += int32_t(scales[192 + 32 * (g / 2) + 2 * r + g % 2]) * sum32[g];
            }
        }
    }
    const V16 value = vmul(halves(scales), to_float(total));
    if constexpr (K == Kind::Q6_K) return value;
    const V16 minimum = vmul(halves(scales + 32), to_float(offset));
    return vfma(halves(scales), to_float(total), vsub(vset(-0.0f), minimum));
}

template <Kind K>
inline V16 group_block(const uint8_t* lines, const uint8_t* scales, const int8_t* a, const float* fsum32, int groups) {
    constexpr int offset = K == Kind::Q4_0 ? 8 : K == Kind::Q5_0 ? 16 : K == Kind::Q8_0 ? 128 : 0;
    V16 z = vset(0.0f);
    int32_t part[kPanel];
    for (int g = 0; g < groups; g++, lines += info(K).q_group_bytes, scales += info(K).scale_bytes) {
        dot<K>(lines, a + 32 * g, 0, 8, part);
        for (int r = 0; r < kPanel; r++) part[r] -= offset * int32_t(fsum32[g]);
        z = vfma(halves(scales), to_float(part), z);
        if constexpr (offset == 0) z = vfma(halves(scales + 32), vset(fsum32[g]), z);
    }
    return z;
}

template <Kind K>
void integer_matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    constexpr bool superblocks = K == Kind::Q4_K || K == Kind::Q5_K || K == Kind::Q6_K;
    for (int p = p0; p < p1; p++)
        for (int t = 0; t < a.tokens; t++) {
            V16 f = vset(0.0f);
            for (int b = 0; b < a.blocks; b++) {
                const int first = b * 8, groups = imin(8, a.columns / kGroup - first);
                const uint8_t* lines = m.q + p * m.q_stride + size_t(first) * info(K).q_group_bytes;
                const uint8_t* scales = m.scales + p * m.scale_stride + size_t(superblocks ? b : first) * info(K).scale_bytes;
                const int8_t* q = a.q + size_t(t) * a.q_stride + kBlock * size_t(b);
                const int16_t* sum16 = a.sum16 + size_t(t) * (a.columns / 16) + 16 * b;
                const int16_t* sum32 = a.sum32 + size_t(t) * a.groups() + first;
                const float* fsum32 = a.fsum32 + size_t(t) * a.groups() + first;
                V16 z;
                if constexpr (superblocks)
                    z = k_block<K>(lines, scales, q, sum16, sum32);
                else
                    z = group_block<K>(lines, scales, q, fsum32, groups);
                f = vfma(z, vset(a.scale[size_t(t) * a.blocks + b]), f);
            }
            store_panel(out, m.rows, p, t, f);
        }
}

}  // namespace

OUTRIDER_KERNEL_TABLE(portable_kernels, "portable")

}  // namespace outrider
