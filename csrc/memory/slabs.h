// Memory for the matrices of a model: many in one slab of huge pages.
#pragma once
#include <memory>

#include "memory/allocate.h"

namespace outrider {

// A pass reads all weights once, and small pages cost an address translation for every 4 kB. A matrix that is
// allocated alone gets huge pages only for the part that fills them, and none below 2 MiB: a third of the
// weights of a 0.5B model.
class Slabs {
  public:
    // 64-byte aligned, not cleared. A slab is freed with the last part of it.
    std::shared_ptr<uint8_t> take(size_t bytes) {
        constexpr size_t line = 64;
        if (bytes > kSlab / 2) return part(std::make_shared<Bytes>(allocate(bytes)), 0);
        if (!slab_ || used_ + bytes > kSlab) {
            slab_ = std::make_shared<Bytes>(allocate(kSlab));
            used_ = 0;
        }
        const size_t at = used_;
        used_ += (bytes + line - 1) / line * line;
        return part(slab_, at);
    }

  private:
    static constexpr size_t kSlab = size_t(64) << 20;  // pages that are never written take no memory

    static std::shared_ptr<uint8_t> part(const std::shared_ptr<Bytes>& slab, size_t at) {
        return {slab, slab->get() + at};
    }

    std::shared_ptr<Bytes> slab_;  // the one being filled
    size_t used_ = 0;
};

}  // namespace outrider
