// Keys and values of one sequence, in cache blocks of 16 positions that hold all layers.
#pragma once
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "memory/blocks.h"

namespace outrider {

struct CacheShape {
    int layers, kv_heads, head_dim;
    bool half;  // binary16, else float32

    bool operator==(const CacheShape&) const = default;
    size_t element() const { return half ? 2 : 4; }
    size_t head_bytes() const {
        return size_t(kCacheBlock) * head_dim * element();
    }  // keys or values of one head
    size_t block_bytes() const { return size_t(layers) * kv_heads * 2 * head_bytes(); }
};

// Full cache blocks of one cache that others may hold too. A block that several hold is never written to.
struct SharedBlocks {
    CacheShape shape;
    std::vector<std::shared_ptr<uint8_t>> blocks;

    int positions() const { return int(blocks.size()) * kCacheBlock; }
    size_t bytes() const { return blocks.size() * shape.block_bytes(); }
};

class Cache {
  public:
    // `store` gives blocks of shape.block_bytes().
    Cache(CacheShape shape, int capacity, std::shared_ptr<BlockStore> store);

    int length() const { return length_; }
    int capacity() const { return capacity_; }
    bool closed() const { return closed_; }
    size_t bytes() const { return blocks_.size() * shape_.block_bytes(); }

    // Room for `count` more slots (memory is taken block by block). Throws std::length_error when over the
    // capacity.
    void reserve(int count);
    void advance(int count) { length_ += count; }
    void truncate(int length);
    void keep(int base, const std::vector<int>& slots, const Kernels& kernels);
    void close();
    // Positions [start, stop), multiples of 16, as blocks held in common. They are copied before either side
    // writes to them again.
    SharedBlocks share(int start, int stop) const;
    // Puts blocks at the end, which must lie at a multiple of 16; they are valid at the positions of their
    // origin only.
    void adopt(const SharedBlocks& shared);

    HeadCache head(int layer, int kv_head) const {
        const size_t at = (size_t(layer) * shape_.kv_heads + kv_head) * 2 * shape_.head_bytes();
        return {pointers_.data(), at, at + shape_.head_bytes(), shape_.half};
    }

  private:
    void check_open() const;
    void own(size_t block);  // make it this cache's alone

    CacheShape shape_;
    int capacity_, length_ = 0;
    bool closed_ = false;
    std::shared_ptr<BlockStore> store_;
    std::vector<std::shared_ptr<uint8_t>> blocks_;
    std::vector<void*> pointers_;
};

}  // namespace outrider
