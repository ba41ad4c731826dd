#include "memory/blocks.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace outrider {

// How many blocks a slab holds: the fewest that leave at most a sixteenth of its huge pages unused.
static int blocks_of_slab(size_t bytes) {
    constexpr size_t page = size_t(2) << 20, most = 16;
    if (bytes < page / 64) return 1;  // a slab would be large compared to what such a model needs
    for (size_t pages = 1; pages <= most; pages++)
        if (const size_t n = pages * page / bytes; n > 0 && (pages * page - n * bytes) * 16 <= pages * page)
            return int(n);
    return int(std::max<size_t>(1, most * page / bytes));
}

BlockStore::BlockStore(size_t block_bytes)
    : block_bytes_(block_bytes), per_slab_(blocks_of_slab(block_bytes)) {}

std::shared_ptr<uint8_t> BlockStore::take() {
    std::shared_ptr<Slab> slab;
    int index;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        const auto found =
            std::find_if(slabs_.begin(), slabs_.end(), [](const auto& s) { return !s->free.empty(); });
        if (found != slabs_.end()) {
            slab = *found;
        } else {
            slab = std::make_shared<Slab>();
            slab->memory = allocate(block_bytes_ * size_t(per_slab_));
            for (int i = per_slab_ - 1; i >= 0; i--) slab->free.push_back(i);
            slabs_.push_back(slab);
        }
        index = slab->free.back();
        slab->free.pop_back();
    }
    uint8_t* block = slab->memory.get() + block_bytes_ * size_t(index);
    std::shared_ptr<uint8_t> held(
        block, [store = shared_from_this(), slab, index](uint8_t*) { store->give_back(slab, index); });
    std::memset(block, 0, block_bytes_);
    return held;
}

void BlockStore::give_back(const std::shared_ptr<Slab>& slab, int index) {
    std::lock_guard<std::mutex> lock(mutex_);
    slab->free.insert(std::lower_bound(slab->free.begin(), slab->free.end(), index, std::greater<int>()),
                      index);
    if (int(slab->free.size()) == per_slab_) slabs_.erase(std::find(slabs_.begin(), slabs_.end(), slab));
}

size_t BlockStore::bytes() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return slabs_.size() * size_t(per_slab_) * block_bytes_;
}

}  // namespace outrider
