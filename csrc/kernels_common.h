// Everything but the integer matrix products: written once on V16, included by each kernel file.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace outrider {
namespace {

inline int imin(int a, int b) { return a < b ? a : b; }

inline void store_panel(const MatmulOut& o, int rows, int panel, int token, V16 v) {
    const int row = panel * kPanel, count = imin(kPanel, rows - row);
    float* out = o.out + size_t(token) * o.stride + row;
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
            for (int t = 0; t < NT; t++) sum[t][i] = vfma(w, vset(x[size_t(t) * a.columns + c + i]), sum[t][i]);
        }
    for (; c < a.columns; c++) {
        const V16 w = load_weights<K>(q, c);
        for (int t = 0; t < NT; t++) sum[t][c % 4] = vfma(w, vset(x[size_t(t) * a.columns + c]), sum[t][c % 4]);
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
            case 3: float_panel<K, 3>(m, a, p, t, out); break;
            case 2: float_panel<K, 2>(m, a, p, t, out); break;
            case 1: float_panel<K, 1>(m, a, p, t, out); break;
            default: break;
        }
    }
}

void rms_norm(const float* x, const float* weight, float eps, int n, float* y) {
    V16 squares = vset(0.0f);
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        const V16 v = vload(x + i);
        squares = vfma(v, v, squares);
    }
    float total = reduce_add(squares);
    for (; i < n; i++) total = __builtin_fmaf(x[i], x[i], total);
    const float scale = 1.0f / __builtin_sqrtf(total / float(n) + eps);
    for (i = 0; i + 16 <= n; i += 16) vstore(y + i, vmul(vmul(vload(x + i), vset(scale)), vload(weight + i)));
    for (; i < n; i++) y[i] = x[i] * scale * weight[i];
}

inline void store_group(Activations& a, int row, int g, V16 low, V16 high, float scale) {
    int8_t* q = a.q + size_t(row) * a.q_stride + kGroup * size_t(g);
    vstore_i8(q, low);
    vstore_i8(q + 16, high);
    const float sums[2] = {reduce_add(vround(low)), reduce_add(vround(high))};  // small integers: exact
    const size_t at = size_t(row) * a.groups() + g;
    for (int h = 0; h < 2; h++) {
        a.sum16[2 * at + h] = int16_t(sums[h]);
        a.centre[2 * at + h] = -32 * int32_t(sums[h]);
    }
    a.scale[at] = scale;
    a.sum[at] = sums[0] + sums[1];
    a.scaled[at] = scale * a.sum[at];
}

// Columns are a multiple of 32 here: every integer format has blocks of at least 32.
template <bool FINE>
inline void quantize_row(Activations& a, int t, int rest) {
    const float* x = a.x + size_t(t) * a.columns;
    for (int g = 0; g < a.groups(); g++) {
        V16 low = vload(x + kGroup * g), high = vload(x + kGroup * g + 16);
        const float biggest = reduce_max(vmax(vabs(low), vabs(high))), scale = biggest / 127.0f;
        const V16 inverse = vset(biggest > 0.0f ? 127.0f / biggest : 0.0f);
        low = vmul(low, inverse);
        high = vmul(high, inverse);
        store_group(a, t, g, low, high, scale);
        if constexpr (FINE) {
            const V16 steps = vset(254.0f);  // what is left lies within half a step, so within 127 of these
            store_group(a, rest, g, vmul(vsub(low, vround(low)), steps), vmul(vsub(high, vround(high)), steps),
                        scale / 254.0f);
        }
    }
}
void quantize(Activations& a, int t) { quantize_row<false>(a, t, 0); }
void quantize_fine(Activations& a, int t, int rest) { quantize_row<true>(a, t, rest); }

inline V16 silu(V16 x) { return vdiv(x, vadd(vset(1.0f), vexp(vsub(vset(0.0f), x)))); }

void silu_mul(float* gate, const float* up, int n) {
    int i = 0;
    for (; i + 16 <= n; i += 16) vstore(gate + i, vmul(silu(vload(gate + i)), vload(up + i)));
    if (i == n) return;
    float g[16] = {0}, u[16] = {0};
    std::memcpy(g, gate + i, size_t(n - i) * 4);
    std::memcpy(u, up + i, size_t(n - i) * 4);
    vstore(g, vmul(silu(vload(g)), vload(u)));
    std::memcpy(gate + i, g, size_t(n - i) * 4);
}

// (x, y) becomes (x cos - y sin, x sin + y cos). The fused forms are spelled out, so that every build rounds alike.
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

template <class T>
inline T* key_of(const HeadCache& c, int slot) {
    return reinterpret_cast<T*>(static_cast<uint8_t*>(c.blocks[slot / 16]) + c.key_offset) + slot % 16;
}
template <class T>
inline T* value_of(const HeadCache& c, int slot, int head_dim) {
    return reinterpret_cast<T*>(static_cast<uint8_t*>(c.blocks[slot / 16]) + c.value_offset) +
           size_t(slot % 16) * head_dim;
}

template <class T>
void store_kv_as(const HeadCache& c, int slot, int head_dim, const float* key, const float* value) {
    T *k = key_of<T>(c, slot), *v = value_of<T>(c, slot, head_dim), column[16];
    for (int d = 0; d < head_dim; d += 16) {
        vstore(column, vload(key + d));
        for (int i = 0; i < 16; i++) k[16 * (d + i)] = column[i];
        vstore(v + d, vload(value + d));
    }
}
void store_kv(const HeadCache& c, int slot, int head_dim, const float* key, const float* value) {
    c.half ? store_kv_as<uint16_t>(c, slot, head_dim, key, value) : store_kv_as<float>(c, slot, head_dim, key, value);
}

template <class T>
void copy_kv_as(const HeadCache& c, int from, int to, int head_dim) {
    const T* k = key_of<T>(c, from);
    T* k2 = key_of<T>(c, to);
    for (int d = 0; d < head_dim; d++) k2[16 * d] = k[16 * d];
    std::memcpy(value_of<T>(c, to, head_dim), value_of<T>(c, from, head_dim), sizeof(T) * size_t(head_dim));
}
void copy_kv(const HeadCache& c, int from, int to, int head_dim) {
    c.half ? copy_kv_as<uint16_t>(c, from, to, head_dim) : copy_kv_as<float>(c, from, to, head_dim);
}

// Scores of 16 positions: each position is a lane, the sum over head_dim runs in order.
template <class T, int G>
inline void block_scores(const T* keys, const float* q, int head_dim, float* scores, size_t score_stride) {
    V16 sum[G];
    for (int g = 0; g < G; g++) sum[g] = vset(0.0f);
    for (int d = 0; d < head_dim; d++) {
        const V16 k = vload(keys + 16 * size_t(d));
        for (int g = 0; g < G; g++) sum[g] = vfma(k, vset(q[size_t(g) * head_dim + d]), sum[g]);
    }
    for (int g = 0; g < G; g++) vstore(scores + g * score_stride, sum[g]);
}

// out[d] += weight[position] * value[position][d], positions in order.
template <class T, int G>
inline void block_values(const T* values, const float* weights, size_t stride, int count, int head_dim, float* out) {
    for (int d = 0; d < head_dim; d += 16) {
        V16 sum[G];
        for (int g = 0; g < G; g++) sum[g] = vload(out + size_t(g) * head_dim + d);
        for (int p = 0; p < count; p++) {
            const V16 v = vload(values + size_t(p) * head_dim + d);
            for (int g = 0; g < G; g++) sum[g] = vfma(v, vset(weights[g * stride + p]), sum[g]);
        }
        for (int g = 0; g < G; g++) vstore(out + size_t(g) * head_dim + d, sum[g]);
    }
}

template <class T>
void gather_block(const HeadCache& c, const int* slots, int count, int head_dim, T* keys, T* values) {
    std::memset(keys, 0, sizeof(T) * 16 * size_t(head_dim));
    for (int p = 0; p < count; p++) {
        const T* k = key_of<T>(c, slots[p]);
        for (int d = 0; d < head_dim; d++) keys[16 * d + p] = k[16 * d];
        std::memcpy(values + size_t(p) * head_dim, value_of<T>(c, slots[p], head_dim), sizeof(T) * size_t(head_dim));
    }
}

template <class T, int G>
void attention_group(const HeadCache& c, const Visible& v, const float* q, int head_dim, float* scores, float* gather,
                     float* out) {
    const int blocks = (v.positions + 15) / 16, direct_blocks = v.direct < v.positions ? v.direct / 16 : blocks;
    const size_t stride = size_t(blocks) * 16;
    T* const gathered_keys = reinterpret_cast<T*>(gather);
    T* const gathered_values = gathered_keys + 16 * size_t(head_dim);
    V16 top[G], total[G];
    for (int g = 0; g < G; g++) top[g] = vset(-INFINITY);
    for (int b = 0; b < blocks; b++) {
        const int count = imin(16, v.positions - 16 * b);
        const T* keys = key_of<T>(c, 16 * b);
        if (b >= direct_blocks) {
            gather_block<T>(c, v.tail + (16 * b - v.direct), count, head_dim, gathered_keys, gathered_values);
            keys = gathered_keys;
        }
        block_scores<T, G>(keys, q, head_dim, scores + 16 * b, stride);
        for (int g = 0; g < G; g++) {
            float* s = scores + g * stride + 16 * b;
            const V16 kept = count < 16 ? vkeep(vload(s), count, -INFINITY) : vload(s);
            vstore(s, kept);
            top[g] = vmax(kept, top[g]);
        }
    }
    for (int g = 0; g < G; g++) {
        const V16 highest = vset(reduce_max(top[g]));
        total[g] = vset(0.0f);
        for (int b = 0; b < blocks; b++) {
            float* s = scores + g * stride + 16 * b;
            const int count = imin(16, v.positions - 16 * b);
            V16 e = vexp(vsub(vload(s), highest));
            if (count < 16) e = vkeep(e, count, 0.0f);
            vstore(s, e);
            total[g] = vadd(total[g], e);
        }
    }
    std::memset(out, 0, sizeof(float) * G * size_t(head_dim));
    for (int b = 0; b < blocks; b++) {
        const int count = imin(16, v.positions - 16 * b);
        const T* values = value_of<T>(c, 16 * b, head_dim);
        if (b >= direct_blocks) {
            gather_block<T>(c, v.tail + (16 * b - v.direct), count, head_dim, gathered_keys, gathered_values);
            values = gathered_values;
        }
        block_values<T, G>(values, scores + 16 * b, stride, count, head_dim, out);
    }
    for (int g = 0; g < G; g++) {
        const V16 inverse = vset(1.0f / reduce_add(total[g]));
        for (int d = 0; d < head_dim; d += 16) {
            float* o = out + size_t(g) * head_dim + d;
            vstore(o, vmul(vload(o), inverse));
        }
    }
}

// Groups larger than four are cut: the results of a head do not depend on its neighbours.
void attention(const HeadCache& c, const Visible& v, const float* q, int group, int head_dim, float* scores,
               float* gather, float* out) {
    for (int g = 0; g < group;) {
        const int n = imin(4, group - g);
        const float* qg = q + size_t(g) * head_dim;
        float* og = out + size_t(g) * head_dim;
#define OUTRIDER_GROUP(N)                                                                     \
    case N:                                                                                   \
        c.half ? attention_group<uint16_t, N>(c, v, qg, head_dim, scores, gather, og)         \
               : attention_group<float, N>(c, v, qg, head_dim, scores, gather, og);           \
        break;
        switch (n) {
            OUTRIDER_GROUP(1)
            OUTRIDER_GROUP(2)
            OUTRIDER_GROUP(3)
            OUTRIDER_GROUP(4)
        }
#undef OUTRIDER_GROUP
        g += n;
    }
}

}  // namespace
}  // namespace outrider

// The dispatch by weight kind; `integer_matmul` is what each kernel file supplies.
#define OUTRIDER_KERNEL_TABLE(function, label)                                                            \
    static void matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {    \
        switch (m.kind) {                                                                                 \
            case Kind::F32: return float_matmul<Kind::F32>(m, a, p0, p1, out);                            \
            case Kind::F16: return float_matmul<Kind::F16>(m, a, p0, p1, out);                            \
            case Kind::BF16: return float_matmul<Kind::BF16>(m, a, p0, p1, out);                          \
            case Kind::Q4_0: return integer_matmul<Kind::Q4_0>(m, a, p0, p1, out);                        \
            case Kind::Q4_1: return integer_matmul<Kind::Q4_1>(m, a, p0, p1, out);                        \
            case Kind::Q5_0: return integer_matmul<Kind::Q5_0>(m, a, p0, p1, out);                        \
            case Kind::Q5_1: return integer_matmul<Kind::Q5_1>(m, a, p0, p1, out);                        \
            case Kind::Q8_0: return integer_matmul<Kind::Q8_0>(m, a, p0, p1, out);                        \
            case Kind::Q4_K: return integer_matmul<Kind::Q4_K>(m, a, p0, p1, out);                        \
            case Kind::Q5_K: return integer_matmul<Kind::Q5_K>(m, a, p0, p1, out);                        \
            case Kind::Q6_K: return integer_matmul<Kind::Q6_K>(m, a, p0, p1, out);                        \
        }                                                                                                 \
    }                                                                                                     \
    const Kernels* function() {                                                                           \
        static const Kernels table = {label, matmul,   rms_norm, quantize, quantize_fine,                 \
                                      silu_mul, rope,  store_kv, copy_kv,  attention};                    \
        return &table;                                                                                    \
    }
