// Memory for logits, reused from pass to pass: they are megabytes of a different size each time, which would
// fragment the heap.
#pragma once
#include <memory>
#include <mutex>

#include "memory/allocate.h"

namespace outrider {

class Buffers : public std::enable_shared_from_this<Buffers> {
  public:
    // A buffer for so many floats, not cleared. The largest that was released is kept for a later call.
    std::shared_ptr<float> take(size_t floats) {
        Buffer found;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            if (kept_.floats >= floats) std::swap(found, kept_);
        }
        if (!found.memory) found = {allocate(floats * sizeof(float)), floats};
        float* values = reinterpret_cast<float*>(found.memory.get());
        auto held = std::make_shared<Buffer>(std::move(found));
        return {values, [home = shared_from_this(), held](float*) { home->give_back(std::move(*held)); }};
    }

  private:
    struct Buffer {
        Bytes memory;
        size_t floats = 0;
    };

    void give_back(Buffer&& buffer) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (buffer.floats >= kept_.floats) std::swap(buffer, kept_);
    }

    std::mutex mutex_;
    Buffer kept_;
};

}  // namespace outrider
