#include "memory/allocate.h"

#include <cstdlib>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace outrider {

void FreeAligned::operator()(uint8_t* p) const { std::free(p); }

Bytes allocate(size_t bytes) {
    const size_t huge = size_t(2) << 20, align = bytes >= huge ? huge : 64;
    const size_t rounded = (bytes + align - 1) / align * align;
    uint8_t* p = static_cast<uint8_t*>(std::aligned_alloc(align, rounded ? rounded : align));
    if (!p) throw std::bad_alloc();
#if defined(__linux__)
    // Huge pages mean fewer TLB misses; a refusal is harmless. Not for the last, partly used one: it would be
    // resident as a whole.
    if (bytes >= huge) madvise(p, bytes / huge * huge, MADV_HUGEPAGE);
#endif
    return Bytes(p);
}

}  // namespace outrider
