// What a head on another model (EAGLE-3, Li et al. 2025) computes before and after its layers: these are the
// transformer's (layers.cpp).
#include <algorithm>

#include "model/model.h"

namespace outrider {

// x = Wfc · norm(states), or the fed-back states themselves; and the embeddings of the tokens.
void Model::begin_head(const HeadStates& states) {
    embedded_.resize(x_.size());
    embed(embedded_.data());
    if (states.fed_back) {
        std::copy_n(states.in, x_.size(), x_.data());
        return;
    }
    const size_t width = size_t(spec_.head.width());
    const Matrix& fc = *weights_.states().fc;
    Activations& in = states_in_.shape(batch_.size(), int(width), weights_.input_formats().states, kernels_);
    phases_.for_columns(in, [&](int t, Columns columns) {
        norm_states(states.in + size_t(t) * width, t, columns);
        quantize(in, t, columns);
    });
    ordered_.gather(in, {&fc});
    phases_.compute({{&fc, &ordered_.of(fc, in), {x_.data(), size_t(spec_.hidden), nullptr, false}}});
}

// These columns of row t of states_in_ become the norm of `row`: of all states together, of each, or none.
void Model::norm_states(const float* row, int t, Columns columns) {
    const StateWeights& w = weights_.states();
    float* to = states_in_.row(t);
    if (w.joint_norm)
        return kernels_.rms_norm(row, w.joint_norm, spec_.rms_eps, spec_.head.width(), columns.first,
                                 columns.last, to);
    if (w.norms.empty()) {
        std::copy(row + columns.first, row + columns.last, to + columns.first);
        return;
    }
    const int size = spec_.head.state_size;
    for (int i = columns.first / size; i * size < columns.last; i++) {
        const int at = i * size;
        kernels_.rms_norm(row + at, w.norms[size_t(i)], spec_.rms_eps, size, std::max(columns.first - at, 0),
                          std::min(columns.last - at, size), to + at);
    }
}

// The first layer's attention reads the norms of a token's embedding and of its state, one after the other.
void Model::join_inputs(const LayerWeights& w) {
    Activations& in = attention_in_.view();
    const int n = attention_tokens_.tokens, hidden = spec_.hidden;
    const bool normed = spec_.head.norm_before_residual;
    if (normed)
        pool().phase(n, [&](int t, int) {
            float* x = x_.data() + size_t(t) * size_t(hidden);
            kernels_.rms_norm(x, w.state_norm, spec_.rms_eps, hidden, 0, hidden, x);
        });
    phases_.for_columns(attention_tokens_, [&](int t, Columns columns) {
        const size_t at = size_t(t) * size_t(hidden);
        const float *embedding = embedded_.data() + at, *x = x_.data() + at;
        float *first_half = attention_in_.row(t), *second_half = first_half + hidden;
        if (columns.first < hidden)
            kernels_.rms_norm(embedding, w.attention_norm, spec_.rms_eps, hidden, columns.first,
                              std::min(columns.last, hidden), first_half);
        const int first = std::max(columns.first - hidden, 0), last = columns.last - hidden;
        if (first < last && normed)
            std::copy(x + first, x + last, second_half + first);
        else if (first < last)
            kernels_.rms_norm(x, w.state_norm, spec_.rms_eps, hidden, first, last, second_half);
        if (in.q) kernels_.quantize_residual(in, t, n + t, columns.first / kGroup, columns.last / kGroup);
    });
    ordered_.gather(attention_tokens_, {w.q, w.k, w.v}, w.v);
}

// What is fed back with the next token: the last layer's output, or its final norm, which run_output() left.
void Model::give_states(float* out) {
    if (batch_.wanted.empty()) return;
    const size_t hidden = size_t(spec_.hidden);
    pool().phase(int(batch_.wanted.size()), [&](int r, int) {
        const float* row =
            spec_.head.norm_output ? last_.row(r) : x_.data() + size_t(batch_.wanted[size_t(r)]) * hidden;
        std::copy_n(row, hidden, out + size_t(r) * hidden);
    });
}

}  // namespace outrider
