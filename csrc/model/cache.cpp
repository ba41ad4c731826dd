#include "model/cache.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace outrider {

Cache::Cache(CacheShape shape, int capacity, std::shared_ptr<BlockStore> store)
    : shape_(shape), capacity_(capacity), store_(std::move(store)) {
    if (capacity < 1) throw std::invalid_argument("a cache needs a capacity of at least 1");
}

void Cache::check_open() const {
    if (closed_) throw std::invalid_argument("the cache is closed");
}

void Cache::reserve(int count) {
    check_open();
    if (count > capacity_ - length_)
        throw std::length_error("the cache holds " + std::to_string(length_) + " of " +
                                std::to_string(capacity_) + " positions; " + std::to_string(count) +
                                " more do not fit");
    const size_t needed = (size_t(length_) + size_t(count) + kCacheBlock - 1) / kCacheBlock;
    for (size_t i = size_t(length_) / kCacheBlock; i < std::min(needed, blocks_.size()); i++) own(i);
    while (blocks_.size() < needed) {
        // (Cleared: lanes beyond the last position are read, and masked, so they must be harmless numbers.)
        blocks_.push_back(store_->take());
        pointers_.push_back(blocks_.back().get());
    }
}

void Cache::own(size_t block) {
    if (blocks_[block].use_count() == 1) return;
    std::shared_ptr<uint8_t> copy = store_->take();
    std::memcpy(copy.get(), blocks_[block].get(), shape_.block_bytes());
    blocks_[block] = std::move(copy);
    pointers_[block] = blocks_[block].get();
}

SharedBlocks Cache::share(int start, int stop) const {
    check_open();
    if (start < 0 || stop < start || stop > length_ || start % kCacheBlock || stop % kCacheBlock)
        throw std::invalid_argument("share: positions must be multiples of 16 inside the cache");
    return {shape_, {blocks_.begin() + start / kCacheBlock, blocks_.begin() + stop / kCacheBlock}};
}

void Cache::adopt(const SharedBlocks& shared) {
    check_open();
    if (!(shared.shape == shape_)) throw std::invalid_argument("adopt: the blocks are of another model");
    if (length_ % kCacheBlock)
        throw std::invalid_argument("adopt: the cache must hold a multiple of 16 positions");
    if (shared.positions() > capacity_ - length_)
        throw std::length_error("adopt: " + std::to_string(shared.positions()) +
                                " positions more do not fit");
    blocks_.resize(size_t(length_) / kCacheBlock);
    pointers_.resize(blocks_.size());
    for (const auto& block : shared.blocks) {
        blocks_.push_back(block);
        pointers_.push_back(block.get());
    }
    length_ += shared.positions();
}

void Cache::truncate(int length) {
    check_open();
    if (length < 0 || length > length_)
        throw std::invalid_argument("cannot truncate a cache of " + std::to_string(length_) +
                                    " positions to " + std::to_string(length));
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
        const int to = base + int(i);  // never after a slot that is still to be read
        if (slots[i] == to) continue;
        own(size_t(to) / kCacheBlock);
        for (int layer = 0; layer < shape_.layers; layer++)
            for (int h = 0; h < shape_.kv_heads; h++)
                kernels.copy_kv(head(layer, h), slots[i], to, shape_.head_dim);
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
