// Memory for the matrices of a model: on huge pages, where many lie one behind the other.
#pragma once
#include <memory>

#include "kernels/layout.h"

namespace outrider {

// A pass reads all weights once, and on small pages looks up an address for every 4 kB. A matrix of its own
// has huge pages only as far as it fills them, and one of less than 2 MiB none: with a 0.5B model's that was
// a third of the weights.
class Slabs {
  public:
    // 64-byte aligned, not cleared. A slab is given back with the last that lies in it.
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
    static constexpr size_t kSlab = size_t(64) << 20;  // of which what is never written takes no memory

    static std::shared_ptr<uint8_t> part(const std::shared_ptr<Bytes>& slab, size_t at) {
        return {slab, slab->get() + at};
    }

    std::shared_ptr<Bytes> slab_;  // the one that is being filled
    size_t used_ = 0;
};

}  // namespace outrider
