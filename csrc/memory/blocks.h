// Memory for the blocks of a model's key-value caches.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "memory/allocate.h"

namespace outrider {

// Allocates cache blocks of one size, many from one slab of huge pages: a pass over a long context reads each
// block in parts of a few kB, one for each layer and head, and small pages cost an address translation for
// each. A slab is freed with its last block. The oldest slab with a free block is used first, so that slabs
// never hold more than one slab beyond the largest number of blocks that were ever in use. Thread-safe.
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
