// Memory for logits, kept from pass to pass: they are megabytes of another size each time, which would leave
// the heap in pieces.
#pragma once
#include <memory>
#include <mutex>

#include "kernels/layout.h"

namespace outrider {

class Buffers : public std::enable_shared_from_this<Buffers> {
  public:
    // Room for so many floats, not cleared. The largest that was let go of serves the next who asks.
    std::shared_ptr<float> take(size_t floats) {
        Buffer found;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            if (kept_.floats >= floats) std::swap(found, kept_);
        }
        if (!found.memory) found = {allocate(floats * sizeof(float)), floats};
        float* room = reinterpret_cast<float*>(found.memory.get());
        auto held = std::make_shared<Buffer>(std::move(found));
        return {room, [home = shared_from_this(), held](float*) { home->give_back(std::move(*held)); }};
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
