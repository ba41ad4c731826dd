// Large blocks of memory for weights, caches and logits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace outrider {

struct FreeAligned {
    void operator()(uint8_t* p) const;
};
using Bytes = std::unique_ptr<uint8_t[], FreeAligned>;

// Aligned to 64 bytes, or from 2 MiB on to 2 MiB and on huge pages where the system has them. Not cleared.
// Throws std::bad_alloc.
Bytes allocate(size_t bytes);

}  // namespace outrider
