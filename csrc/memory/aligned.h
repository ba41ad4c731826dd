// Vectors aligned to cache lines, whose new elements are not cleared. The standard allocator aligns to 16
// bytes, so that every access by a 64-byte register would touch two lines; and clearing what a prompt's pass
// then writes took a third of a head's.
#pragma once
#include <cstddef>
#include <new>
#include <utility>
#include <vector>

namespace outrider {

template <class T>
struct LineAllocator {
    using value_type = T;
    static constexpr std::align_val_t line{64};

    LineAllocator() = default;
    template <class U>
    LineAllocator(const LineAllocator<U>&) {}
    T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), line)); }
    template <class U>
    void construct(U* p) noexcept {
        ::new (static_cast<void*>(p)) U;
    }
    template <class U, class... Args>
    void construct(U* p, Args&&... args) {
        ::new (static_cast<void*>(p)) U(std::forward<Args>(args)...);
    }
    void deallocate(T* p, size_t) { ::operator delete(p, line); }
    bool operator==(const LineAllocator&) const { return true; }
};

template <class T>
using Aligned = std::vector<T, LineAllocator<T>>;

}  // namespace outrider
