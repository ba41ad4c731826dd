#include "model/ordered.h"

#include <algorithm>

namespace outrider {

void OrderedInputs::gather(const Activations& in, std::initializer_list<const Matrix*> readers,
                           const Matrix* fine) {
    used_ = 0;
    for (const Matrix* m : readers) {
        if (!m->order || &of(*m, in) != &in) continue;
        ActivationFormat format = ActivationFormat::float32;
        for (const Matrix* other : readers)
            if (other->order == m->order) format = std::max(format, matrix_format(*other));
        const bool residuals = fine && fine->order == m->order && !info(fine->type).is_float;
        Copy& copy = copies_[used_++];
        copy.order = m->order.get();
        copy.buffer.shape(residuals ? 2 * in.tokens : in.tokens, in.columns, format, kernels_);
        copy.tokens = copy.buffer.view();
        copy.tokens.tokens = in.tokens;
        fill(copy, in, residuals);
    }
}

void OrderedInputs::fill(Copy& copy, const Activations& in, bool residuals) {
    Activations& to = copy.buffer.view();
    phases_.for_tokens(in, 1, [&](int t, int first, int last) {
        if (first == last) return;
        const float* from = in.x + size_t(t) * size_t(in.columns);
        float* row = copy.buffer.row(t);
        for (int c = 0; c < in.columns; c++) row[c] = from[(*copy.order)[size_t(c)]];
        if (!to.q) return;
        if (residuals)
            kernels_.quantize_residual(to, t, in.tokens + t, 0, to.groups());
        else
            kernels_.quantize(to, t, 0, to.groups());
    });
}

const Activations& OrderedInputs::of(const Matrix& m, const Activations& plain) const {
    for (size_t i = 0; i < used_; i++)
        if (copies_[i].order == m.order.get())
            return plain.tokens == copies_[i].tokens.tokens ? copies_[i].tokens : copies_[i].buffer.view();
    return plain;
}

}  // namespace outrider
