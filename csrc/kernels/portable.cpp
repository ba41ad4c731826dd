// The oracle: plain C++ with the same integers and the same order of float steps as every other build.
#define OUTRIDER_PORTABLE
#include "kernels/common.h"

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

// f and the contribution of one group of 32 columns, in the order that every build follows.
template <Kind K>
inline V16 add_group(const uint8_t* lines, const uint8_t* scales, int g, const Activations& a, int t, V16 f) {
    const size_t at = a.at(t, g);
    int32_t total[kPanel];
    dot<K>(lines, a.q + kGroup * at, 0, 8, total);
    for (int r = 0; r < kPanel; r++) total[r] -= kOffset<K> * a.sum[at];
    f = vfma(halves(scales), vmul(to_float(total), vset(a.scale[at])), f);
    return kMinimum<K> ? vfma(halves(scales + 32), vset(a.scaled[at]), f) : f;
}

// f and the contribution of superblock b: integers but for its own scales.
template <Kind K>
inline V16 add_block(const uint8_t* lines, const uint8_t* scales, int b, const Activations& a, int t, V16 f) {
    constexpr int halves_of_group = K == Kind::Q6_K ? 2 : 1, slices = 8 / halves_of_group;
    int32_t total[kPanel] = {0}, minimum[kPanel] = {0}, sum[kPanel];
    for (int i = 0; i < kParts; i++, lines += kGroupBytes<K>) {
        const int g = kParts * b + i;
        const size_t at = a.at(t, g);
        const int shift = a.shifts[2 * at] + kNarrower<K>;
        for (int h = 0; h < halves_of_group; h++) {
            dot<K>(lines, a.q + kGroup * at, slices * h, slices * h + slices, sum);
            const int32_t start = K == Kind::Q6_K ? a.centre[2 * at + h] : rounding<K>(a, at, g % 2);
            for (int r = 0; r < kPanel; r++) {
                const int32_t scale =
                    K == Kind::Q6_K ? int8_t(scales[32 + 32 * i + 2 * r + h]) : scales[64 + 16 * i + r];
                total[r] += scale * int16_t((sum[r] + start) >> shift);
            }
        }
        if (K != Kind::Q6_K)
            for (int r = 0; r < kPanel; r++)
                minimum[r] += scales[192 + 16 * i + r] * a.eighths[2 * a.at(t, g, 2) + size_t(g % 2)];
    }
    const V16 step = vmul(halves(scales), vset(2 << kNarrower<K>));
    V16 value = vmul(step, to_float(total));
    if constexpr (K != Kind::Q6_K) {
        const V16 less = vmul(vmul(halves(scales + 32), vset(0.125f)), to_float(minimum));
        value = vfma(step, to_float(total), vsub(vset(-0.0f), less));
    }
    return vfma(vset(a.whole[a.at(t, kParts * b, kParts)]), value, f);
}

template <Kind K>
void integer_matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    constexpr int parts = kSuper<K> ? kParts : 1;
    for (int p = p0; p < p1; p++)
        for (int t = 0; t < a.tokens; t++) {
            const uint8_t* lines = m.q + p * m.q_stride;
            const uint8_t* scales = m.scales + p * m.scale_stride;
            V16 f = vset(0.0f);
            for (int i = 0; i < a.groups() / parts; i++) {
                if constexpr (kSuper<K>)
                    f = add_block<K>(lines, scales, i, a, t, f);
                else
                    f = add_group<K>(lines, scales, i, a, t, f);
                lines += parts * kGroupBytes<K>;
                scales += kScaleBytes<K>;
            }
            store_panel(out, m.rows, p, t, f);
        }
}

}  // namespace

OUTRIDER_KERNEL_TABLE(portable_kernels, "portable")

}  // namespace outrider
