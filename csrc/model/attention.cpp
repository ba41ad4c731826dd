#include "model/attention.h"

#include <algorithm>

namespace outrider {

static int spans_of(int positions) { return (positions + kSpan - 1) / kSpan; }

static int first_span_of(int positions, int window) { return first_in_window(positions, window) / kSpan; }

void Attention::add_layer(const LayerSpec& layer) {
    size_t i = 0;
    while (i < partitions_.size() && partitions_[i].window != layer.window) i++;
    if (i == partitions_.size()) partitions_.push_back({layer.window, {}, {}});
    layers_.push_back({int(layers_.size()), int(i), layer.attention_softcap});
}

// Tiles of tokens. Where there is little to share out (few tokens, long contexts), threads take the spans of
// a tile apart, and keep what each gave; else one thread goes through them, which needs room for one only.
// Either way the spans of a token are merged in order.
void Attention::partition(const Batch& batch) {
    tokens_ = batch.size();
    int slots = 1;
    for (Partition& work : partitions_) {
        divide(batch, work);
        slots = std::max(slots, work.slots);
    }
    partials_.resize(size_t(tokens_) * heads_ * partial_floats(head_dim_) * slots);
}

void Attention::divide(const Batch& batch, Partition& work) const {
    constexpr int most = 16;                         // tokens of a tile
    constexpr size_t most_bytes = size_t(32) << 20;  // of partial results, when spans are taken apart
    work.tiles.clear();
    work.first_spans.clear();
    int longest = 1;
    for (int t = 0; t < tokens_;) {
        QueryTile tile{t, 0, batch.visible[size_t(t)].positions, 0, 0, 0};
        const Cache* cache = batch.tokens[size_t(t)].cache;
        for (; t < tokens_ && tile.count < most && batch.tokens[size_t(t)].cache == cache;
             t++, tile.count++) {
            const int positions = batch.visible[size_t(t)].positions;
            tile.positions = std::max(tile.positions, positions);
            tile.first_position = std::min(tile.first_position, first_in_window(positions, work.window));
        }
        tile.first_span = tile.first_position / kSpan;
        tile.spans = spans_of(tile.positions);
        longest = std::max(longest, tile.spans - tile.first_span);
        work.tiles.push_back(tile);
        work.first_spans.resize(size_t(t), tile.first_span);
    }
    const size_t one = size_t(tokens_) * heads_ * partial_floats(head_dim_) * sizeof(float);
    const bool apart =
        int(work.tiles.size()) * kv_heads_ < 4 * phases_.threads() && one * longest <= most_bytes;
    work.slots = apart ? longest : 1;
    work.tasks = 0;
    for (const QueryTile& tile : work.tiles)
        work.tasks += kv_heads_ * (apart ? tile.spans - tile.first_span : 1);
}

// Key-value heads follow one another, then spans, then tiles.
Attention::Task Attention::task(const Partition& work, int index) const {
    for (const QueryTile& tile : work.tiles) {
        const int n = kv_heads_ * (work.slots == 1 ? 1 : tile.spans - tile.first_span);
        if (index < n) return {&tile, index % kv_heads_, tile.first_span + index / kv_heads_};
        index -= n;
    }
    return {nullptr, 0, 0};
}

NextKeys Attention::keys_of(const Layer& layer, const Batch& batch, const Task& task) const {
    if (!task.tile || task.span >= task.tile->spans) return {};
    Cache* cache = batch.tokens[size_t(task.tile->first)].cache;
    return {cache->head(layer.index, task.kv_head), task.span, task.tile->first_position,
            task.tile->positions};
}

float* Attention::partial(int slot, int t, int head) {
    return partials_.data() +
           ((size_t(slot) * size_t(tokens_) + t) * heads_ + head) * partial_floats(head_dim_);
}

// One span of one tile and key-value head; merged at once with those before it where there is one slot for
// all.
void Attention::attend(const Layer& layer, const Batch& batch, const float* queries, const Task& task,
                       const NextKeys& next, int thread) {
    const Partition& work = partitions_[size_t(layer.partition)];
    const QueryTile& tile = *task.tile;
    const int group = heads_ / kv_heads_, head = task.kv_head * group;
    const size_t width = size_t(heads_) * head_dim_, row = partial_floats(head_dim_),
                 stride = size_t(heads_) * row;
    const Queries q{queries + size_t(tile.first) * width + size_t(head) * head_dim_,
                    width,
                    batch.visible.data() + tile.first,
                    tile.count,
                    group,
                    head_dim_,
                    work.window,
                    layer.softcap};
    const int slot = task.span - tile.first_span;
    const bool merges = work.slots == 1 && slot > 0;
    const size_t room = attend_scratch(q), result = merges ? stride * size_t(tile.count) : 0;
    float* const scratch = phases_.scratch(thread, room + result);
    float* const out = merges ? scratch + room : partial(slot, tile.first, head);
    const HeadCache cache = batch.tokens[size_t(tile.first)].cache->head(layer.index, task.kv_head);
    kernels_.attend(cache, q, task.span, next, scratch, out, stride);
    for (int t = 0; merges && t < tile.count; t++) {
        const int positions = q.visible[t].positions, first = first_span_of(positions, work.window);
        if (task.span < first || task.span >= spans_of(positions)) continue;
        float *all = partial(0, tile.first + t, head), *found = out + stride * t;
        if (task.span == first) std::copy_n(found, row * size_t(group), all);
        for (int g = 0; task.span > first && g < group; g++)
            kernels_.merge_spans(all + row * g, found + row * g, head_dim_);
    }
}

// What the spans gave to the query heads of some key-value heads of a token becomes its attention.
void Attention::merge(const Partition& work, const Batch& batch, int t, int first_head, int last_head,
                      float* output) {
    const int group = heads_ / kv_heads_, positions = batch.visible[size_t(t)].positions,
              before = work.first_spans[size_t(t)];
    const int first = work.slots == 1 ? 0 : first_span_of(positions, work.window) - before,
              end = std::min(spans_of(positions) - before, work.slots);
    for (int head = first_head * group; head < last_head * group; head++) {
        float* all = partial(first, t, head);
        for (int slot = first + 1; slot < end; slot++)
            kernels_.merge_spans(all, partial(slot, t, head), head_dim_);
        kernels_.finish_spans(all, head_dim_, output + size_t(head) * head_dim_);
    }
}

void Attention::run(int index, const Batch& batch, const float* queries, ActivationBuffer& output) {
    constexpr int many = 4;  // spans whose merging is worth a phase of its own
    const Layer& layer = layers_[size_t(index)];
    const Partition& work = partitions_[size_t(layer.partition)];
    Pool& pool = phases_.pool();
    pool.phase(work.tasks, [&](int at, int thread) {
        Task t = task(work, at);
        if (work.slots > 1)
            return attend(layer, batch, queries, t, keys_of(layer, batch, task(work, at + 1)), thread);
        for (; t.span < t.tile->spans; t.span++)
            attend(layer, batch, queries, t, keys_of(layer, batch, {t.tile, t.kv_head, t.span + 1}), thread);
    });
    const bool merge_first = work.slots > many;
    if (merge_first)
        pool.phase(tokens_ * kv_heads_, [&](int i, int) {
            const int t = i / kv_heads_, head = i % kv_heads_;
            merge(work, batch, t, head, head + 1, output.row(t));
        });
    Activations& result = output.view();
    const int width = heads_ / kv_heads_ * head_dim_;      // of the heads that share a key-value head
    const bool apart = width % Phases::unit(result) == 0;  // these can be quantized by themselves
    phases_.for_tokens(result, apart ? kv_heads_ : 1, [&](int t, int first, int last) {
        if (!apart) last = kv_heads_;
        if (!merge_first) merge(work, batch, t, first, last, output.row(t));
        if (result.q) kernels_.quantize(result, t, first * width / kGroup, last * width / kGroup);
    });
}

}  // namespace outrider
