#include "model/cache.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "memory/half.h"
#include "model/mixed_columns.h"

namespace outrider {

template <class T>
static T number(const uint8_t* bytes, size_t index) {
    T value;
    std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
    return value;
}

// One position of a cache block as floats. See HeadCache for how it lies there.
static void read_kv(CacheType type, const uint8_t* keys, const uint8_t* values, size_t at, size_t head_dim,
                    float* key, float* value) {
    for (size_t d = 0; d < head_dim; d++) {
        const size_t key_at = kCacheBlock * d + at, value_at = head_dim * at + d;
        if (type == CacheType::f32) {
            key[d] = number<float>(keys, key_at);
            value[d] = number<float>(values, value_at);
        } else if (type == CacheType::f16) {
            key[d] = half_to_float(number<uint16_t>(keys, key_at));
            value[d] = half_to_float(number<uint16_t>(values, value_at));
        } else {
            const size_t scale_at = d / kKeyGroup * kCacheBlock + at, count = kCacheBlock * head_dim;
            key[d] = half_to_float(number<uint16_t>(keys + count, scale_at)) *
                     number<int8_t>(keys, 2 * (d / 2 * kCacheBlock + at) + d % 2);
            value[d] = number<float>(values + count, at) *
                       number<int8_t>(values, 2 * (at / 2 * head_dim + d) + at % 2);
        }
    }
}

void store_and_read(const Kernels& kernels, CacheType type, int positions, int head_dim, const float* keys,
                    const float* values, float* held_keys, float* held_values) {
    const size_t values_at = key_bytes(type, head_dim), dim = size_t(head_dim);
    std::vector<uint8_t> block(values_at + value_bytes(type, head_dim));
    void* const pointer = block.data();
    const HeadCache cache{&pointer, 0, values_at, type};
    const bool mixed = type == CacheType::q8_0;
    for (size_t p = 0; p < size_t(positions); p++) {
        const size_t slot = p % kCacheBlock, first = p * dim;
        float* const key = held_keys + first;
        std::copy_n(keys + first, dim, key);
        if (mixed) mix_columns(key, head_dim);
        kernels.store_kv(cache, int(slot), head_dim, key, values + first);
        read_kv(type, block.data(), block.data() + values_at, slot, dim, key, held_values + first);
        if (!mixed) continue;
        mix_columns(key, head_dim);
        for (size_t d = 0; d < dim; d++) key[d] /= float(mixed_columns(head_dim));
    }
}

CacheShape::CacheShape(const ModelSpec& spec, CacheType type)
    : kv_heads(spec.kv_heads), head_dim(spec.head_dim), type(type) {
    for (const LayerSpec& layer : spec.layers) {
        const auto found = std::find_if(groups.begin(), groups.end(),
                                        [&](const LayerGroup& g) { return g.window == layer.window; });
        const int group = int(found - groups.begin());
        if (found == groups.end()) groups.push_back({layer.window, 0});
        places.push_back({group, groups[size_t(group)].layers++});
    }
}

size_t SharedBlocks::bytes() const {
    size_t total = 0;
    for (size_t i = 0; i < blocks.size(); i++)
        if (blocks[i]) total += shape->block_bytes(i % shape->groups.size());
    return total;
}

Cache::Cache(std::shared_ptr<const CacheShape> shape, int capacity, BlockStores stores)
    : shape_(std::move(shape)),
      capacity_(capacity),
      stores_(std::move(stores)),
      groups_(shape_->groups.size()) {
    if (capacity < 1) throw std::invalid_argument("a cache needs a capacity of at least 1");
}

size_t Cache::bytes() const {
    size_t total = 0;
    for (size_t g = 0; g < groups_.size(); g++)
        total += (groups_[g].held.size() - size_t(groups_[g].first)) * shape_->block_bytes(g);
    return total;
}

int Cache::rollback_floor() const {
    int floor = 0;
    for (size_t g = 0; g < groups_.size(); g++)
        floor = std::max(floor, shortest_length(groups_[g].first, shape_->groups[g].window));
    return floor;
}

void Cache::check_open() const {
    if (closed_) throw std::invalid_argument("the cache is closed");
}

void Cache::check_rollback(int length) const {
    const int floor = rollback_floor();
    if (length < floor)
        throw std::invalid_argument("cannot go back to " + std::to_string(length) +
                                    " positions: the layers with a sliding window hold what is seen after " +
                                    std::to_string(floor) + " or more");
}

void Cache::check_room(int count) const {
    check_open();
    if (count > capacity_ - length_)
        throw std::length_error("the cache holds " + std::to_string(length_) + " of " +
                                std::to_string(capacity_) + " positions; " + std::to_string(count) +
                                " more do not fit");
    if (length_ < rollback_floor())
        throw std::invalid_argument("the blocks adopted last lack what sliding windows show");
}

void Cache::reserve(int count) {
    check_room(count);
    release_passed();
    const size_t needed = (size_t(length_) + size_t(count) + kCacheBlock - 1) / kCacheBlock;
    for (size_t g = 0; g < groups_.size(); g++) {
        Blocks& blocks = groups_[g];
        for (size_t i = size_t(length_) / kCacheBlock; i < std::min(needed, blocks.held.size()); i++)
            own(g, i);
        while (blocks.held.size() < needed) {
            // (Cleared: lanes beyond the last position are read, and masked, so they must be harmless
            // numbers.)
            blocks.held.push_back(stores_[g]->take());
            blocks.pointers.push_back(blocks.held.back().get());
        }
    }
}

void Cache::release_passed() {
    for (size_t g = 0; g < groups_.size(); g++) {
        Blocks& blocks = groups_[g];
        const int needed = first_needed_block(length_, shape_->groups[g].window);
        for (; blocks.first < needed; blocks.first++) {
            blocks.held[size_t(blocks.first)].reset();
            blocks.pointers[size_t(blocks.first)] = nullptr;
        }
    }
}

void Cache::own(size_t group, size_t block) {
    std::shared_ptr<uint8_t>& held = groups_[group].held[block];
    if (held.use_count() == 1) return;
    std::shared_ptr<uint8_t> copy = stores_[group]->take();
    std::memcpy(copy.get(), held.get(), shape_->block_bytes(group));
    held = std::move(copy);
    groups_[group].pointers[block] = held.get();
}

SharedBlocks Cache::share(int start, int stop) const {
    check_open();
    if (start < 0 || stop < start || stop > length_ || start % kCacheBlock || stop % kCacheBlock)
        throw std::invalid_argument("share: positions must be multiples of 16 inside the cache");
    SharedBlocks shared{shape_, {}};
    for (size_t i = size_t(start) / kCacheBlock; i < size_t(stop) / kCacheBlock; i++)
        for (const Blocks& blocks : groups_) shared.blocks.push_back(blocks.held[i]);
    return shared;
}

void Cache::adopt(const SharedBlocks& shared) {
    check_open();
    if (shared.shape->type != shape_->type)
        throw std::invalid_argument("adopt: the blocks hold keys and values of another type");
    if (!(*shared.shape == *shape_)) throw std::invalid_argument("adopt: the blocks are of another model");
    if (length_ % kCacheBlock)
        throw std::invalid_argument("adopt: the cache must hold a multiple of 16 positions");
    if (shared.positions() > capacity_ - length_)
        throw std::length_error("adopt: " + std::to_string(shared.positions()) +
                                " positions more do not fit");
    for (size_t g = 0; g < groups_.size(); g++) {
        Blocks& blocks = groups_[g];
        blocks.held.resize(size_t(length_) / kCacheBlock);
        blocks.pointers.resize(blocks.held.size());
        for (size_t i = 0; i < shared.count(); i++) {
            blocks.held.push_back(shared.at(i, g));
            blocks.pointers.push_back(blocks.held.back().get());
            if (blocks.held.back()) continue;
            for (; size_t(blocks.first) < blocks.held.size(); blocks.first++) {
                blocks.held[size_t(blocks.first)].reset();
                blocks.pointers[size_t(blocks.first)] = nullptr;
            }
        }
    }
    length_ += shared.positions();
    release_passed();
}

void Cache::truncate(int length) {
    check_open();
    if (length < 0 || length > length_)
        throw std::invalid_argument("cannot truncate a cache of " + std::to_string(length_) +
                                    " positions to " + std::to_string(length));
    if (length > 0) check_rollback(length);
    set_length(length);
}

void Cache::pad(int count) {
    if (count < 0) throw std::invalid_argument("pad: no fewer than 0 positions");
    reserve(count);
    advance(count);
}

void Cache::set_length(int length) {
    length_ = length;
    for (Blocks& blocks : groups_)
        if (length == 0 && blocks.first > 0) blocks = {};
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
    if (base > 0 || !slots.empty()) check_rollback(base);
    for (size_t i = 0; i < slots.size(); i++) {
        const int to = base + int(i);  // never after a slot that is still to be read
        if (slots[i] == to) continue;
        for (size_t g = 0; g < groups_.size(); g++) own(g, size_t(to) / kCacheBlock);
        for (int layer = 0; layer < int(shape_->places.size()); layer++)
            for (int h = 0; h < shape_->kv_heads; h++)
                kernels.copy_kv(head(layer, h), slots[i], to, shape_->head_dim);
    }
    set_length(base + int(slots.size()));
}

void Cache::close() {
    closed_ = true;
    length_ = 0;
    groups_.assign(groups_.size(), {});
}

}  // namespace outrider
