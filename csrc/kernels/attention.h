// Attention over a paged cache, written once on V16 and included by each kernel file through common.h.
//
// The positions that a query head attends to are cut into spans of kSpan positions, by position alone. A task
// is one span, for all heads that share its keys and all tokens of a tile: a cache block of keys is read once
// and multiplied by many rows (a row is one query head of one token), several at a time to hide the latency
// of the multiplications. For each row the operations and their order are the same, whatever rows share its
// task.
#pragma once
#include <algorithm>

#include "kernels/attention_tiles.h"

namespace outrider {
namespace {

constexpr int kSpanBlocks = kSpan / kCacheBlock;

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
          queries_(scratch + size_t(rows_) * kSpan + size_t(kCacheBlock) * q.head_dim),
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
        if constexpr (kIntegers) quantize_queries();
        shared_scores();
        for (int t = 0; t < q_.tokens; t++)
            if (seen(t) > hidden(t)) {
                own_scores(t);
                exponentiate(t);
                if constexpr (kIntegers) quantize_weights(t);
            }
        clear();
        for (int t = 0; t < q_.tokens; t++) own_values(t, 0, shared_from_);
        shared_values();
        for (int t = 0; t < q_.tokens; t++) own_values(t, shared_, kSpanBlocks);
        if constexpr (kIntegers) sums_to_floats();
    }

  private:
    static constexpr bool kIntegers = std::is_same_v<T, int8_t>;
    static constexpr float kMost = 32767.0f;       // of a query's and a weight's integers
    static constexpr float kSmallest = 0x1p-100f;  // what is less is 0
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

    // Integers lie where the scores do, that they are made of.
    Weight<T>* weights(int row) const { return reinterpret_cast<Weight<T>*>(scores_ + size_t(row) * kSpan); }
    float* quantized(int row) const { return queries_ + size_t(row) * (size_t(q_.head_dim) / 2 + 1); }
    Query<T> multiplied(int row) const {
        if constexpr (kIntegers)
            return {reinterpret_cast<const int16_t*>(quantized(row) + 1), *quantized(row)};
        else
            return {query(row)};
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
        Query<T> queries[kRows];
        for (int i = 0; i < count; i++) queries[i] = multiplied(row + i);
        functions_.scores[count - 1](keys, blocks, queries, q_.head_dim,
                                     scores_ + size_t(row) * kSpan + kCacheBlock * block, ahead);
    }

    void value(int row, int count, const T* const* blocks, int first, int positions, int d, int stop,
               const T* const* ahead) {
        float* to[kRows];
        for (int i = 0; i < count; i++) to[i] = out(row + i);
        functions_.values[count - 1](blocks, positions, q_.head_dim, d, stop, weights(row) + first, to,
                                     ahead);
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

    // Integers of 16 bits with one scale; it and they lie one after the other.
    void quantize_queries() {
        for (int row = 0; row < rows_; row++) {
            const float *x = query(row), most = largest(x, q_.head_dim);
            float* to = quantized(row);
            const V16 factor = vset(most > kSmallest ? kMost / most : 0.0f);
            *to = most / kMost;
            for (int d = 0; d < q_.head_dim; d += 16)
                vstore_i16(reinterpret_cast<int16_t*>(to + 1) + d, vmul(vload(x + d), factor));
        }
    }

    // Softmax without the division: scores become e^(score - maximum).
    void exponentiate(int t) {
        int row = t * q_.group;
        const int end = row + q_.group;
        for (; row + kExpRows <= end; row += kExpRows) exponentiate_rows<kExpRows>(t, row);
        for (; row < end; row++) exponentiate_rows<1>(t, row);
    }
    // Rows of token t, R at a time so that their latencies overlap.
    template <int R>
    [[gnu::noinline]] void exponentiate_rows(int t, int row) {
        const int count = seen(t), from = hidden(t), first = from / kCacheBlock * kCacheBlock;
        float *scores[R], *stats[R];
        V16 top[R], total[R], e[R];
        for (int r = 0; r < R; r++) {
            scores[r] = scores_ + size_t(row + r) * kSpan;
            stats[r] = out(row + r) + q_.head_dim;
            if (q_.softcap != 0) soft_cap(scores[r], first, count);
            top[r] = vset(-INFINITY);
            total[r] = vset(0.0f);
        }
        for (int p = first; p < count; p += kCacheBlock)
            for (int r = 0; r < R; r++) top[r] = vmax(vload(scores[r] + p), top[r]);
        for (int r = 0; r < R; r++) {
            stats[r][0] = reduce_max(top[r]);
            top[r] = vset(stats[r][0]);
        }
        const auto partly = [&](int p) {  // a block of which some positions are not seen
            for (int r = 0; r < R; r++) {
                e[r] = vexp(vsub(vload(scores[r] + p), top[r]));
                if (count - p < kCacheBlock) e[r] = vkeep(e[r], count - p, 0.0f);
                if (p < from) e[r] = without_first(e[r], from - p);
                vstore(scores[r] + p, e[r]);
                total[r] = vadd(total[r], e[r]);
            }
        };
        int p = first;
        if (p < from) partly(p), p += kCacheBlock;
        for (; p + kCacheBlock <= count; p += kCacheBlock) {
            for (int r = 0; r < R; r++) e[r] = vsub(vload(scores[r] + p), top[r]);
            vexp_each(e);
            for (int r = 0; r < R; r++) {
                vstore(scores[r] + p, e[r]);
                total[r] = vadd(total[r], e[r]);
            }
        }
        if (p < count) partly(p);
        for (int r = 0; r < R; r++) stats[r][1] = reduce_add(total[r]);
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

    // Weights times the scales of their positions' values become integers of 16 bits, with one scale a row.
    void quantize_weights(int t) {
        const int row = t * q_.group, count = seen(t), first = hidden(t) / kCacheBlock * kCacheBlock;
        const float* scales[kSpanBlocks];
        float own[kSpan];  // of blocks that are not seen whole, or not in order: 0 where nothing is seen
        own_blocks(t, 0, kSpanBlocks, [&](int b, int from, int to) {
            const int *slots = path(t, b), at = first_ + kCacheBlock * b;
            if (!slots && to - from == kCacheBlock) {
                scales[b] = value_scales(values_of_block<int8_t>(cache_, at), q_.head_dim);
                return;
            }
            float* s = own + kCacheBlock * b;
            std::fill_n(s, kCacheBlock, 0.0f);
            for (int p = from; p < to; p++)
                s[p] = value_scale(cache_, slots ? slots[p] : at + p, q_.head_dim);
            scales[b] = s;
        });
        for (int g = 0; g < q_.group; g++) {
            float *w = scores_ + size_t(row + g) * kSpan, *stats = out(row + g) + q_.head_dim;
            V16 most = vset(0.0f);
            for (int p = first; p < count; p += kCacheBlock) {
                const V16 x = vmul(vload(w + p), vload(scales[p / kCacheBlock]));
                vstore(w + p, x);
                most = vmax(x, most);
            }
            const float unit = reduce_max(most);
            const V16 factor = vset(unit > kSmallest ? kMost / unit : 0.0f);
            stats[2] = unit / kMost;
            for (int p = first; p < count; p += kCacheBlock)  // (what is read lies behind what is written)
                vstore_i16(weights(row + g) + p, vmul(vload(w + p), factor));
        }
    }

    // Of tokens that see something of the span.
    void sums_to_floats() {
        for (int row = 0; row < rows_; row++) {
            const int t = row / q_.group;
            if (seen(t) <= hidden(t)) continue;
            float* sums = out(row);
            const V16 scale = vset(sums[q_.head_dim + 2]);
            for (int d = 0; d < q_.head_dim; d += 16)
                vstore(sums + d, vmul(to_floats(vload_integers(sums + d)), scale));
        }
    }

    void own_values(int t, int from, int to) {
        own_blocks(t, from, to, [&](int b, int first, int last) {
            const T* values = gathered_;
            if (const int* slots = path(t, b))
                gather_values<T>(cache_, slots, last, q_.head_dim, gathered_);
            else
                values = value_of<T>(cache_, first_ + kCacheBlock * b, q_.head_dim);
            if (kIntegers) first = 0;  // (what is not seen has a weight of 0)
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
        shared_;      // the blocks [shared_from_, shared_) are those that every token sees whole
    float* scores_;   // [rows][kSpan]
    T* gathered_;     // a block of keys or values
    float* queries_;  // [rows], as integers
    float* out_;
    size_t out_stride_;
    const T *keys_[kSpanBlocks], *values_[kSpanBlocks], *next_[kSpanBlocks];
};

void attend(const HeadCache& c, const Queries& q, int span, const NextKeys& next, float* scratch, float* out,
            size_t out_stride) {
    switch (c.type) {
        case CacheType::f32:
            return Span<float>(c, q, span, next, scratch, out, out_stride).run();
        case CacheType::f16:
            return Span<uint16_t>(c, q, span, next, scratch, out, out_stride).run();
        case CacheType::q8_0:
            return Span<int8_t>(c, q, span, next, scratch, out, out_stride).run();
    }
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
