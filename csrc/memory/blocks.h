// Memory for the blocks of a model's caches.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/layout.h"

namespace outrider {

// Gives out blocks of one size, many from one slab on huge pages: a pass over a long context reads each block
// in pieces of a few kB, one for every layer and head, and on small pages looks up an address for each. A
// slab is given back with its last block; the oldest slab with room is filled first, so that slabs never hold
// more than the blocks did at their most, and one slab. Blocks may come and go on any thread.
class BlockStore : public std::enable_shared_from_this<BlockStore> {
  public:
    explicit BlockStore(size_t block_bytes);

    // 64-byte aligned, cleared. Keeps the store alive.
    std::shared_ptr<uint8_t> take();
    size_t bytes() const;  // of the slabs

  private:
    struct Slab {
        Bytes memory;
        std::vector<int> free;  // descending
    };
    void give_back(const std::shared_ptr<Slab>& slab, int index);

    const size_t block_bytes_;
    int per_slab_;
    mutable std::mutex mutex_;
    std::vector<std::shared_ptr<Slab>> slabs_;  // oldest first
};

}  // namespace outrider
