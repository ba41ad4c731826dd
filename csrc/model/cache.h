// Keys and values of one sequence, in cache blocks of 16 positions. Layers with the same sliding window share
// their blocks, and give back those that the window has passed.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "memory/blocks.h"
#include "model/spec.h"

namespace outrider {

// A sequence can go back so many positions from where its last pass began, whatever its windows: as many as
// a draft model may draft in several passes (MAX_DRAFT_TOKENS in config/speculative.py). Within the last
// pass, which the target's rollbacks do not leave, it can go back anyway.
constexpr int kRollback = 128;

// The first block that a window (0: none) still shows where the next token's position is at least
// `length` - kRollback.
inline int first_needed_block(int length, int window) {
    const int64_t position = int64_t(length) - kRollback - window + 1;
    return window > 0 && position > 0 ? int(position / kCacheBlock) : 0;
}

// The shortest length, other than 0, whose next token sees nothing before block `first`.
inline int shortest_length(int first, int window) { return first > 0 ? first * kCacheBlock + window - 1 : 0; }

// Layers whose keys and values lie in the same blocks.
struct LayerGroup {
    int window;  // positions; 0 for all
    int layers;

    bool operator==(const LayerGroup&) const = default;
};

struct CacheShape {
    struct Place {
        int group, index;  // of a layer: its group, and which layer of that it is

        bool operator==(const Place&) const = default;
    };

    CacheShape(const ModelSpec& spec, CacheType type);
    bool operator==(const CacheShape&) const = default;

    // Keys and values of one head.
    size_t head_bytes() const { return key_bytes(type, head_dim) + value_bytes(type, head_dim); }
    size_t block_bytes(size_t group) const { return size_t(groups[group].layers) * kv_heads * head_bytes(); }

    int kv_heads, head_dim;
    CacheType type;
    std::vector<LayerGroup> groups;  // one for each window that layers have
    std::vector<Place> places;       // of each layer
};

// What a cache of this type holds of some keys and values of one head, [positions][head_dim] each: they are
// stored by `kernels`, and read back as numbers.
void store_and_read(const Kernels& kernels, CacheType type, int positions, int head_dim, const float* keys,
                    const float* values, float* held_keys, float* held_values);

// Gives the blocks of each group.
using BlockStores = std::vector<std::shared_ptr<BlockStore>>;

// Full cache blocks of one cache that others may hold too. A block that several hold is never written to.
struct SharedBlocks {
    std::shared_ptr<const CacheShape> shape;
    std::vector<std::shared_ptr<uint8_t>> blocks;  // [blocks][groups], null where a window had passed

    size_t count() const { return blocks.size() / shape->groups.size(); }
    int positions() const { return int(count()) * kCacheBlock; }
    const std::shared_ptr<uint8_t>& at(size_t block, size_t group) const {
        return blocks[block * shape->groups.size() + group];
    }
    bool whole() const { return std::find(blocks.begin(), blocks.end(), nullptr) == blocks.end(); }
    size_t bytes() const;
};

class Cache {
  public:
    Cache(std::shared_ptr<const CacheShape> shape, int capacity, BlockStores stores);

    int length() const { return length_; }
    int capacity() const { return capacity_; }
    bool closed() const { return closed_; }
    size_t bytes() const;
    // The shortest length, other than 0, that it can go back to: windows hold what is seen after it.
    int rollback_floor() const;

    // Throws std::length_error when `count` more slots are over the capacity, std::invalid_argument when
    // nothing can follow: the cache is closed, or lacks what its windows show.
    void check_room(int count) const;
    // Room for `count` more slots (memory is taken block by block); gives back what windows have passed.
    void reserve(int count);
    void advance(int count) { length_ += count; }
    void truncate(int length);
    // Positions of no meaning, of zeros in new blocks: to measure what a context costs without computing it.
    void pad(int count);
    void keep(int base, const std::vector<int>& slots, const Kernels& kernels);
    void close();
    // Positions [start, stop), multiples of 16, as blocks held in common. They are copied before either side
    // writes to them again.
    SharedBlocks share(int start, int stop) const;
    // Puts blocks at the end, which must lie at a multiple of 16; they are valid at the positions of their
    // origin only. After blocks that are not whole others must come until windows show whole ones only.
    void adopt(const SharedBlocks& shared);

    HeadCache head(int layer, int kv_head) const {
        const CacheShape::Place place = shape_->places[size_t(layer)];
        const size_t at = (size_t(place.index) * shape_->kv_heads + kv_head) * shape_->head_bytes();
        return {groups_[size_t(place.group)].pointers.data(), at,
                at + key_bytes(shape_->type, shape_->head_dim), shape_->type};
    }

  private:
    struct Blocks {     // of a group
        int first = 0;  // those before it were given back, and are null
        std::vector<std::shared_ptr<uint8_t>> held;
        std::vector<void*> pointers;
    };

    void check_open() const;
    void check_rollback(int length) const;
    void set_length(int length);
    void release_passed();
    void own(size_t group, size_t block);  // make it this cache's alone

    std::shared_ptr<const CacheShape> shape_;
    int capacity_, length_ = 0;
    bool closed_ = false;
    BlockStores stores_;
    std::vector<Blocks> groups_;
};

}  // namespace outrider
