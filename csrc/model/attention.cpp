#include "model/attention.h"

#include <algorithm>

namespace outrider {

static int spans_of(int positions) { return (positions + kSpan - 1) / kSpan; }

// Tiles of tokens. Where there is little to share out (few tokens, long contexts), threads take the spans of
// a tile apart, and keep what each gave; else one thread goes through them, which needs room for one only.
// Either way the spans of a token are merged in order.
void Attention::partition(const Batch& batch) {
    constexpr int most = 16;                         // tokens of a tile
    constexpr size_t most_bytes = size_t(32) << 20;  // of partial results, when spans are taken apart
    const int n = tokens_ = batch.size();
    tiles_.clear();
    int longest = 1;
    for (int t = 0; t < n;) {
        QueryTile tile{t, 0, 0, 0};
        const Cache* cache = batch.tokens[size_t(t)].cache;
        for (; t < n && tile.count < most && batch.tokens[size_t(t)].cache == cache; t++, tile.count++)
            tile.positions = std::max(tile.positions, batch.visible[size_t(t)].positions);
        tile.spans = spans_of(tile.positions);
        longest = std::max(longest, tile.spans);
        tiles_.push_back(tile);
    }
    const size_t one = size_t(n) * heads_ * partial_floats(head_dim_);
    const bool apart =
        int(tiles_.size()) * kv_heads_ < 4 * phases_.threads() && one * longest * sizeof(float) <= most_bytes;
    slots_ = apart ? longest : 1;
    partials_.resize(one * slots_);
    tasks_ = 0;
    for (const QueryTile& tile : tiles_) tasks_ += kv_heads_ * (apart ? tile.spans : 1);
}

// Key-value heads follow one another, then spans, then tiles.
Attention::Task Attention::task(int index) const {
    for (const QueryTile& tile : tiles_) {
        const int n = kv_heads_ * (slots_ == 1 ? 1 : tile.spans);
        if (index < n) return {&tile, index % kv_heads_, index / kv_heads_};
        index -= n;
    }
    return {nullptr, 0, 0};
}

NextKeys Attention::keys_of(int layer, const Batch& batch, const Task& task) const {
    if (!task.tile || task.span >= task.tile->spans) return {};
    Cache* cache = batch.tokens[size_t(task.tile->first)].cache;
    return {cache->head(layer, task.kv_head), task.span, task.tile->positions};
}

float* Attention::partial(int slot, int t, int head) {
    return partials_.data() +
           ((size_t(slot) * size_t(tokens_) + t) * heads_ + head) * partial_floats(head_dim_);
}

// One span of one tile and key-value head; merged at once with those before it where there is one slot for
// all.
void Attention::attend(int layer, const Batch& batch, const float* queries, const Task& task,
                       const NextKeys& next, int thread) {
    const QueryTile& tile = *task.tile;
    const int group = heads_ / kv_heads_, head = task.kv_head * group;
    const size_t width = size_t(heads_) * head_dim_, row = partial_floats(head_dim_),
                 stride = size_t(heads_) * row;
    const Queries q{queries + size_t(tile.first) * width + size_t(head) * head_dim_,
                    width,
                    batch.visible.data() + tile.first,
                    tile.count,
                    group,
                    head_dim_};
    const bool merges = slots_ == 1 && task.span > 0;
    const size_t work = attend_scratch(q), result = merges ? stride * size_t(tile.count) : 0;
    float* const scratch = phases_.scratch(thread, work + result);
    float* const out = merges ? scratch + work : partial(task.span, tile.first, head);
    const HeadCache cache = batch.tokens[size_t(tile.first)].cache->head(layer, task.kv_head);
    kernels_.attend(cache, q, task.span, next, scratch, out, stride);
    for (int t = 0; merges && t < tile.count; t++) {
        if (task.span >= spans_of(q.visible[t].positions)) continue;
        for (int g = 0; g < group; g++)
            kernels_.merge_spans(partial(0, tile.first + t, head + g), out + stride * t + row * g, head_dim_);
    }
}

// What the spans gave to the query heads of some key-value heads of a token becomes its attention.
void Attention::merge(const Batch& batch, int t, int first_head, int last_head, float* output) {
    const int group = heads_ / kv_heads_;
    const int spans = std::min(spans_of(batch.visible[size_t(t)].positions), slots_);
    for (int head = first_head * group; head < last_head * group; head++) {
        float* all = partial(0, t, head);
        for (int span = 1; span < spans; span++) kernels_.merge_spans(all, partial(span, t, head), head_dim_);
        kernels_.finish_spans(all, head_dim_, output + size_t(head) * head_dim_);
    }
}

void Attention::run(int layer, const Batch& batch, const float* queries, ActivationBuffer& output) {
    constexpr int many = 4;  // spans whose merging is worth a phase of its own
    Pool& pool = phases_.pool();
    pool.phase(tasks_, [&](int index, int thread) {
        Task t = task(index);
        if (slots_ > 1)
            return attend(layer, batch, queries, t, keys_of(layer, batch, task(index + 1)), thread);
        for (; t.span < t.tile->spans; t.span++)
            attend(layer, batch, queries, t, keys_of(layer, batch, {t.tile, t.kv_head, t.span + 1}), thread);
    });
    const bool merge_first = slots_ > many;
    if (merge_first)
        pool.phase(tokens_ * kv_heads_, [&](int i, int) {
            const int t = i / kv_heads_, head = i % kv_heads_;
            merge(batch, t, head, head + 1, output.row(t));
        });
    Activations& result = output.view();
    const int width = heads_ / kv_heads_ * head_dim_;      // of the heads that share a key-value head
    const bool apart = width % Phases::unit(result) == 0;  // these can be quantized by themselves
    phases_.for_tokens(result, apart ? kv_heads_ : 1, [&](int t, int first, int last) {
        if (!apart) last = kv_heads_;
        if (!merge_first) merge(batch, t, first, last, output.row(t));
        if (result.q) kernels_.quantize(result, t, first * width / kGroup, last * width / kGroup);
    });
}

}  // namespace outrider
