// Attention's share of a pass: how it is cut into pieces for the threads, and how the pieces' results are
// joined.
#include <algorithm>

#include "model/model.h"

namespace outrider {

static int spans_of(int positions) { return (positions + kSpan - 1) / kSpan; }

// Tiles of tokens. Where there is little to share out (few tokens, long contexts), threads take the spans of
// a tile apart, and keep what each gave; else one thread goes through them, which needs room for one only.
// Either way the spans of a token are joined in order.
void Model::cut_attention() {
    const Config& c = config_;
    constexpr int most = 16;  // tokens of a tile
    constexpr size_t room = size_t(32)
                            << 20;  // bytes of partial results, at most, when spans are taken apart
    const int n = int(tokens_.size());
    tiles_.clear();
    int longest = 1;
    for (int t = 0; t < n;) {
        Tile tile{t, 0, 0, 0};
        for (; t < n && tile.count < most && tokens_[size_t(t)].cache == tokens_[size_t(tile.first)].cache;
             t++, tile.count++)
            tile.positions = std::max(tile.positions, visible_[size_t(t)].positions);
        tile.spans = spans_of(tile.positions);
        longest = std::max(longest, tile.spans);
        tiles_.push_back(tile);
    }
    const size_t one = size_t(n) * c.heads * partial_floats(c.head_dim);
    const bool apart =
        int(tiles_.size()) * c.kv_heads < 4 * pool_->size() && one * longest * sizeof(float) <= room;
    slots_ = apart ? longest : 1;
    partials_.resize(one * slots_);
    pieces_ = 0;
    for (const Tile& tile : tiles_) pieces_ += c.kv_heads * (apart ? tile.spans : 1);
}

// Key-value heads follow one another, then spans, then tiles.
Model::Piece Model::piece(int index) const {
    for (const Tile& tile : tiles_) {
        const int n = config_.kv_heads * (slots_ == 1 ? 1 : tile.spans);
        if (index < n) return {&tile, index % config_.kv_heads, index / config_.kv_heads};
        index -= n;
    }
    return {nullptr, 0, 0};
}

NextKeys Model::keys_of(int layer, const Piece& p) const {
    if (!p.tile || p.span >= p.tile->spans) return {};
    return {tokens_[size_t(p.tile->first)].cache->head(layer, p.kv_head), p.span, p.tile->positions};
}

float* Model::partial(int slot, int t, int head) {
    return partials_.data() +
           ((size_t(slot) * tokens_.size() + t) * config_.heads + head) * partial_floats(config_.head_dim);
}

// How many spans a token's positions lie in.
int Model::spans(int t) const { return spans_of(visible_[size_t(t)].positions); }

// One span of one tile and key-value head; joined at once to those before it where there is one slot for all.
void Model::attend(int layer, const Piece& p, const NextKeys& next, int thread) {
    const Config& c = config_;
    const Tile& tile = *p.tile;
    const int group = c.heads / c.kv_heads, head = p.kv_head * group;
    const size_t width = size_t(c.heads) * c.head_dim, row = partial_floats(c.head_dim),
                 stride = size_t(c.heads) * row;
    const Queries q{q_.data() + size_t(tile.first) * width + size_t(head) * c.head_dim,
                    width,
                    visible_.data() + tile.first,
                    tile.count,
                    group,
                    c.head_dim};
    const bool joins = slots_ == 1 && p.span > 0;
    Aligned<float>& scratch = scratch_[size_t(thread)];
    const size_t work = attend_scratch(q), result = joins ? stride * size_t(tile.count) : 0;
    if (scratch.size() < work + result) scratch.resize((work + result) * 2);
    const HeadCache cache = tokens_[size_t(tile.first)].cache->head(layer, p.kv_head);
    float* const out = joins ? scratch.data() + work : partial(p.span, tile.first, head);
    kernels_.attend(cache, q, p.span, next, scratch.data(), out, stride);
    for (int t = 0; joins && t < tile.count; t++)
        for (int g = 0; p.span < spans(tile.first + t) && g < group; g++)
            kernels_.join_spans(partial(0, tile.first + t, head + g), out + stride * t + row * g, c.head_dim);
}

// What the spans gave to the query heads of some key-value heads of a token becomes its attention.
void Model::join(int t, int first_head, int last_head) {
    const Config& c = config_;
    const int group = c.heads / c.kv_heads;
    for (int head = first_head * group; head < last_head * group; head++) {
        float* all = partial(0, t, head);
        for (int span = 1; span < std::min(spans(t), slots_); span++)
            kernels_.join_spans(all, partial(span, t, head), c.head_dim);
        kernels_.end_spans(all, c.head_dim, attended_.row(t) + size_t(head) * c.head_dim);
    }
}

void Model::attention(int layer) {
    const Config& c = config_;
    const int n = int(tokens_.size());
    constexpr int many = 4;  // spans whose joining is worth a phase of its own
    const auto work = [&](int index, int thread) {
        Piece p = piece(index);
        if (slots_ > 1) return attend(layer, p, keys_of(layer, piece(index + 1)), thread);
        for (; p.span < p.tile->spans; p.span++)
            attend(layer, p, keys_of(layer, {p.tile, p.kv_head, p.span + 1}), thread);
    };
    pool_->phase(pieces_, work);
    const bool far = slots_ > many;
    if (far)
        pool_->phase(n * c.kv_heads,
                     [&](int i, int) { join(i / c.kv_heads, i % c.kv_heads, i % c.kv_heads + 1); });
    Activations& attended = attended_.view();
    const int width = c.heads / c.kv_heads * c.head_dim;
    const bool apart =
        width % unit(attended) == 0;  // what shares a key-value head can be quantized by itself
    each(attended, apart ? c.kv_heads : 1, [&](int t, int first, int last) {
        if (!apart) last = c.kv_heads;
        if (!far) join(t, first, last);
        quantize(attended, t, {first * width, last * width});
    });
}

}  // namespace outrider
