// The inner loops of attention: a few rows (a row is one query head of one token) by a few cache blocks. Keys
// and values are multiplied as floats, or where they are held in bytes (T is int8_t) as integers, exactly.
#pragma once
#include <type_traits>
#include <utility>

#include "kernels/cache_blocks.h"
#include "kernels/kernels.h"
#include "kernels/simd.h"
#include "kernels/simd_integers.h"

namespace outrider {
namespace {

// Most rows of a register tile, and most sums of 16 lanes, that leave registers for the operands; rows whose
// exponentials are computed at a time (1 to 4 compared in docs/notes/kernels-log.md).
#if defined(OUTRIDER_AVX512)
constexpr int kRows = 12, kSums = 24, kExpRows = 3;
#else
constexpr int kRows = 6, kSums = 6, kExpRows = 2;
#endif

// How many of 4, 2 or 1 blocks to take at once, so that the sums of G rows fit the registers.
constexpr int blocks_at_once(int G) { return 4 * G <= kSums ? 4 : 2 * G <= kSums ? 2 : 1; }

// A row's query, and what its weights of values are. Integers have 16 bits, and one scale a row and span.
template <class T>
struct Query {
    const float* q;
};
template <>
struct Query<int8_t> {
    const int16_t* q;
    float scale;
};
template <class T>
using Weight = std::conditional_t<std::is_same_v<T, int8_t>, int16_t, float>;
template <class T>
constexpr int kWeightStride = kSpan * int(sizeof(float) / sizeof(Weight<T>));  // from row to row

// A chunk of cache blocks is multiplied by all rows while it is in the first-level cache. Meanwhile the next
// ones are prefetched, because the hardware prefetchers stop at the end of a cache block: this span's values
// while its keys are multiplied, the next span's keys while its values are, so that memory is never idle.
constexpr int kChunk = 4;

template <class T>
struct Prefetch {
    const T *keys = nullptr, *values = nullptr;

    // Prefetches the lines of both that begin at element 16 d, if lines begin there. (Always inlined: GCC
    // considers a function that only prefetches to be without effect, and removes calls of it.)
    [[gnu::always_inline]] void fetch(int d) const {
        constexpr int per_line = int(64 / (16 * sizeof(T)));
        if (d % per_line) return;
        if (keys) __builtin_prefetch(keys + 16 * size_t(d), 0, 3);
        if (values) __builtin_prefetch(values + 16 * size_t(d), 0, 2);
    }
};
// The same of the scales behind a block's keys.
[[gnu::always_inline]] inline void prefetch_scales(const int8_t* keys, int head_dim) {
    for (int at = kCacheBlock * head_dim, i = 0; i < key_groups(head_dim); i += 2, at += 64)
        __builtin_prefetch(keys + at, 0, 2);
}

// Scores of G rows and B cache blocks: each position is a lane, and the sum over head_dim is in order.
template <int G, int B, class T>
inline void score_tile(const T* const* keys, const Query<T>* rows, int head_dim, float* scores,
                       const Prefetch<T>* ahead) {
    V16 sum[G][B];
    const float* q[G];
    const T* k[B];
    for (int g = 0; g < G; g++) {
        q[g] = rows[g].q;
        for (int b = 0; b < B; b++) sum[g][b] = vset(0.0f);
    }
    for (int b = 0; b < B; b++) k[b] = keys[b];
    for (int d = 0; d < head_dim; d++) {
        if (ahead)
            for (int b = 0; b < B; b++) ahead[b].fetch(d);
        V16 lanes[B];
        for (int b = 0; b < B; b++) lanes[b] = vload(k[b] + kCacheBlock * size_t(d));
        for (int g = 0; g < G; g++) {
            const V16 x = vset(q[g][d]);
            for (int b = 0; b < B; b++) sum[g][b] = vfma(lanes[b], x, sum[g][b]);
        }
    }
    for (int g = 0; g < G; g++)
        for (int b = 0; b < B; b++) vstore(scores + size_t(g) * kSpan + kCacheBlock * b, sum[g][b]);
}

// The same of integers: the exact sums of each group of columns, times its scales, are added in order.
template <int G, int B>
inline void score_tile(const int8_t* const* keys, const Query<int8_t>* rows, int head_dim, float* scores,
                       const Prefetch<int8_t>* ahead) {
    const int16_t* q[G];
    const int8_t* k[B];
    for (int g = 0; g < G; g++) q[g] = rows[g].q;
    for (int b = 0; b < B; b++) k[b] = keys[b];
    for (int first = 0; first < head_dim; first += kKeyGroup) {
        I16 sum[G][B];
#pragma GCC unroll 12
        for (int g = 0; g < G; g++)
#pragma GCC unroll 4
            for (int b = 0; b < B; b++) sum[g][b] = zero_integers();
        const int last = imin(head_dim, first + kKeyGroup);
        for (int line = first; line < last; line += 4) {  // of memory: four columns of 16 positions
            if (ahead)
                for (int b = 0; b < B; b++) ahead[b].fetch(line);
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) {
                const int d = line + 2 * i;
                Pairs lanes[B];
                for (int b = 0; b < B; b++) lanes[b] = load_pairs(k[b] + kCacheBlock * size_t(d));
#pragma GCC unroll 12  // so that the sums stay in registers
                for (int g = 0; g < G; g++) {
                    const Pair x = spread_pair(q[g] + d);
#pragma GCC unroll 4
                    for (int b = 0; b < B; b++) sum[g][b] = add_products(sum[g][b], lanes[b], x);
                }
            }
        }
#pragma GCC unroll 4
        for (int b = 0; b < B; b++) {
            const V16 scale = vload(key_scales(k[b], head_dim) + size_t(first / kKeyGroup) * kCacheBlock);
#pragma GCC unroll 12
            for (int g = 0; g < G; g++) {
                float* to = scores + size_t(g) * kSpan + kCacheBlock * b;
                const V16 total = vfma(to_floats(sum[g][b]), scale, first ? vload(to) : vset(0.0f));
                vstore(to, last == head_dim ? vmul(total, vset(rows[g].scale)) : total);
            }
        }
    }
    if (!ahead) return;
    for (int b = 0; b < B; b++) {
        if (ahead[b].keys) prefetch_scales(ahead[b].keys, head_dim);
        if (ahead[b].values) __builtin_prefetch(ahead[b].values + kCacheBlock * head_dim, 0, 2);
    }
}

template <class T, int G>
void score_rows(const T* const* keys, int blocks, const Query<T>* rows, int head_dim, float* scores,
                const Prefetch<T>* ahead) {
    constexpr int B = blocks_at_once(G);
    int b = 0;
    for (; b + B <= blocks; b += B)
        score_tile<G, B>(keys + b, rows, head_dim, scores + kCacheBlock * b, ahead ? ahead + b : nullptr);
    for (; b < blocks; b++)
        score_tile<G, 1>(keys + b, rows, head_dim, scores + kCacheBlock * b, ahead ? ahead + b : nullptr);
}

// out[row][d] += weight[row][position] * value[position][d], for G rows and 16 D columns, positions in order.
// With `ahead`, the same part of each of those blocks is prefetched.
template <int G, int D, class T>
inline void value_tile(const T* const* blocks, int count, int head_dim, int d, const float* weights,
                       float* const* out, const T* const* ahead) {
    constexpr int bytes = int(sizeof(T)) * 16 * D;  // of one position
    V16 sum[G][D];
    for (int g = 0; g < G; g++)
        for (int i = 0; i < D; i++) sum[g][i] = vload(out[g] + d + 16 * i);
    for (int first = 0; first < count; first += kCacheBlock) {
        const T* values = blocks[first / kCacheBlock] + d;
        const float* w = weights + first;
        const int here = count - first < kCacheBlock ? count - first : kCacheBlock;
        const T* block = ahead ? ahead[first / kCacheBlock] : nullptr;
        const char* next = block ? reinterpret_cast<const char*>(block + kCacheBlock * d) : nullptr;
        for (int p = 0; p < here; p++, values += head_dim, w++) {
            if (next)
                for (int i = 0; i < bytes; i += 64) __builtin_prefetch(next + bytes * p + i, 0, 2);
            V16 v[D];
            for (int i = 0; i < D; i++) v[i] = vload(values + 16 * i);
            for (int g = 0; g < G; g++) {
                const V16 x = vset(w[size_t(g) * kSpan]);
                for (int i = 0; i < D; i++) sum[g][i] = vfma(v[i], x, sum[g][i]);
            }
        }
    }
    for (int g = 0; g < G; g++)
        for (int i = 0; i < D; i++) vstore(out[g] + d + 16 * i, sum[g][i]);
}

// The same of integers, whose sums take the place of floats in `out`: a weight has its position's scale in
// it. A position behind an odd count must have a weight of 0.
template <int G, int D>
inline void value_tile(const int8_t* const* blocks, int count, int head_dim, int d, const int16_t* weights,
                       float* const* out, const int8_t* const* ahead) {
    constexpr int bytes = 2 * 16 * D;  // of two positions
    I16 sum[G][D];
#pragma GCC unroll 12
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
        for (int i = 0; i < D; i++) sum[g][i] = vload_integers(out[g] + d + 16 * i);
    for (int first = 0; first < count; first += kCacheBlock) {
        const int8_t* values = blocks[first / kCacheBlock] + 2 * d;
        const int16_t* w = weights + first;
        const int here = count - first < kCacheBlock ? count - first : kCacheBlock;
        const int8_t* next = ahead ? ahead[first / kCacheBlock] : nullptr;
        if (next && d == 0) prefetch_scales(next, head_dim);
        for (int p = 0; p < here; p += 2, values += 2 * head_dim, w += 2) {
            if (next)
                for (int i = 0; i < bytes; i += 64)
                    __builtin_prefetch(next + kCacheBlock * d + bytes / 2 * p + i, 0, 2);
            Pairs v[D];
            for (int i = 0; i < D; i++) v[i] = load_pairs(values + 32 * i);
#pragma GCC unroll 12  // so that the sums stay in registers
            for (int g = 0; g < G; g++) {
                const Pair x = spread_pair(w + size_t(g) * kWeightStride<int8_t>);
#pragma GCC unroll 4
                for (int i = 0; i < D; i++) sum[g][i] = add_products(sum[g][i], v[i], x);
            }
        }
    }
#pragma GCC unroll 12
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
        for (int i = 0; i < D; i++) vstore_integers(out[g] + d + 16 * i, sum[g][i]);
}

// The columns [d, stop).
template <class T, int G>
void value_rows(const T* const* blocks, int count, int head_dim, int d, int stop, const Weight<T>* weights,
                float* const* out, const T* const* ahead) {
    constexpr int D = blocks_at_once(G);
    for (; d + 16 * D <= stop; d += 16 * D) value_tile<G, D>(blocks, count, head_dim, d, weights, out, ahead);
    for (; d < stop; d += 16) value_tile<G, 1>(blocks, count, head_dim, d, weights, out, ahead);
}

template <class T>
struct RowFunctions {
    decltype(&score_rows<T, 1>) scores[kRows];
    decltype(&value_rows<T, 1>) values[kRows];
};
template <class T, size_t... G>
constexpr RowFunctions<T> row_functions(std::index_sequence<G...>) {
    return {{score_rows<T, int(G) + 1>...}, {value_rows<T, int(G) + 1>...}};
}

}  // namespace
}  // namespace outrider
