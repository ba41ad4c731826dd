// Keys and values of one sequence, in blocks of 16 positions that hold all layers.
#pragma once
#include <memory>
#include <vector>

#include "kernels.h"

namespace outrider {

struct CacheShape {
    int layers, kv_heads, head_dim;
    bool half;  // binary16, else float32

    size_t element() const { return half ? 2 : 4; }
    size_t head_bytes() const { return size_t(16) * head_dim * element(); }  // keys or values of one head
    size_t block_bytes() const { return size_t(layers) * kv_heads * 2 * head_bytes(); }
};

class Cache {
  public:
    Cache(CacheShape shape, int capacity);

    int length() const { return length_; }
    int capacity() const { return capacity_; }
    bool closed() const { return closed_; }
    size_t bytes() const { return blocks_.size() * shape_.block_bytes(); }

    // Room for `count` more slots (memory is taken block by block). Throws std::length_error when over the capacity.
    void reserve(int count);
    void advance(int count) { length_ += count; }
    void truncate(int length);
    void keep(int base, const std::vector<int>& slots, const Kernels& kernels);
    void close();

    HeadCache head(int layer, int kv_head) const {
        const size_t at = (size_t(layer) * shape_.kv_heads + kv_head) * 2 * shape_.head_bytes();
        return {pointers_.data(), at, at + shape_.head_bytes(), shape_.half};
    }

  private:
    void check_open() const;

    CacheShape shape_;
    int capacity_, length_ = 0;
    bool closed_ = false;
    std::vector<std::shared_ptr<uint8_t>> blocks_;  // shared, so that sequences may one day share prefixes
    std::vector<void*> pointers_;
};

}  // namespace outrider
