#include "model/batch.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

namespace outrider {

void check_batch(const std::vector<BatchItem>& items, int vocab) {
    std::vector<const Cache*> seen;
    for (const BatchItem& item : items) {
        for (int i = 0; i < item.count; i++) {
            if (item.tokens[i] < 0 || item.tokens[i] >= vocab)
                throw std::invalid_argument("token id " + std::to_string(item.tokens[i]) +
                                            " is outside the vocabulary of " + std::to_string(vocab));
            if (item.parents[i] < -1 || item.parents[i] >= i)
                throw std::invalid_argument("a node's parent must come before it");
        }
        for (int i = 0; i < item.row_count; i++)
            if (item.rows[i] < 0 || item.rows[i] >= item.count)
                throw std::invalid_argument("a wanted row is not among the new tokens");
        if (std::find(seen.begin(), seen.end(), item.cache) != seen.end())
            throw std::invalid_argument("a cache may appear once in a pass");
        seen.push_back(item.cache);
        item.cache->check_room(item.count);
    }
    for (const BatchItem& item : items) item.cache->reserve(item.count);
}

// The positions that new token i of `item` sees: all of the cache, and its ancestors. `path` is scratch.
static Visible visible_to(const BatchItem& item, int i, int position, std::vector<int>& path,
                          std::vector<int>& tail) {
    const int base = item.cache->length();
    path.clear();  // slots of positions position, position - 1, …, base
    for (int node = i; node >= 0; node = item.parents[node]) path.push_back(base + node);
    int direct = base;  // positions below it have a slot of the same number
    while (direct <= position && path[size_t(position - direct)] == direct) direct++;
    Visible visible{position + 1, position + 1, nullptr};
    if (direct <= position) {
        visible.direct = direct / kCacheBlock * kCacheBlock;
        for (int p = visible.direct; p <= position; p++)
            tail.push_back(p < base ? p : path[size_t(position - p)]);
    }
    return visible;
}

void layout_batch(const std::vector<BatchItem>& items, Batch& batch) {
    batch.tokens.clear();
    batch.visible.clear();
    batch.tails.clear();
    batch.wanted.clear();
    std::vector<int> depth, path;
    for (const BatchItem& item : items) {
        const int base = item.cache->length(), first = batch.size();
        depth.assign(size_t(item.count), 0);
        for (int i = 0; i < item.count; i++) {
            depth[size_t(i)] = item.parents[i] < 0 ? 0 : depth[size_t(item.parents[i])] + 1;
            const int position = base + depth[size_t(i)];
            std::vector<int> tail;
            batch.visible.push_back(visible_to(item, i, position, path, tail));
            batch.tails.push_back(std::move(tail));
            batch.tokens.push_back({item.cache, item.tokens[i], base + i, position});
        }
        for (int i = 0; i < item.row_count; i++) batch.wanted.push_back(first + item.rows[i]);
    }
    for (size_t t = 0; t < batch.tokens.size(); t++) batch.visible[t].tail = batch.tails[t].data();
}

void fill_rotations(const std::vector<RopeSpec>& ropes, Batch& batch) {
    batch.rotations.resize(ropes.size());
    for (size_t r = 0; r < ropes.size(); r++) {
        const RopeSpec& rope = ropes[r];
        Rotation& rotation = batch.rotations[r];
        const size_t half = size_t(rope.dim) / 2;
        rotation.width = rope.interleaved ? 2 * half : half;
        rotation.cos.resize(batch.tokens.size() * rotation.width);
        rotation.sin.resize(batch.tokens.size() * rotation.width);
        for (size_t t = 0; t < batch.tokens.size(); t++)
            for (size_t i = 0; i < half; i++) {
                const float angle = float(batch.tokens[t].position) * rope.inv_freq[i],
                            cos = float(std::cos(double(angle))) * rope.scale,
                            sin = float(std::sin(double(angle))) * rope.scale;
                const size_t at = t * rotation.width + (rope.interleaved ? 2 * i : i);
                rotation.cos[at] = cos;
                rotation.sin[at] = rope.interleaved ? -sin : sin;
                if (!rope.interleaved) continue;
                rotation.cos[at + 1] = sin;
                rotation.sin[at + 1] = cos;
            }
    }
}

void keep_wanted_tokens(Batch& batch) {
    std::vector<Token> tokens;
    std::vector<Visible> visible;
    for (const int row : batch.wanted) {
        tokens.push_back(batch.tokens[size_t(row)]);
        visible.push_back(batch.visible[size_t(row)]);
    }
    batch.tokens.swap(tokens);
    batch.visible.swap(visible);
    std::iota(batch.wanted.begin(), batch.wanted.end(), 0);
}

}  // namespace outrider
