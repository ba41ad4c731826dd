#include "cache.h"

#include <cstring>
#include <stdexcept>
#include <string>

namespace outrider {

Cache::Cache(CacheShape shape, int capacity) : shape_(shape), capacity_(capacity) {
    if (capacity < 1) throw std::invalid_argument("a cache needs a capacity of at least 1");
}

void Cache::check_open() const {
    if (closed_) throw std::invalid_argument("the cache is closed");
}

void Cache::reserve(int count) {
    check_open();
    if (count > capacity_ - length_)
        throw std::length_error("the cache holds " + std::to_string(length_) + " of " + std::to_string(capacity_) +
                                " positions; " + std::to_string(count) + " more do not fit");
    const size_t needed = (size_t(length_) + size_t(count) + 15) / 16;
    while (blocks_.size() < needed) {
        // cleared: lanes beyond the last position are read (and masked), so they must be harmless numbers
        Bytes memory = allocate(shape_.block_bytes());
        std::memset(memory.get(), 0, shape_.block_bytes());
        blocks_.emplace_back(memory.release(), FreeAligned());
        pointers_.push_back(blocks_.back().get());
    }
}

void Cache::truncate(int length) {
    check_open();
    if (length < 0 || length > length_)
        throw std::invalid_argument("cannot truncate a cache of " + std::to_string(length_) + " positions to " +
                                    std::to_string(length));
    length_ = length;
}

void Cache::keep(int base, const std::vector<int>& slots, const Kernels& kernels) {
    check_open();
    if (base < 0 || base > length_) throw std::invalid_argument("keep: base is outside the cache");
    int before = base - 1;
    for (int slot : slots) {
        if (slot <= before || slot >= length_)
            throw std::invalid_argument("keep: slots must ascend from base and lie inside the cache");
        before = slot;
    }
    for (size_t i = 0; i < slots.size(); i++) {
        const int to = base + int(i);  // never behind a slot that is still to be read
        if (slots[i] == to) continue;
        for (int layer = 0; layer < shape_.layers; layer++)
            for (int h = 0; h < shape_.kv_heads; h++) kernels.copy_kv(head(layer, h), slots[i], to, shape_.head_dim);
    }
    length_ = base + int(slots.size());
}

void Cache::close() {
    closed_ = true;
    length_ = 0;
    blocks_.clear();
    pointers_.clear();
}

}  // namespace outrider
