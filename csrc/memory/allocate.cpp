#include "memory/allocate.h"

#include <cstdlib>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#elif defined(_WIN32)
#include <malloc.h>
#endif

namespace outrider {

#if defined(_WIN32)  // has no aligned_alloc
static void* take(size_t align, size_t bytes) { return _aligned_malloc(bytes, align); }
void FreeAligned::operator()(uint8_t* p) const { _aligned_free(p); }
#else
static void* take(size_t align, size_t bytes) { return std::aligned_alloc(align, bytes); }
void FreeAligned::operator()(uint8_t* p) const { std::free(p); }
#endif

Bytes allocate(size_t bytes) {
    const size_t huge = size_t(2) << 20, align = bytes >= huge ? huge : 64;
    const size_t rounded = (bytes + align - 1) / align * align;
    uint8_t* p = static_cast<uint8_t*>(take(align, rounded ? rounded : align));
    if (!p) throw std::bad_alloc();
#if defined(__linux__)
    // Huge pages mean fewer TLB misses; a refusal is harmless. Not for the last, partly used one: it would be
    // resident as a whole.
    if (bytes >= huge) madvise(p, bytes / huge * huge, MADV_HUGEPAGE);
#endif
    return Bytes(p);
}

}  // namespace outrider
