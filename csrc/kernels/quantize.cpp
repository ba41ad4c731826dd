// The formats are ggml's, except Q3_0; the search for scales is ours. For each group it looks for the scale
// and minimum that minimise a weighted squared error: it tries several initial roundings, solves least
// squares after each, and then tries the neighbouring values that the 6-bit scales can represent. Larger
// values have larger weights, because they contribute more to a product.
//
// Sums have eight lanes and a fixed order, and no operation is fused, so the result does not depend on the
// instruction set that the compiler uses.
#include "kernels/quantize.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "memory/half.h"

// Several versions of a function, selected by the dynamic loader: the same arithmetic in wider registers.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define OUTRIDER_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define OUTRIDER_CLONES
#endif
#define OUTRIDER_INLINE inline __attribute__((always_inline))

namespace outrider {
namespace {

constexpr float kLargest = 3e6f;      // no scale exceeds binary16, and no squared error overflows
constexpr float kLargestQ4_0 = 4e5f;  // its scale is at least a seventh of the largest value
constexpr float kLargestQ3_0 = 1.5e5f;
constexpr float kMagic =
    12582912.0f;  // x + kMagic - kMagic rounds |x| < 2^22 to the nearest integer, ties to even
OUTRIDER_INLINE float nearest(float x) { return (x + kMagic) - kMagic; }
OUTRIDER_INLINE float clamp(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

// Eight lanes of the compiler's vector type; N of them are a group. Passed by reference, because passing
// vectors by value has a different ABI for each instruction set.
typedef float V8 __attribute__((vector_size(32)));

template <int N>
OUTRIDER_INLINE void load(const float* x, V8* v) {
    std::memcpy(v, x, N * sizeof(V8));
}
OUTRIDER_INLINE float sum_of_lanes(const V8& v) {  // lanes 4, 2, 1 apart
    float lane[8];
    std::memcpy(lane, &v, sizeof v);
    for (int width = 4; width > 0; width /= 2)
        for (int l = 0; l < width; l++) lane[l] += lane[l + width];
    return lane[0];
}
OUTRIDER_INLINE void magnitude(V8& v) { v = v < 0.0f ? -v : v; }

// q = x * inverse + shift rounded to integers in [low, high]
template <int N>
OUTRIDER_INLINE void round_to(const V8* x, float inverse, float shift, float low, float high, V8* q) {
    const V8 bottom = V8{} + low, top = V8{} + high;
    for (int i = 0; i < N; i++) {
        V8 v = x[i] * inverse + shift;
        v = v > bottom ? v : bottom;
        v = v < top ? v : top;
        q[i] = (v + kMagic) - kMagic;
    }
}

// Weighted squared error of scale * q - minimum.
template <int N>
OUTRIDER_INLINE float error_of(const V8* x, const V8* w, const V8* q, float scale, float minimum) {
    V8 sum = {};
    for (int i = 0; i < N; i++) {
        const V8 error = q[i] * scale - minimum - x[i];
        sum += w[i] * error * error;
    }
    return sum_of_lanes(sum);
}

// Weights of the squared errors: each value's magnitude plus the root mean square of all.
template <int N>
OUTRIDER_INLINE void importance(const V8* x, V8* w) {
    V8 squares = {};
    for (int i = 0; i < N; i++) squares += x[i] * x[i];
    const float rms = std::sqrt(sum_of_lanes(squares) / float(8 * N));
    for (int i = 0; i < N; i++) {
        w[i] = x[i];
        magnitude(w[i]);
        w[i] += rms;
    }
}

template <int N>
OUTRIDER_INLINE void put_integers(const V8* q, int offset, uint8_t* out) {
    float values[8 * N];
    std::memcpy(values, q, sizeof values);
    for (int i = 0; i < 8 * N; i++) out[i] = uint8_t(int(values[i]) + offset);
}

void put_half(uint8_t* p, uint16_t h) { std::memcpy(p, &h, 2); }

// A binary16 scale with which `steps` steps reach `top`. For tiny values the nearest binary16 is too small,
// or zero: then the next larger one.
uint16_t half_for(float top, float steps) {
    const uint16_t h = float_to_half(top / steps);
    return half_to_float(h) * (steps + 0.5f) < top ? uint16_t(h + 1) : h;
}

// --- Q8_0: exactly as the gguf package quantizes

OUTRIDER_CLONES void quantize_q8_0(const float* x, uint8_t* out) {
    float biggest = 0.0f;
    for (int i = 0; i < 32; i++) {
        const float a = x[i] < 0.0f ? -x[i] : x[i];
        biggest = a > biggest ? a : biggest;
    }
    const float d = biggest / 127.0f, inverse = d < 1e-30f ? 0.0f : 1.0f / d;
    for (int i = 0; i < 32; i++) {  // ties away from zero
        const float v = x[i] * inverse, a = v < 0.0f ? -v : v, floor = float(int(a));
        const float rounded = floor + float(int(2.0f * (a - floor)));
        out[2 + i] = uint8_t(int8_t(v < 0.0f ? -rounded : rounded));
    }
    put_half(out, float_to_half(d));
}

// --- Q4_0 and Q3_0: x = scale * q, q in -8..7 or -4..3, a scale of either sign

// Returns the best scale, as binary16, and sets q to the integers that it gives. It is searched from initial
// roundings that map the value of the largest magnitude to each of `reaches`.
template <int N>
OUTRIDER_INLINE uint16_t search_signed(const float* values, float low, float high, const float (&reaches)[N],
                                       V8* q) {
    V8 x[4], w[4];
    load<4>(values, x);
    importance<4>(x, w);
    V8 wx[4], top = x[0], bottom = x[0];
    for (int i = 0; i < 4; i++) {
        wx[i] = w[i] * x[i];
        top = x[i] > top ? x[i] : top;
        bottom = x[i] < bottom ? x[i] : bottom;
    }
    float highest = top[0], lowest = bottom[0], most = 0.0f, best = 0.0f;
    for (int i = 1; i < 8; i++) {
        highest = top[i] > highest ? top[i] : highest;
        lowest = bottom[i] < lowest ? bottom[i] : lowest;
    }
    const float extreme = highest > -lowest ? highest : lowest;
    for (const float reach : reaches) {
        if (extreme == 0.0f) break;
        round_to<4>(x, reach / extreme, 0.0f, low, high, q);
        V8 v_qx = {}, v_qq = {};
        for (int i = 0; i < 4; i++) {
            v_qx += wx[i] * q[i];
            v_qq += w[i] * q[i] * q[i];
        }
        const float qx = sum_of_lanes(v_qx), qq = sum_of_lanes(v_qq);
        if (qx * qx > most * qq) {  // the best scale, qx / qq, reduces the squared error by qx^2 / qq
            most = qx * qx / qq;
            best = qx / qq;
        }
    }
    const uint16_t half = float_to_half(best);
    const float d = half_to_float(half);
    round_to<4>(x, d != 0.0f ? 1.0f / d : 0.0f, 0.0f, low, high, q);
    return half;
}

OUTRIDER_CLONES void quantize_q4_0(const float* values, uint8_t* out) {
    V8 q[4];
    put_half(out, search_signed(values, -8.0f, 7.0f, {-8.6f, -7.8f, -7.0f, 6.8f}, q));
    uint8_t integers[32];
    put_integers<4>(q, 8, integers);
    for (int i = 0; i < 16; i++) out[2 + i] = uint8_t(integers[i] | integers[16 + i] << 4);
}

OUTRIDER_CLONES void quantize_q3_0(const float* values, uint8_t* out) {
    V8 q[4];
    put_half(out, search_signed(values, -4.0f, 3.0f, {-4.8f, -4.4f, -4.0f, -3.6f, 2.9f, 3.4f}, q));
    uint8_t integers[32];
    put_integers<4>(q, 4, integers);
    std::memset(out + 2, 0, 12);
    for (int i = 0; i < 32; i++) {
        out[2 + i % 8] |= uint8_t((integers[i] & 3) << (2 * (i / 8)));
        out[10 + i / 8] |= uint8_t((integers[i] >> 2) << (i % 8));
    }
}

// --- Q4_K: x = scale * q - minimum, q in 0..15

struct Affine {
    float scale, minimum, error;
};

// The best scale and minimum for given integers, and the weighted error they leave.
OUTRIDER_INLINE Affine solve(const V8* x, const V8* w, const V8* q, float sum_w, float sum_wx) {
    V8 v_q = {}, v_qq = {}, v_qx = {};
    for (int i = 0; i < 4; i++) {
        const V8 wq = w[i] * q[i];
        v_q += wq;
        v_qq += wq * q[i];
        v_qx += wq * x[i];
    }
    const float sum_q = sum_of_lanes(v_q), sum_qq = sum_of_lanes(v_qq), sum_qx = sum_of_lanes(v_qx);
    const float determinant = sum_w * sum_qq - sum_q * sum_q;
    Affine a{0.0f, 0.0f, 0.0f};
    if (determinant > 0.0f) {
        a.scale = (sum_w * sum_qx - sum_q * sum_wx) / determinant;
        a.minimum = (sum_q * sum_qx - sum_qq * sum_wx) / determinant;
    }
    if (!(a.minimum > 0.0f)) {
        a.minimum = 0.0f;
        a.scale = sum_qq > 0.0f ? sum_qx / sum_qq : 0.0f;
    }
    a.error = error_of<4>(x, w, q, a.scale, a.minimum);
    return a;
}

OUTRIDER_INLINE void round_group(const V8* x, float scale, float minimum, V8* q) {
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    round_to<4>(x, inverse, minimum * inverse, 0.0f, 15.0f, q);
}

OUTRIDER_INLINE Affine search_group(const V8* x, const V8* w) {
    float values[32], low = 0.0f;
    std::memcpy(values, x, sizeof values);
    float high = values[0];
    for (float v : values) {
        low = v < low ? v : low;
        high = v > high ? v : high;
    }
    if (!(high > low)) return {0.0f, -low, 0.0f};
    V8 v_w = {}, v_wx = {}, q[4];
    for (int i = 0; i < 4; i++) {
        v_w += w[i];
        v_wx += w[i] * x[i];
    }
    const float sum_w = sum_of_lanes(v_w), sum_wx = sum_of_lanes(v_wx);
    Affine best{0.0f, 0.0f, INFINITY};
    for (int step = 0; step <= 10; step++) {  // the range may span fewer than 16 steps, or more
        round_group(x, (high - low) / (13.5f + 0.3f * float(step)), -low, q);
        const Affine a = solve(x, w, q, sum_w, sum_wx);
        if (a.scale > 0.0f && a.error < best.error) best = a;
    }
    for (int round = 0; round < 2 && best.scale > 0.0f; round++) {
        round_group(x, best.scale, best.minimum, q);
        const Affine a = solve(x, w, q, sum_w, sum_wx);
        if (a.scale > 0.0f && a.error < best.error) best = a;
    }
    return best.error < INFINITY ? best : Affine{0.0f, -low, 0.0f};
}

OUTRIDER_CLONES void quantize_q4_k(const float* values, uint8_t* out) {
    V8 x[32], w[32], q[4];
    load<32>(values, x);
    float top_scale = 0.0f, top_minimum = 0.0f;
    Affine found[8];
    for (int g = 0; g < 8; g++) {
        importance<4>(x + 4 * g, w + 4 * g);
        found[g] = search_group(x + 4 * g, w + 4 * g);
        top_scale = found[g].scale > top_scale ? found[g].scale : top_scale;
        top_minimum = found[g].minimum > top_minimum ? found[g].minimum : top_minimum;
    }
    const uint16_t d_half = half_for(top_scale, 63.0f), m_half = half_for(top_minimum, 63.0f);
    const float d = half_to_float(d_half), m = half_to_float(m_half);
    uint8_t integers[256], scales[8], minimums[8];
    for (int g = 0; g < 8; g++) {
        const float near_scale = d > 0.0f ? nearest(clamp(found[g].scale / d, 0.0f, 63.0f)) : 0.0f;
        const float near_minimum = m > 0.0f ? nearest(clamp(found[g].minimum / m, 0.0f, 63.0f)) : 0.0f;
        float best = INFINITY, best_scale = 0.0f, best_minimum = 0.0f;
        for (int i = -1; i <= 1; i++)
            for (int j = -1; j <= 1; j++) {
                const float s = near_scale + float(i), t = near_minimum + float(j);
                if (s < 0.0f || s > 63.0f || t < 0.0f || t > 63.0f) continue;
                round_group(x + 4 * g, d * s, m * t, q);
                const float error = error_of<4>(x + 4 * g, w + 4 * g, q, d * s, m * t);
                if (!(error < best)) continue;
                best = error;
                best_scale = s;
                best_minimum = t;
            }
        scales[g] = uint8_t(int(best_scale));
        minimums[g] = uint8_t(int(best_minimum));
        round_group(x + 4 * g, d * best_scale, m * best_minimum, q);
        put_integers<4>(q, 0, integers + 32 * g);
    }
    put_half(out, d_half);
    put_half(out + 2, m_half);
    for (int g = 0; g < 4; g++) {
        out[4 + g] = uint8_t(scales[g] | (scales[g + 4] >> 4) << 6);
        out[8 + g] = uint8_t(minimums[g] | (minimums[g + 4] >> 4) << 6);
        out[12 + g] = uint8_t((scales[g + 4] & 15) | (minimums[g + 4] & 15) << 4);
    }
    for (int pair = 0; pair < 4; pair++)
        for (int i = 0; i < 32; i++) {
            const uint8_t* p = integers + 64 * pair + i;
            out[16 + 32 * pair + i] = uint8_t(p[0] | p[32] << 4);
        }
}

// --- Q6_K: x = scale * q, q in -32..31, a scale of either sign for 16 values

OUTRIDER_INLINE void round_16(const V8* x, float scale, V8* q) {
    round_to<2>(x, scale != 0.0f ? 1.0f / scale : 0.0f, 0.0f, -32.0f, 31.0f, q);
}

OUTRIDER_INLINE float search_16(const V8* x, const V8* w) {
    float values[16], extreme = 0.0f, best_error = INFINITY, best = 0.0f;
    std::memcpy(values, x, sizeof values);
    for (float v : values) extreme = std::fabs(v) > std::fabs(extreme) ? v : extreme;
    if (extreme == 0.0f) return 0.0f;
    V8 q[2];
    for (int step = -6; step <= 6; step++) {  // q can be -32 but not 32: map the extreme to -32
        round_16(x, extreme / (-32.0f - 0.25f * float(step)), q);
        const V8 wq[2] = {w[0] * q[0], w[1] * q[1]};
        const float qx = sum_of_lanes(wq[0] * x[0] + wq[1] * x[1]),
                    qq = sum_of_lanes(wq[0] * q[0] + wq[1] * q[1]);
        const float solved = qq > 0.0f ? qx / qq : 0.0f, error = error_of<2>(x, w, q, solved, 0.0f);
        if (error < best_error) {
            best_error = error;
            best = solved;
        }
    }
    return best;
}

OUTRIDER_CLONES void quantize_q6_k(const float* values, uint8_t* out) {
    V8 x[32], w[32], q[2];
    load<32>(values, x);
    float scale[16], top = 0.0f;
    for (int g = 0; g < 16; g++) {
        importance<2>(x + 2 * g, w + 2 * g);
        scale[g] = search_16(x + 2 * g, w + 2 * g);
        top = std::fabs(scale[g]) > top ? std::fabs(scale[g]) : top;
    }
    const uint16_t half = half_for(top, 127.0f);
    const float d = half_to_float(half);
    uint8_t integers[256];
    for (int g = 0; g < 16; g++) {
        const float near = d > 0.0f ? nearest(clamp(scale[g] / d, -127.0f, 127.0f)) : 0.0f;
        float best = INFINITY, best_scale = 0.0f;
        for (int i = -1; i <= 1; i++) {
            const float s = near + float(i);
            round_16(x + 2 * g, d * s, q);
            const float error = error_of<2>(x + 2 * g, w + 2 * g, q, d * s, 0.0f);
            if (s > 127.0f || !(error < best)) continue;
            best = error;
            best_scale = s;
        }
        out[192 + g] = uint8_t(int8_t(best_scale));
        round_16(x + 2 * g, d * best_scale, q);
        put_integers<2>(q, 32, integers + 16 * g);
    }
    put_half(out + 208, half);
    for (int part = 0; part < 2; part++)
        for (int i = 0; i < 32; i++) {
            const uint8_t* p = integers + 128 * part + i;
            out[64 * part + i] = uint8_t((p[0] & 15) | (p[64] & 15) << 4);
            out[64 * part + 32 + i] = uint8_t((p[32] & 15) | (p[96] & 15) << 4);
            out[128 + 32 * part + i] =
                uint8_t(p[0] >> 4 | (p[32] >> 4) << 2 | (p[64] >> 4) << 4 | (p[96] >> 4) << 6);
        }
}

}  // namespace

using QuantizeBlock = void (*)(const float*, uint8_t*);
static QuantizeBlock quantize_block(WeightType type) {
    switch (type) {
        case WeightType::Q8_0:
            return quantize_q8_0;
        case WeightType::Q4_0:
            return quantize_q4_0;
        case WeightType::Q3_0:
            return quantize_q3_0;
        case WeightType::Q4_K:
            return quantize_q4_k;
        case WeightType::Q6_K:
            return quantize_q6_k;
        default:
            return nullptr;
    }
}

bool can_quantize(WeightType type) { return quantize_block(type) != nullptr; }

bool quantize_row(WeightType type, const float* x, int columns, uint8_t* out) {
    const WeightTypeInfo& k = info(type);
    const QuantizeBlock block = quantize_block(type);
    if (!block || columns % k.block_columns)
        throw std::invalid_argument(std::string("cannot quantize to ") + k.name);
    const float largest = type == WeightType::Q4_0   ? kLargestQ4_0
                          : type == WeightType::Q3_0 ? kLargestQ3_0
                                                     : kLargest;
    bool good = true;
    for (int c = 0; c < columns; c++) good &= std::fabs(x[c]) <= largest;  // false for NaN
    for (int b = 0; good && b < columns / k.block_columns; b++)
        block(x + size_t(b) * k.block_columns, out + size_t(b) * k.block_bytes);
    return good;
}

}  // namespace outrider
