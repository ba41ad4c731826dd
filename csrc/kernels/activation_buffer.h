// Owns the memory of an Activations view and grows it as needed.
#pragma once
#include <algorithm>
#include <initializer_list>

#include "kernels/activations.h"
#include "kernels/kernels.h"
#include "kernels/matrix.h"
#include "memory/aligned.h"

namespace outrider {

// What the products that read some activations need of them: the floats alone, also int8 groups, int8 groups
// whose scales are tied to those of superblocks, or also the sums of their halves. Each has all of those
// before.
enum class ActivationFormat { float32, int8, int8_superblocks, int8_half_sums };

inline ActivationFormat matrix_format(const Matrix& m) {
    const WeightTypeInfo& type = info(m.type);
    return type.is_float              ? ActivationFormat::float32
           : type.has_half_minimums() ? ActivationFormat::int8_half_sums
           : type.is_superblock       ? ActivationFormat::int8_superblocks
                                      : ActivationFormat::int8;
}

// Of an input in its own order: matrices with an order of their own read a copy.
inline ActivationFormat activation_format(std::initializer_list<const Matrix*> readers) {
    ActivationFormat format = ActivationFormat::float32;
    for (const Matrix* m : readers)
        if (!m->order) format = std::max(format, matrix_format(*m));
    return format;
}

class ActivationBuffer {
  public:
    // Prepares for so many tokens, in token tiles of the kernels' width. What was stored before is lost;
    // cells of tokens that a last tile lacks hold anything, and what is computed from them is not stored.
    Activations& shape(int tokens, int columns, ActivationFormat format, const Kernels& kernels) {
        view_.shape(tokens, columns, kernels.token_tile, kernels.usual_token_tile);
        view_.superblocks = format >= ActivationFormat::int8_superblocks;
        const size_t cells = format == ActivationFormat::float32 ? 0 : view_.cells();
        const size_t super = view_.superblocks ? cells : 0;
        x_.resize(size_t(tokens) * columns);
        view_.x = x_.data();
        view_.q = resized(q_, cells * kGroup);
        view_.scale = resized(scale_, cells);
        view_.sum = resized(sum_, cells);
        view_.scaled_sum = resized(scaled_sum_, cells);
        view_.rounding = resized(rounding_, super);
        view_.shifts = resized(shifts_, 2 * super);
        view_.centred_start = resized(centred_start_, 2 * super);
        view_.min_sums_q3 = resized(min_sums_q3_, super);
        view_.half_sums_q4 =
            resized(half_sums_q4_, format == ActivationFormat::int8_half_sums ? 2 * cells : 0);
        view_.superblock_scale = resized(superblock_scale_, super / kSuperblockGroups);
        return view_;
    }
    // All cells become 0, so that buffers can be compared whole.
    void clear() {
        const auto zero = [](auto& values) { std::fill(values.begin(), values.end(), 0); };
        zero(x_), zero(q_), zero(scale_), zero(sum_), zero(scaled_sum_), zero(rounding_), zero(shifts_);
        zero(centred_start_), zero(min_sums_q3_), zero(half_sums_q4_), zero(superblock_scale_);
    }
    float* row(int t) { return x_.data() + size_t(t) * view_.columns; }
    Activations& view() { return view_; }
    const Activations& view() const { return view_; }

  private:
    template <class T>
    static T* resized(Aligned<T>& values, size_t count) {
        values.resize(count);
        return count ? values.data() : nullptr;
    }

    Activations view_;
    Aligned<float> x_, scale_, scaled_sum_, superblock_scale_;
    Aligned<int8_t> q_;
    Aligned<int16_t> min_sums_q3_, half_sums_q4_;
    Aligned<int32_t> sum_, rounding_, shifts_, centred_start_;
};

}  // namespace outrider
