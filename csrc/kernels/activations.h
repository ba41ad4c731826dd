// Owns the memory behind an Activations view and grows it as needed.
#pragma once
#include <algorithm>
#include <initializer_list>

#include "kernels/layout.h"
#include "memory/aligned.h"

namespace outrider {

// Who reads a row: float matrices only, or also integer ones, or also K-quants.
enum class Readers { floats, integers, superblocks };

inline Readers readers(std::initializer_list<const Matrix*> matrices) {
    Readers found = Readers::floats;
    for (const Matrix* m : matrices) {
        const KindInfo& kind = info(m->kind);
        if (!kind.is_float)
            found =
                std::max(found, kind.block_columns == kSuperblock ? Readers::superblocks : Readers::integers);
    }
    return found;
}

class ActivationBuffer {
  public:
    Activations& shape(int tokens, int columns, Readers readers) {
        view_.shape(tokens, columns);
        view_.blocks = readers == Readers::superblocks;
        const size_t cells = readers == Readers::floats ? 0 : view_.cells(), more = view_.blocks ? cells : 0;
        x_.resize(size_t(tokens) * columns);
        view_.x = x_.data();
        view_.q = room(q_, cells * kGroup);
        view_.scale = room(scale_, cells);
        view_.sum = room(sum_, cells);
        view_.scaled = room(scaled_, cells);
        view_.round = room(round_, more);
        view_.shifts = room(shifts_, 2 * more);
        view_.centre = room(centre_, 2 * more);
        view_.eighths = room(eighths_, more);
        view_.whole = room(whole_, more / kParts);
        return view_;
    }
    float* row(int t) { return x_.data() + size_t(t) * view_.columns; }
    Activations& view() { return view_; }
    const Activations& view() const { return view_; }

  private:
    template <class T>
    static T* room(Aligned<T>& values, size_t count) {
        values.resize(count);
        return count ? values.data() : nullptr;
    }

    Activations view_;
    Aligned<float> x_, scale_, scaled_, whole_;
    Aligned<int8_t> q_;
    Aligned<int16_t> eighths_;
    Aligned<int32_t> sum_, round_, shifts_, centre_;
};

}  // namespace outrider
