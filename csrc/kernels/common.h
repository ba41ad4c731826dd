// Everything but the integer matrix products: written once on V16, included by each kernel file.
#pragma once
#include <type_traits>

#include "kernels/attention.h"
#include "kernels/block_scale.h"
#include "kernels/kernels.h"
#include "kernels/simd.h"

namespace outrider {
namespace {

// What layout.h says of a kind, for the code that is made for each.
template <Kind K>
constexpr bool kSuper = K == Kind::Q4_K || K == Kind::Q5_K || K == Kind::Q6_K;
template <Kind K>
constexpr bool kMinimum = K == Kind::Q4_1 || K == Kind::Q5_1;
template <Kind K>
constexpr int kGroupBytes = K == Kind::Q8_0                                         ? 512
                            : K == Kind::Q6_K                                       ? 384
                            : K == Kind::Q3_0                                       ? 192
                            : K == Kind::Q4_0 || K == Kind::Q4_1 || K == Kind::Q4_K ? 256
                                                                                    : 320;
template <Kind K>
constexpr int kScaleBytes = K == Kind::Q6_K ? 288
                            : kSuper<K>     ? 320
                            : kMinimum<K>   ? 64
                                            : 32;
template <Kind K>
constexpr int kOffset = K == Kind::Q3_0   ? 4
                        : K == Kind::Q4_0 ? 8
                        : K == Kind::Q5_0 ? 16
                        : K == Kind::Q8_0 ? 128
                                          : 0;
// Sums of a group's products are shifted by one bit, and by this many more, to fit 16 bits (of Q6_K each
// half's).
template <Kind K>
constexpr int kNarrower = K == Kind::Q5_K ? 1 : 0;
// What is added before that, `odd` being the group's number modulo 2 (of Q6_K it is in Activations::centre).
template <Kind K>
inline int32_t rounding(const Activations& a, size_t at, int odd) {
    return K == Kind::Q5_K ? 2 * a.round[at] + odd : a.round[at];
}

inline void store_panel(const MatmulOut& o, int rows, int panel, int token, V16 v) {
    const int row = panel * kPanel, count = imin(kPanel, rows - row);
    float* out = o.out + size_t(token) * o.stride + (row - o.first);
    if (count == kPanel) {
        if (o.bias) v = vadd(v, vload(o.bias + row));
        if (o.add) v = vadd(vload(out), v);
        vstore(out, v);
        return;
    }
    float t[kPanel];
    vstore(t, v);
    for (int i = 0; i < count; i++) {
        if (o.bias) t[i] = t[i] + o.bias[row + i];
        out[i] = o.add ? out[i] + t[i] : t[i];
    }
}

// tile(width) with `width` as a constant.
template <int MOST, class Tile>
inline void with_width(int width, const Tile& tile) {
    if constexpr (MOST > 1)
        if (width < MOST) return with_width<MOST - 1>(width, tile);
    tile(std::integral_constant<int, MOST>{});
}

// tile(first token, width) for tiles of nearly equal width, each inside a bundle.
template <int WIDEST, class Tile>
inline void each_tile(const Activations& a, const Tile& tile) {
    for (int bundle = 0; bundle < a.tokens; bundle += a.pitch) {
        const int end = imin(bundle + a.pitch, a.tokens);
        for (int t = bundle, tiles = (end - bundle + WIDEST - 1) / WIDEST; t < end; tiles--) {
            const int width = (end - t + tiles - 1) / tiles;
            with_width<WIDEST>(width, [&](auto constant) { tile(t, constant); });
            t += width;
        }
    }
}

// Where a tile's activations are: Activations::at of a group, of a pair of groups and of a superblock.
struct Place {
    size_t at, pair_at, whole_at;
};

// add(integers, scales, place) for each group, or superblock, of a panel and a tile that begins with token
// t0.
template <Kind K, class Add>
inline __attribute__((always_inline)) void each_part(const Matrix& m, const Activations& a, int panel, int t0,
                                                     const Add& add) {
    constexpr int parts = kSuper<K> ? kParts : 1;
    const size_t pitch = size_t(a.pitch);
    const uint8_t* q = m.q + size_t(panel) * m.q_stride;
    const uint8_t* s = m.scales + size_t(panel) * m.scale_stride;
    Place place{a.at(t0, 0), a.at(t0, 0, 2), a.at(t0, 0, kParts)};
    for (int g = 0; g < a.groups(); g += parts, q += parts * kGroupBytes<K>, s += kScaleBytes<K>) {
        add(q, s, place);
        place.at += parts * pitch;
        place.pair_at += parts / 2 * pitch;
        place.whole_at += pitch;
    }
}

// Float weights: four partial sums, columns taken modulo four, added as (0 + 1) + (2 + 3).
template <Kind K>
inline V16 load_weights(const uint8_t* q, int column) {
    if constexpr (K == Kind::F32) return vload(reinterpret_cast<const float*>(q) + size_t(column) * kPanel);
    const uint16_t* h = reinterpret_cast<const uint16_t*>(q) + size_t(column) * kPanel;
    return K == Kind::F16 ? vload(h) : vload_bf16(h);
}

template <Kind K, int NT>
void float_panel(const Matrix& m, const Activations& a, int panel, int t0, const MatmulOut& out) {
    const uint8_t* q = m.q + size_t(panel) * m.q_stride;
    const float* x = a.x + size_t(t0) * a.columns;
    V16 sum[NT][4];
    for (int t = 0; t < NT; t++)
        for (int i = 0; i < 4; i++) sum[t][i] = vset(0.0f);
    int c = 0;
    for (; c + 4 <= a.columns; c += 4)
        for (int i = 0; i < 4; i++) {
            const V16 w = load_weights<K>(q, c + i);
            for (int t = 0; t < NT; t++)
                sum[t][i] = vfma(w, vset(x[size_t(t) * a.columns + c + i]), sum[t][i]);
        }
    for (; c < a.columns; c++) {
        const V16 w = load_weights<K>(q, c);
        for (int t = 0; t < NT; t++)
            sum[t][c % 4] = vfma(w, vset(x[size_t(t) * a.columns + c]), sum[t][c % 4]);
    }
    for (int t = 0; t < NT; t++)
        store_panel(out, m.rows, panel, t0 + t, vadd(vadd(sum[t][0], sum[t][1]), vadd(sum[t][2], sum[t][3])));
}

template <Kind K>
void float_matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    for (int p = p0; p < p1; p++) {
        int t = 0;
        for (; t + 4 <= a.tokens; t += 4) float_panel<K, 4>(m, a, p, t, out);
        switch (a.tokens - t) {
            case 3:
                float_panel<K, 3>(m, a, p, t, out);
                break;
            case 2:
                float_panel<K, 2>(m, a, p, t, out);
                break;
            case 1:
                float_panel<K, 1>(m, a, p, t, out);
                break;
            default:
                break;
        }
    }
}

void rms_norm(const float* x, const float* weight, float eps, int n, int first, int last, float* y) {
    V16 squares = vset(0.0f);
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        const V16 v = vload(x + i);
        squares = vfma(v, v, squares);
    }
    float total = reduce_add(squares);
    for (; i < n; i++) total = __builtin_fmaf(x[i], x[i], total);
    const float scale = 1.0f / __builtin_sqrtf(total / float(n) + eps);
    for (i = first; i + 16 <= last; i += 16)
        vstore(y + i, vmul(vmul(vload(x + i), vset(scale)), vload(weight + i)));
    for (; i < last; i++) y[i] = x[i] * scale * weight[i];
}

// `at`: of Activations::at
inline Sums store_group(Activations& a, size_t at, V16 low, V16 high, float scale) {
    const Sums sums = vstore_i8(a.q + kGroup * at, low, high);
    const int32_t sum = sums.low + sums.high;
    a.scale[at] = scale;
    a.sum[at] = sum;
    a.scaled[at] = scale * float(sum);
    return sums;
}

// What a group has besides, whose scale is the superblock's / 2^k; `odd` is its number modulo 2, `pair_at` of
// its pair.
inline void store_part(Activations& a, size_t at, size_t pair_at, int odd, int k, Sums sums) {
    const int round = (1 << k) - odd, sum = sums.low + sums.high;
    a.round[at] = round;
    a.shifts[2 * at] = 1 + k;
    a.shifts[2 * at + 1] = 15 - k;
    a.centre[2 * at] = round - 32 * sums.low;
    a.centre[2 * at + 1] = round - 32 * sums.high;
    a.eighths[2 * pair_at + size_t(odd)] =
        int16_t(k < 4 ? sum * (8 >> k) : (sum + (1 << (k - 4))) >> (k - 3));
}

// Asks for what is written for the tokens of a bundle: another thread's cache has it, which read it last.
inline void expect_group(const Activations& a, size_t at) {
    for (int i = 0; i < a.pitch; i += 2) __builtin_prefetch(a.q + kGroup * (at + size_t(i)), 1);
    __builtin_prefetch(a.scale + at, 1);
    __builtin_prefetch(a.sum + at, 1);
    __builtin_prefetch(a.scaled + at, 1);
    if (!a.blocks) return;
    __builtin_prefetch(a.round + at, 1);
    __builtin_prefetch(a.shifts + 2 * at, 1);
    __builtin_prefetch(a.centre + 2 * at, 1);
    __builtin_prefetch(a.eighths + at, 1);
}

// Columns are a multiple of 32 here, or of 256 with superblocks: so are those of the matrices that read them.
template <bool FINE, bool BLOCKS>
inline void quantize_row(Activations& a, int t, int rest_row, int first, int last) {
    constexpr int ahead = 6, parts = BLOCKS ? kParts : 1;  // groups
    constexpr float fine = 254.0f;  // what is left lies within half a step, so within 127 of these steps
    const float* x = a.x + size_t(t) * a.columns + size_t(first) * kGroup;
    const size_t next = size_t(a.pitch);
    size_t at = a.at(t, first), pair_at = a.at(t, first, 2), whole_at = a.at(t, first, kParts);
    const size_t rest = FINE ? a.at(rest_row, first) - at : 0;  // the rest's places are as far behind these:
    const size_t rest_pair = FINE ? a.at(rest_row, first, 2) - pair_at : 0;
    const size_t rest_whole = FINE ? a.at(rest_row, first, kParts) - whole_at : 0;
    for (int g = first; g < last; g += parts, whole_at += next) {
        const auto biggest = [&](int i) {
            return reduce_max(vmax(vabs(vload(x + kGroup * i)), vabs(vload(x + kGroup * i + 16))));
        };
        BlockScale block;
        if constexpr (BLOCKS)
            block = block_scale(Floats8{biggest(0), biggest(1), biggest(2), biggest(3),  //
                                        biggest(4), biggest(5), biggest(6), biggest(7)});
        else
            block = {biggest(0), {0}};
        const float whole = block.whole / 127.0f,
                    inverse = block.whole > 0x1p-100f ? 127.0f / block.whole : 0.0f;
        if constexpr (BLOCKS) {
            a.whole[whole_at] = whole;
            if constexpr (FINE) a.whole[whole_at + rest_whole] = whole / fine;
        }
        for (int i = 0; i < parts; i++, x += kGroup, at += next) {
            if (t % a.pitch == 0 && g + i + ahead < last) expect_group(a, at + ahead * next);
            const int below = block.below[i];
            const float scale = whole * power_of_2(-below);
            const V16 factor = vset(inverse * power_of_2(below));
            const V16 low = vmul(vload(x), factor), high = vmul(vload(x + 16), factor);
            const Sums sums = store_group(a, at, low, high, scale);
            if constexpr (BLOCKS) store_part(a, at, pair_at, i % 2, below, sums);
            if constexpr (FINE) {
                const Sums less = store_group(a, at + rest, vmul(vsub(low, vround(low)), vset(fine)),
                                              vmul(vsub(high, vround(high)), vset(fine)), scale / fine);
                if constexpr (BLOCKS) store_part(a, at + rest, pair_at + rest_pair, i % 2, below, less);
            }
            if (i % 2) pair_at += next;
        }
    }
}
void quantize(Activations& a, int t, int first, int last) {
    a.blocks ? quantize_row<false, true>(a, t, 0, first, last)
             : quantize_row<false, false>(a, t, 0, first, last);
}
void quantize_fine(Activations& a, int t, int rest, int first, int last) {
    a.blocks ? quantize_row<true, true>(a, t, rest, first, last)
             : quantize_row<true, false>(a, t, rest, first, last);
}

inline V16 silu(V16 x) { return vdiv(x, vadd(vset(1.0f), vexp(vsub(vset(0.0f), x)))); }

void silu_mul(const float* gate, const float* up, int n, float* out) {
    int i = 0;
    for (; i + 16 <= n; i += 16) vstore(out + i, vmul(silu(vload(gate + i)), vload(up + i)));
    if (i == n) return;
    float g[16] = {0}, u[16] = {0};
    std::memcpy(g, gate + i, size_t(n - i) * 4);
    std::memcpy(u, up + i, size_t(n - i) * 4);
    vstore(g, vmul(silu(vload(g)), vload(u)));
    std::memcpy(out + i, g, size_t(n - i) * 4);
}

// (x, y) becomes (x cos - y sin, x sin + y cos). The fused forms are spelled out, so that every build rounds
// alike.
void rope(float* head, const float* cos, const float* sin, int dim, bool interleaved) {
    const int half = dim / 2, step = interleaved ? 2 : 1, apart = interleaved ? 1 : half;
    int i = 0;
    for (; !interleaved && i + 16 <= half; i += 16) {
        const V16 x = vload(head + i), y = vload(head + half + i), c = vload(cos + i), s = vload(sin + i);
        vstore(head + i, vfma(x, c, vsub(vset(-0.0f), vmul(y, s))));
        vstore(head + half + i, vfma(x, s, vmul(y, c)));
    }
    for (; i < half; i++) {
        const float x = head[i * step], y = head[i * step + apart];
        head[i * step] = __builtin_fmaf(x, cos[i], -(y * sin[i]));
        head[i * step + apart] = __builtin_fmaf(x, sin[i], y * cos[i]);
    }
}

}  // namespace
}  // namespace outrider

// The dispatch by weight kind; `integer_matmul` is what each kernel file supplies.
#define OUTRIDER_KERNEL_TABLE(function, label)                                                        \
    static void matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) { \
        switch (m.kind) {                                                                             \
            case Kind::F32:                                                                           \
                return float_matmul<Kind::F32>(m, a, p0, p1, out);                                    \
            case Kind::F16:                                                                           \
                return float_matmul<Kind::F16>(m, a, p0, p1, out);                                    \
            case Kind::BF16:                                                                          \
                return float_matmul<Kind::BF16>(m, a, p0, p1, out);                                   \
            case Kind::Q3_0:                                                                          \
                return integer_matmul<Kind::Q3_0>(m, a, p0, p1, out);                                 \
            case Kind::Q4_0:                                                                          \
                return integer_matmul<Kind::Q4_0>(m, a, p0, p1, out);                                 \
            case Kind::Q4_1:                                                                          \
                return integer_matmul<Kind::Q4_1>(m, a, p0, p1, out);                                 \
            case Kind::Q5_0:                                                                          \
                return integer_matmul<Kind::Q5_0>(m, a, p0, p1, out);                                 \
            case Kind::Q5_1:                                                                          \
                return integer_matmul<Kind::Q5_1>(m, a, p0, p1, out);                                 \
            case Kind::Q8_0:                                                                          \
                return integer_matmul<Kind::Q8_0>(m, a, p0, p1, out);                                 \
            case Kind::Q4_K:                                                                          \
                return integer_matmul<Kind::Q4_K>(m, a, p0, p1, out);                                 \
            case Kind::Q5_K:                                                                          \
                return integer_matmul<Kind::Q5_K>(m, a, p0, p1, out);                                 \
            case Kind::Q6_K:                                                                          \
                return integer_matmul<Kind::Q6_K>(m, a, p0, p1, out);                                 \
        }                                                                                             \
    }                                                                                                 \
    const Kernels* function() {                                                                       \
        static const Kernels table = {label, matmul,   rms_norm, quantize, quantize_fine, silu_mul,   \
                                      rope,  store_kv, copy_kv,  attend,   join_spans,    end_spans}; \
        return &table;                                                                                \
    }
