// Attention over a paged cache, written once on V16 and included by each kernel file through common.h.
//
// The positions that a query head attends to are cut into spans of kSpan positions, by position alone. A task
// is one span, for all heads that share its keys and all tokens of a tile: a cache block of keys is read once
// and multiplied by many rows (a row is one query head of one token), several at a time to hide the latency
// of the multiplications. For each row the operations and their order are the same, whatever rows share its
// task.
#pragma once
#include <algorithm>
#include <utility>

#include "kernels/kernels.h"
#include "kernels/simd.h"

namespace outrider {
namespace {

// Most rows of a register tile, and most sums of 16 lanes, that leave registers for the operands.
#if defined(OUTRIDER_AVX512)
constexpr int kRows = 12, kSums = 24;
#else
constexpr int kRows = 6, kSums = 6;
#endif
constexpr int kSpanBlocks = kSpan / kCacheBlock;

template <class T>
inline T* key_of(const HeadCache& c, int slot) {
    return reinterpret_cast<T*>(static_cast<uint8_t*>(c.blocks[slot / kCacheBlock]) + c.key_offset) +
           slot % kCacheBlock;
}
template <class T>
inline T* value_of(const HeadCache& c, int slot, int head_dim) {
    return reinterpret_cast<T*>(static_cast<uint8_t*>(c.blocks[slot / kCacheBlock]) + c.value_offset) +
           size_t(slot % kCacheBlock) * head_dim;
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
    c.half ? store_kv_as<uint16_t>(c, slot, head_dim, key, value)
           : store_kv_as<float>(c, slot, head_dim, key, value);
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

// Copies up to a cache block of positions that are not contiguous (a path through a draft tree).
template <class T>
void gather_keys(const HeadCache& c, const int* slots, int count, int head_dim, T* keys) {
    std::memset(keys, 0, sizeof(T) * kCacheBlock * size_t(head_dim));
    for (int p = 0; p < count; p++) {
        const T* k = key_of<T>(c, slots[p]);
        for (int d = 0; d < head_dim; d++) keys[kCacheBlock * d + p] = k[kCacheBlock * d];
    }
}
template <class T>
void gather_values(const HeadCache& c, const int* slots, int count, int head_dim, T* values) {
    for (int p = 0; p < count; p++)
        std::memcpy(values + size_t(p) * head_dim, value_of<T>(c, slots[p], head_dim),
                    sizeof(T) * size_t(head_dim));
}

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

// How many of 4, 2 or 1 blocks to take at once, so that the sums of G rows fit the registers.
constexpr int blocks_at_once(int G) { return 4 * G <= kSums ? 4 : 2 * G <= kSums ? 2 : 1; }

// Scores of G rows and B cache blocks: each position is a lane, and the sum over head_dim is in order.
template <class T, int G, int B>
inline void score_tile(const T* const* keys, const float* const* rows, int head_dim, float* scores,
                       const Prefetch<T>* ahead) {
    V16 sum[G][B];
    const float* q[G];
    const T* k[B];
    for (int g = 0; g < G; g++) {
        q[g] = rows[g];
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

template <class T, int G>
void score_rows(const T* const* keys, int blocks, const float* const* rows, int head_dim, float* scores,
                const Prefetch<T>* ahead) {
    constexpr int B = blocks_at_once(G);
    int b = 0;
    for (; b + B <= blocks; b += B)
        score_tile<T, G, B>(keys + b, rows, head_dim, scores + kCacheBlock * b, ahead ? ahead + b : nullptr);
    for (; b < blocks; b++)
        score_tile<T, G, 1>(keys + b, rows, head_dim, scores + kCacheBlock * b, ahead ? ahead + b : nullptr);
}

// out[row][d] += weight[row][position] * value[position][d], for G rows and 16 D columns, positions in order.
// With `ahead`, the same part of each of those blocks is prefetched.
template <class T, int G, int D>
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

// The columns [d, stop).
template <class T, int G>
void value_rows(const T* const* blocks, int count, int head_dim, int d, int stop, const float* weights,
                float* const* out, const T* const* ahead) {
    constexpr int D = blocks_at_once(G);
    for (; d + 16 * D <= stop; d += 16 * D)
        value_tile<T, G, D>(blocks, count, head_dim, d, weights, out, ahead);
    for (; d < stop; d += 16) value_tile<T, G, 1>(blocks, count, head_dim, d, weights, out, ahead);
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

// One span, for a tile of tokens and the heads that share one key-value head.
template <class T>
class Span {
  public:
    Span(const HeadCache& cache, const Queries& q, int span, const NextKeys& next, float* scratch, float* out,
         size_t out_stride)
        : cache_(cache),
          q_(q),
          first_(span * kSpan),
          rows_(q.tokens * q.group),
          scores_(scratch),
          gathered_(reinterpret_cast<T*>(scratch + size_t(rows_) * kSpan)),
          out_(out),
          out_stride_(out_stride) {
        shared_ = kSpanBlocks;
        for (int t = 0; t < q.tokens; t++) {
            const Visible& v = q.visible[t];
            shared_ = imin(shared_, imax(0, imin(v.direct, v.positions) - first_) / kCacheBlock);
            shared_from_ = imax(shared_from_, (hidden(t) + kCacheBlock - 1) / kCacheBlock);
        }
        shared_from_ = imin(shared_from_, shared_);
        for (int b = shared_from_; b < shared_; b++) {
            keys_[b] = key_of<T>(cache, first_ + kCacheBlock * b);
            values_[b] = value_of<T>(cache, first_ + kCacheBlock * b, q.head_dim);
        }
        const int next_first = next.first - kSpan * next.span, next_end = next.positions - kSpan * next.span;
        for (int b = 0; b < kSpanBlocks; b++)
            next_[b] = kCacheBlock * b < next_end && kCacheBlock * (b + 1) > next_first
                           ? key_of<T>(next.cache, kSpan * next.span + kCacheBlock * b)
                           : nullptr;
    }

    void run() {
        shared_scores();
        for (int t = 0; t < q_.tokens; t++)
            if (seen(t) > hidden(t)) {
                own_scores(t);
                exponentiate(t);
            }
        clear();
        for (int t = 0; t < q_.tokens; t++) own_values(t, 0, shared_from_);
        shared_values();
        for (int t = 0; t < q_.tokens; t++) own_values(t, shared_, kSpanBlocks);
    }

  private:
    static constexpr RowFunctions<T> functions_ = row_functions<T>(std::make_index_sequence<kRows>());

    // Token t sees the positions [hidden, seen) of this span.
    int seen(int t) const { return imin(q_.visible[t].positions - first_, kSpan); }
    int hidden(int t) const { return imax(0, q_.first_seen(t) - first_); }
    const float* query(int row) const {
        return q_.q + size_t(row / q_.group) * q_.stride + size_t(row % q_.group) * q_.head_dim;
    }
    float* out(int row) const {
        return out_ + size_t(row / q_.group) * out_stride_ +
               size_t(row % q_.group) * partial_floats(q_.head_dim);
    }

    // Calls each(first, count) for rows [from, to) in tiles of about the same size.
    template <class Each>
    static void tiles(int from, int to, const Each& each) {
        const int n = (to - from + kRows - 1) / kRows;
        for (int i = 0; i < n; i++) {
            const int a = from + (to - from) * i / n, b = from + (to - from) * (i + 1) / n;
            each(a, b - a);
        }
    }

    void score(int row, int count, const T* const* keys, int block, int blocks, const Prefetch<T>* ahead) {
        const float* queries[kRows];
        for (int i = 0; i < count; i++) queries[i] = query(row + i);
        functions_.scores[count - 1](keys, blocks, queries, q_.head_dim,
                                     scores_ + size_t(row) * kSpan + kCacheBlock * block, ahead);
    }

    void value(int row, int count, const T* const* blocks, int first, int positions, int d, int stop,
               const T* const* ahead) {
        float* to[kRows];
        for (int i = 0; i < count; i++) to[i] = out(row + i);
        functions_.values[count - 1](blocks, positions, q_.head_dim, d, stop,
                                     scores_ + size_t(row) * kSpan + first, to, ahead);
    }

    void shared_scores() {
        for (int b = shared_from_; b < shared_; b += kChunk) {
            const int blocks = imin(kChunk, shared_ - b);
            Prefetch<T> ahead[kChunk];
            for (int i = 0; i < blocks; i++)
                ahead[i] = {b + kChunk + i < shared_ ? keys_[b + kChunk + i] : nullptr, values_[b + i]};
            tiles(0, rows_, [&](int row, int count) {
                score(row, count, keys_ + b, b, blocks, row == 0 ? ahead : nullptr);
            });
        }
    }

    void clear() {
        for (int row = 0; row < rows_; row++) std::memset(out(row), 0, sizeof(float) * size_t(q_.head_dim));
    }

    // A few columns at a time, so that their values stay in the first-level cache for all rows.
    void shared_values() {
        const int columns = 16 * blocks_at_once(imin(rows_, kRows)), blocks = shared_ - shared_from_;
        for (int d = 0; blocks && d < q_.head_dim; d += columns)
            tiles(0, rows_, [&](int row, int count) {
                value(row, count, values_ + shared_from_, kCacheBlock * shared_from_, kCacheBlock * blocks, d,
                      imin(q_.head_dim, d + columns), row == 0 ? next_ : nullptr);
            });
    }

    // Calls each(block, first, last), with positions of the block, for those of the blocks [from, to) that
    // token t sees something of.
    template <class Each>
    void own_blocks(int t, int from, int to, const Each& each) {
        for (int b = imax(from, hidden(t) / kCacheBlock); b < to && kCacheBlock * b < seen(t); b++)
            each(b, imax(0, hidden(t) - kCacheBlock * b), imin(kCacheBlock, seen(t) - kCacheBlock * b));
    }
    const int* path(int t, int block) const {  // its slots, or null when they are in order
        const Visible& v = q_.visible[t];
        const int at = first_ + kCacheBlock * block;
        return at < v.direct ? nullptr : v.tail + (at - v.direct);
    }

    void own_scores(int t) {
        own_scores(t, 0, shared_from_);
        own_scores(t, shared_, kSpanBlocks);
    }
    void own_scores(int t, int from, int to) {
        own_blocks(t, from, to, [&](int b, int first, int count) {
            const T* keys = gathered_;
            if (const int* slots = path(t, b))
                gather_keys<T>(cache_, slots, count, q_.head_dim, gathered_);
            else
                keys = key_of<T>(cache_, first_ + kCacheBlock * b);
            const int row = t * q_.group;
            tiles(row, row + q_.group, [&](int at, int rows) { score(at, rows, &keys, b, 1, nullptr); });
            for (int g = 0; count < kCacheBlock && g < q_.group; g++) {
                float* s = scores_ + size_t(row + g) * kSpan + kCacheBlock * b;
                vstore(s, vkeep(vload(s), count, -INFINITY));
            }
            for (int g = 0; g < q_.group; g++)
                std::fill_n(scores_ + size_t(row + g) * kSpan + kCacheBlock * b, first, -INFINITY);
        });
    }

    // Softmax without the division: scores become e^(score - maximum). (All maxima first, so that their
    // latencies overlap.)
    void exponentiate(int t) {
        const int row = t * q_.group, count = seen(t), first = hidden(t) / kCacheBlock * kCacheBlock;
        for (int g = 0; g < q_.group; g++) {
            float* scores = scores_ + size_t(row + g) * kSpan;
            if (q_.softcap != 0) soft_cap(scores, first, count);
            V16 top = vset(-INFINITY);
            for (int p = first; p < count; p += kCacheBlock) top = vmax(vload(scores + p), top);
            out(row + g)[q_.head_dim] = reduce_max(top);
        }
        for (int g = 0; g < q_.group; g++) {
            float *scores = scores_ + size_t(row + g) * kSpan, *stats = out(row + g) + q_.head_dim;
            V16 total = vset(0.0f);
            for (int p = first; p < count; p += kCacheBlock) {
                V16 e = vexp(vsub(vload(scores + p), vset(stats[0])));
                if (count - p < kCacheBlock) e = vkeep(e, count - p, 0.0f);
                if (p < hidden(t)) e = without_first(e, hidden(t) - p);
                vstore(scores + p, e);
                total = vadd(total, e);
            }
            stats[1] = reduce_add(total);
        }
    }

    // Scores become softcap * tanh(score / softcap). (Those of positions that are not seen become -softcap,
    // which does not change the maximum, and they are cleared after it.)
    void soft_cap(float* scores, int first, int count) const {
        const V16 cap = vset(q_.softcap), inverse = vset(1.0f / q_.softcap);
        for (int p = first; p < count; p += kCacheBlock)
            vstore(scores + p, vmul(vtanh(vmul(vload(scores + p), inverse)), cap));
    }
    static V16 without_first(V16 e, int count) {
        float lanes[kCacheBlock];
        vstore(lanes, e);
        std::fill_n(lanes, count, 0.0f);
        return vload(lanes);
    }

    void own_values(int t, int from, int to) {
        own_blocks(t, from, to, [&](int b, int first, int last) {
            const T* values = gathered_;
            if (const int* slots = path(t, b))
                gather_values<T>(cache_, slots, last, q_.head_dim, gathered_);
            else
                values = value_of<T>(cache_, first_ + kCacheBlock * b, q_.head_dim);
            values += size_t(first) * q_.head_dim;
            const int row = t * q_.group;
            tiles(row, row + q_.group, [&](int at, int rows) {
                value(at, rows, &values, kCacheBlock * b + first, last - first, 0, q_.head_dim, nullptr);
            });
        });
    }

    const HeadCache& cache_;
    const Queries& q_;
    int first_, rows_;  // first position; rows
    int shared_from_ = 0,
        shared_;     // the blocks [shared_from_, shared_) are those that every token sees whole
    float* scores_;  // [rows][kSpan]
    T* gathered_;    // a block of keys or values
    float* out_;
    size_t out_stride_;
    const T *keys_[kSpanBlocks], *values_[kSpanBlocks], *next_[kSpanBlocks];
};

void attend(const HeadCache& c, const Queries& q, int span, const NextKeys& next, float* scratch, float* out,
            size_t out_stride) {
    c.half ? Span<uint16_t>(c, q, span, next, scratch, out, out_stride).run()
           : Span<float>(c, q, span, next, scratch, out, out_stride).run();
}

// Rescales both partial results to their common maximum and adds them.
void merge_spans(float* a, const float* b, int head_dim) {
    float *stats = a + head_dim, total[16];
    const float* later = b + head_dim;
    const float top = later[0] > stats[0] ? later[0] : stats[0];
    const V16 first = vexp(vset(stats[0] - top)), second = vexp(vset(later[0] - top));
    for (int d = 0; d < head_dim; d += 16)
        vstore(a + d, vfma(vload(b + d), second, vmul(vload(a + d), first)));
    vstore(total, vfma(vset(later[1]), second, vmul(vset(stats[1]), first)));
    stats[0] = top;
    stats[1] = total[0];
}

// Divides the weighted values by the sum of their weights.
void finish_spans(const float* a, int head_dim, float* out) {
    const V16 inverse = vset(1.0f / a[head_dim + 1]);
    for (int d = 0; d < head_dim; d += 16) vstore(out + d, vmul(vload(a + d), inverse));
}

}  // namespace
}  // namespace outrider
