// What all instruction sets share, written once on V16 and included by each kernel file: everything but the
// integer matrix products.
#pragma once
#include <type_traits>

#include "kernels/attention.h"
#include "kernels/kernels.h"
#include "kernels/quantize_activations.h"
#include "kernels/simd.h"

namespace outrider {
namespace {

// The facts of types.h, for code that is compiled for each weight type.
template <WeightType W>
constexpr bool kIsSuperblock = info(W).is_superblock;
template <WeightType W>
constexpr bool kHasMinimum = info(W).has_minimum;
template <WeightType W>
constexpr bool kHalfGroups = info(W).scale_columns == kGroup / 2;  // each half of a group has its own scale
template <WeightType W>
constexpr int kBits = info(W).bits;
template <WeightType W>
constexpr int kGroupBytes = int(info(W).group_bytes());
template <WeightType W>
constexpr int kScaleBytes = info(W).scale_bytes;
// Groups, or superblocks, that have the same scales.
template <WeightType W>
constexpr int kShareScales = kIsSuperblock<W> ? 1 : info(W).block_columns / kGroup;
template <WeightType W>
constexpr int kFractionBits = info(W).fraction_bits;
template <WeightType W>
constexpr int kOffset = info(W).offset << kFractionBits<W>;
template <WeightType W>
constexpr int kExtraShift = info(W).extra_shift;
template <WeightType W>
constexpr bool kHasCodebook = info(W).codebook != nullptr;
template <WeightType W>
constexpr bool kHasExponents = W == WeightType::MXFP4;  // scales are powers of two, as a byte (E8M0)
template <WeightType W>
constexpr bool kHasZeroPoint = info(W).has_zero_point;  // float32 scales, and integers that become 0
template <WeightType W>
constexpr bool kHasHalfMinimums = info(W).has_half_minimums();
template <WeightType W>
constexpr bool kHasFactors = info(W).scale_columns < kSuperblock;  // parts of superblocks have scales
// What a superblock's sums of products, and of minimums, are multiplied by, besides its scales.
template <WeightType W>
constexpr float kProductScale = float(2 << kExtraShift<W>) / float(1 << kFractionBits<W>);
template <WeightType W>
constexpr float kMinimumScale = kHasHalfMinimums<W> ? 0.0625f : 0.125f;

// The first type that is packed alike: types that differ only in the file have one product.
constexpr WeightType packed_type(WeightType type) {
    const WeightTypeInfo& a = info(type);
    for (const WeightTypeInfo& b : kWeightTypes)
        if (a.block_columns == b.block_columns && a.bits == b.bits && a.scale_columns == b.scale_columns &&
            a.scale_bytes == b.scale_bytes && a.offset == b.offset && a.extra_shift == b.extra_shift &&
            a.is_float == b.is_float && a.is_superblock == b.is_superblock &&
            a.has_minimum == b.has_minimum && a.codebook == b.codebook &&
            a.fraction_bits == b.fraction_bits && a.has_zero_point == b.has_zero_point)
            return b.type;
    return type;
}

template <WeightType W>
constexpr int largest_integer() {
    constexpr int integers = 1 << kBits<W>;
    int largest = (integers - 1) << kFractionBits<W>;
    if constexpr (kHasCodebook<W>) {
        largest = 0;
        for (int i = 0; i < 16; i++)
            if (info(W).codebook[i] + kOffset<W> > largest) largest = info(W).codebook[i] + kOffset<W>;
    }
    return largest;
}
// Of the unsigned integers that weights are unpacked to.
template <WeightType W>
constexpr int kLargest = largest_integer<W>();

// A codebook as a table for instructions that look up 16 bytes at once: its values plus `offset`.
template <WeightType W, int OFFSET>
struct ByteTable {
    alignas(16) uint8_t values[16];
    constexpr ByteTable() : values() {
        for (int i = 0; i < 16; i++) values[i] = uint8_t(info(W).codebook[i] + OFFSET);
    }
};
template <WeightType W, int OFFSET>
constexpr ByteTable<W, OFFSET> kByteTable{};

// Added to a group's sum before it is shifted right by a.shifts + kExtraShift, so that it is rounded, and its
// products have no offset; `odd` is the group's number modulo 2. (Types with kHalfGroups use a.centred_start
// instead.)
template <WeightType W, int OFFSET = kOffset<W>>
inline int32_t rounded_start(const Activations& a, size_t at, int odd) {
    const int32_t rounding =
        kExtraShift<W> ? (a.rounding[at] << kExtraShift<W>)+odd * ((1 << kExtraShift<W>)-1) : a.rounding[at];
    return OFFSET ? rounding - OFFSET * a.sum[at] : rounding;
}

inline void store_panel(const MatmulOut& o, int rows, int panel, int token, V16 v) {
    const int row = panel * kPanel, count = imin(kPanel, rows - row);
    float* out = o.out + size_t(token) * o.stride + (row - o.first_row);
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

// Calls tile(width) with `width`, at most WIDEST, as a compile-time constant.
template <int WIDEST, class Tile>
inline void with_constant_width(int width, const Tile& tile) {
    if constexpr (WIDEST > 1)
        if (width < WIDEST) return with_constant_width<WIDEST - 1>(width, tile);
    tile(std::integral_constant<int, WIDEST>{});
}

// Calls tile(first token, width) for register tiles: each token tile is cut into as few as hold at most
// WIDEST tokens, of nearly equal width.
template <int WIDEST, class Tile>
inline void for_register_tiles(const Activations& a, const Tile& tile) {
    for (int first = 0; first < a.tokens; first += a.tile_tokens) {
        const int end = imin(first + a.tile_tokens, a.tokens);
        for (int t = first, tiles = (end - first + WIDEST - 1) / WIDEST; t < end; tiles--) {
            const int width = (end - t + tiles - 1) / tiles;
            with_constant_width<WIDEST>(width, [&](auto constant) { tile(t, constant); });
            t += width;
        }
    }
}

// Activations::at of a group, of its pair of groups and of its superblock.
struct ActivationIndex {
    size_t group, pair, superblock;
};

// Calls add(integers, scales, index) for each group, or superblock, of a panel; `index` is that of token t0.
// Several groups may share their scales.
template <WeightType W, class Add>
inline __attribute__((always_inline)) void for_groups(const Matrix& m, const Activations& a, int panel,
                                                      int t0, const Add& add) {
    constexpr int groups = kIsSuperblock<W> ? kSuperblockGroups : 1, shared = kShareScales<W>;
    const size_t step = size_t(a.tile_tokens);
    const uint8_t* q = m.q + size_t(panel) * m.q_stride;
    const uint8_t* s = m.scales + size_t(panel) * m.scale_stride;
    ActivationIndex index{a.at(t0, 0), a.at(t0, 0, 2), a.at(t0, 0, kSuperblockGroups)};
    for (int g = 0; g < a.groups(); g += groups, q += groups * kGroupBytes<W>) {
        add(q, s, index);
        if (shared == 1 || (g + 1) % shared == 0) s += kScaleBytes<W>;
        index.group += groups * step;
        index.pair += groups / 2 * step;
        index.superblock += step;
    }
}

// Float weights: four partial sums, of columns modulo four, added as (0 + 1) + (2 + 3).
template <WeightType W>
inline V16 load_weights(const uint8_t* q, int column) {
    if constexpr (W == WeightType::F32)
        return vload(reinterpret_cast<const float*>(q) + size_t(column) * kPanel);
    const uint16_t* h = reinterpret_cast<const uint16_t*>(q) + size_t(column) * kPanel;
    return W == WeightType::F16 ? vload(h) : vload_bf16(h);
}

// The same within each block of weights that share a scale; then the scaled sums of the blocks, in order.
template <WeightType W, int NT>
void scaled_float_panel(const Matrix& m, const Activations& a, int panel, int t0, const MatmulOut& out) {
    constexpr int block = info(W).block_columns;
    const uint8_t* q = m.q + size_t(panel) * m.q_stride;
    const uint8_t* s = m.scales + size_t(panel) * m.scale_stride;
    const float* x = a.x + size_t(t0) * a.columns;
    V16 total[NT];
    for (int t = 0; t < NT; t++) total[t] = vset(0.0f);
    for (int first = 0; first < a.columns; first += block, s += kScaleBytes<W>) {
        V16 sum[NT][4];
        for (int t = 0; t < NT; t++)
            for (int i = 0; i < 4; i++) sum[t][i] = vset(0.0f);
        for (int c = first; c < first + block; c += 4)
            for (int i = 0; i < 4; i++) {
                const V16 w = vload_e4m3(q + size_t(c + i) * kPanel);
                for (int t = 0; t < NT; t++)
                    sum[t][i] = vfma(w, vset(x[size_t(t) * a.columns + c + i]), sum[t][i]);
            }
        const V16 scale = vmul(vload(reinterpret_cast<const float*>(s)), vset(kE4M3Factor));
        for (int t = 0; t < NT; t++)
            total[t] = vfma(scale, vadd(vadd(sum[t][0], sum[t][1]), vadd(sum[t][2], sum[t][3])), total[t]);
    }
    for (int t = 0; t < NT; t++) store_panel(out, m.rows, panel, t0 + t, total[t]);
}

template <WeightType W, int NT>
void float_panel(const Matrix& m, const Activations& a, int panel, int t0, const MatmulOut& out) {
    if constexpr (kScaleBytes<W> > 0) return scaled_float_panel<W, NT>(m, a, panel, t0, out);
    const uint8_t* q = m.q + size_t(panel) * m.q_stride;
    const float* x = a.x + size_t(t0) * a.columns;
    V16 sum[NT][4];
    for (int t = 0; t < NT; t++)
        for (int i = 0; i < 4; i++) sum[t][i] = vset(0.0f);
    int c = 0;
    for (; c + 4 <= a.columns; c += 4)
        for (int i = 0; i < 4; i++) {
            const V16 w = load_weights<W>(q, c + i);
            for (int t = 0; t < NT; t++)
                sum[t][i] = vfma(w, vset(x[size_t(t) * a.columns + c + i]), sum[t][i]);
        }
    for (; c < a.columns; c++) {
        const V16 w = load_weights<W>(q, c);
        for (int t = 0; t < NT; t++)
            sum[t][c % 4] = vfma(w, vset(x[size_t(t) * a.columns + c]), sum[t][c % 4]);
    }
    for (int t = 0; t < NT; t++)
        store_panel(out, m.rows, panel, t0 + t, vadd(vadd(sum[t][0], sum[t][1]), vadd(sum[t][2], sum[t][3])));
}

template <WeightType W>
void float_matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    for (int p = p0; p < p1; p++) {
        int t = 0;
        for (; t + 4 <= a.tokens; t += 4) float_panel<W, 4>(m, a, p, t, out);
        switch (a.tokens - t) {
            case 3:
                float_panel<W, 3>(m, a, p, t, out);
                break;
            case 2:
                float_panel<W, 2>(m, a, p, t, out);
                break;
            case 1:
                float_panel<W, 1>(m, a, p, t, out);
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

// What the sum of half a group's products begins with: its rounding, and no offset. `odd` is the group's
// number modulo 2. a.centred_start is for Q6_K's offset and shift; the offset of types that are shifted
// further is so many times as large.
template <WeightType W>
inline int32_t half_start(const Activations& a, size_t at, int half, int odd) {
    constexpr int extra = kExtraShift<W>;
    if constexpr (kHasMinimum<W>) {
        static_assert(kOffset<W> == 0 && extra == 0);
        return a.rounding[at];
    }
    static_assert(kHasMinimum<W> || kOffset<W> == info(WeightType::Q6_K).offset << extra);
    return a.centred_start[2 * at + size_t(half)] * (1 << extra) + odd * ((1 << extra) - 1);
}

inline V16 silu(V16 x) { return vdiv(x, vadd(vset(1.0f), vexp(vsub(vset(0.0f), x)))); }

// x / 2 (1 + tanh z) = x / (1 + e^-2z), with z = sqrt(2 / pi) (x + 0.044715 x^3).
inline V16 gelu_tanh(V16 x) {
    const V16 cubic = vfma(vmul(vmul(x, x), vset(0.044715f)), x, x);
    return vdiv(x, vadd(vset(1.0f), vexp(vmul(cubic, vset(-1.5957691216f)))));
}

template <V16 (*Activation)(V16)>
void activate_mul(const float* gate, const float* up, int n, float* out) {
    int i = 0;
    for (; i + 16 <= n; i += 16) vstore(out + i, vmul(Activation(vload(gate + i)), vload(up + i)));
    if (i == n) return;
    float g[16] = {0}, u[16] = {0};
    std::memcpy(g, gate + i, size_t(n - i) * 4);
    std::memcpy(u, up + i, size_t(n - i) * 4);
    vstore(g, vmul(Activation(vload(g)), vload(u)));
    std::memcpy(out + i, g, size_t(n - i) * 4);
}
void silu_mul(const float* gate, const float* up, int n, float* out) { activate_mul<silu>(gate, up, n, out); }
void gelu_mul(const float* gate, const float* up, int n, float* out) {
    activate_mul<gelu_tanh>(gate, up, n, out);
}

void scale_and_cap(float* x, int n, float scale, float softcap) {
    const float inverse = softcap == 0 ? 0.0f : 1.0f / softcap;
    const auto sixteen = [&](V16 v) {
        v = vmul(v, vset(scale));
        return softcap == 0 ? v : vmul(vtanh(vmul(v, vset(inverse))), vset(softcap));
    };
    int i = 0;
    for (; i + 16 <= n; i += 16) vstore(x + i, sixteen(vload(x + i)));
    if (i == n) return;
    float rest[16] = {0};
    std::memcpy(rest, x + i, size_t(n - i) * 4);
    vstore(rest, sixteen(vload(rest)));
    std::memcpy(x + i, rest, size_t(n - i) * 4);
}

// (x, y) becomes (x cos - y sin, x sin + y cos). Fused multiplications are written out, so that every build
// rounds in the same way.
void rope_halves(float* head, const float* cos, const float* sin, int dim) {
    const int half = dim / 2;
    int i = 0;
    for (; i + 16 <= half; i += 16) {
        const V16 x = vload(head + i), y = vload(head + half + i), c = vload(cos + i), s = vload(sin + i);
        vstore(head + i, vfma(x, c, vsub(vset(-0.0f), vmul(y, s))));
        vstore(head + half + i, vfma(x, s, vmul(y, c)));
    }
    for (; i < half; i++) {
        const float x = head[i], y = head[half + i];
        head[i] = __builtin_fmaf(x, cos[i], -(y * sin[i]));
        head[half + i] = __builtin_fmaf(x, sin[i], y * cos[i]);
    }
}

void rope_pairs(float* head, const float* cos_sin, const float* sin_cos, int dim) {
    int i = 0;
    for (; i + 16 <= dim; i += 16) {
        const V16 v = vload(head + i);
        vstore(head + i, vfma(vfirsts(v), vload(cos_sin + i), vmul(vseconds(v), vload(sin_cos + i))));
    }
    for (; i < dim; i += 2) {
        const float x = head[i], y = head[i + 1];
        head[i] = __builtin_fmaf(x, cos_sin[i], y * sin_cos[i]);
        head[i + 1] = __builtin_fmaf(x, cos_sin[i + 1], y * sin_cos[i + 1]);
    }
}

}  // namespace
}  // namespace outrider

// The table of one instruction set. Its file defines before: integer_matmul, and the widths of its token
// tiles, kTokenTile and kUsualTokenTile.
#define OUTRIDER_MATMUL_CASE(type) \
    case WeightType::type:         \
        return integer_matmul<packed_type(WeightType::type)>(m, a, p0, p1, out);
#define OUTRIDER_FLOAT_MATMUL_CASE(type) \
    case WeightType::type:               \
        return float_matmul<WeightType::type>(m, a, p0, p1, out);
#define OUTRIDER_INTEGER_MATMUL_CASES \
    OUTRIDER_MATMUL_CASE(Q3_0)        \
    OUTRIDER_MATMUL_CASE(Q4_0)        \
    OUTRIDER_MATMUL_CASE(Q4_1)        \
    OUTRIDER_MATMUL_CASE(Q5_0)        \
    OUTRIDER_MATMUL_CASE(Q5_1)        \
    OUTRIDER_MATMUL_CASE(Q8_0)        \
    OUTRIDER_MATMUL_CASE(Q4_K)        \
    OUTRIDER_MATMUL_CASE(Q5_K)        \
    OUTRIDER_MATMUL_CASE(Q6_K)        \
    OUTRIDER_MATMUL_CASE(IQ4_NL)      \
    OUTRIDER_MATMUL_CASE(IQ4_XS)      \
    OUTRIDER_MATMUL_CASE(MXFP4)       \
    OUTRIDER_MATMUL_CASE(Q3_K)        \
    OUTRIDER_MATMUL_CASE(Q2_K)        \
    OUTRIDER_MATMUL_CASE(TQ1_0)       \
    OUTRIDER_MATMUL_CASE(TQ2_0)       \
    OUTRIDER_MATMUL_CASE(IQ3_XXS)     \
    OUTRIDER_MATMUL_CASE(IQ3_S)       \
    OUTRIDER_MATMUL_CASE(W4_32)       \
    OUTRIDER_MATMUL_CASE(W4_128)      \
    OUTRIDER_MATMUL_CASE(W8_32)       \
    OUTRIDER_MATMUL_CASE(W8_128)      \
    OUTRIDER_MATMUL_CASE(IQ2_XXS)     \
    OUTRIDER_MATMUL_CASE(IQ2_XS)      \
    OUTRIDER_MATMUL_CASE(IQ2_S)
#define OUTRIDER_KERNEL_TABLE(function, label)                                                            \
    static void matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {     \
        switch (m.type) {                                                                                 \
            OUTRIDER_FLOAT_MATMUL_CASE(F32)                                                               \
            OUTRIDER_FLOAT_MATMUL_CASE(F16)                                                               \
            OUTRIDER_FLOAT_MATMUL_CASE(BF16)                                                              \
            OUTRIDER_FLOAT_MATMUL_CASE(F8_32)                                                             \
            OUTRIDER_FLOAT_MATMUL_CASE(F8_128)                                                            \
            OUTRIDER_INTEGER_MATMUL_CASES                                                                 \
        }                                                                                                 \
    }                                                                                                     \
    const Kernels* function() {                                                                           \
        static const Kernels table = {                                                                    \
            label,    kTokenTile,  kUsualTokenTile, matmul,      rms_norm,   quantize, quantize_residual, \
            silu_mul, gelu_mul,    scale_and_cap,   rope_halves, rope_pairs, store_kv, copy_kv,           \
            attend,   merge_spans, finish_spans};                                                         \
        return &table;                                                                                    \
    }
