#include "model/weights.h"

#include <algorithm>
#include <stdexcept>

namespace outrider {

void Weights::add_matrix(const std::string& name, WeightType type, int rows, int columns,
                         const uint8_t* file) {
    Matrix m = make_matrix(type, rows, columns, slabs_);
    const int chunk = 16, chunks = (m.panels + chunk - 1) / chunk;
    const auto lock = pool_->lock();
    pool_->phase(chunks,
                 [&](int i, int) { pack_panels(m, file, i * chunk, std::min(m.panels, (i + 1) * chunk)); });
    matrices_[name] = std::move(m);
}

void Weights::add_packed(const std::string& name, WeightType type, int rows, int columns,
                         const uint8_t* packed, size_t bytes) {
    matrices_[name] = view_matrix(type, rows, columns, packed, bytes);
}

void Weights::set_column_order(const std::string& name, std::vector<int> order) {
    const auto found = matrices_.find(name);
    std::vector<bool> there(order.size());
    for (int column : order)
        if (column >= 0 && size_t(column) < there.size()) there[size_t(column)] = true;
    if (found == matrices_.end() || order.size() != size_t(found->second.columns) ||
        std::find(there.begin(), there.end(), false) != there.end())
        throw std::invalid_argument("tensor " + name + ": its columns do not have such an order");
    for (const auto& [other, m] : matrices_)  // matrices with equal orders share a copy of their input
        if (m.order && *m.order == order) {
            found->second.order = m.order;
            return;
        }
    found->second.order = std::make_shared<const std::vector<int>>(std::move(order));
}

void Weights::add_vector(const std::string& name, std::vector<float> values) {
    vectors_[name] = std::move(values);
}

void Weights::set_embedding(WeightType type, const uint8_t* file) {
    embedding_type_ = type;
    embedding_ = file;
}

const Matrix& Weights::packed(const std::string& name) const {
    const auto found = matrices_.find(name);
    if (found == matrices_.end()) throw std::invalid_argument("missing tensor " + name);
    return found->second;
}

size_t Weights::bytes() const {
    size_t total = 0;
    for (const auto& [name, m] : matrices_) total += m.bytes();
    return total;
}

const Matrix& Weights::matrix(const std::string& name, int rows, int columns) const {
    const Matrix& found = packed(name);
    if (found.rows != rows || found.columns != columns)
        throw std::invalid_argument("tensor " + name + " has the wrong shape");
    return found;
}

const float* Weights::vector(const std::string& name, int size) const {
    const float* found = vector_if_there(name, size);
    if (!found) throw std::invalid_argument("missing tensor " + name);
    return found;
}

const float* Weights::vector_if_there(const std::string& name, int size) const {
    const auto found = vectors_.find(name);
    if (found == vectors_.end()) return nullptr;
    if (int(found->second.size()) != size)
        throw std::invalid_argument("tensor " + name + " has the wrong size");
    return found->second.data();
}

LayerWeights Weights::resolve_layer(const ModelSpec& spec, int i) const {
    const LayerSpec& layer = spec.layers[size_t(i)];
    const std::string prefix = "blk." + std::to_string(i) + ".";
    const int hidden = spec.hidden, q = spec.q_width(), kv = spec.kv_width(), ffn = layer.feed_forward.size,
              in = spec.attention_columns(i);
    const auto weight = [&](const char* part, int rows, int columns) {
        return &matrix(prefix + part + ".weight", rows, columns);
    };
    const auto norm = [&](bool has, const char* part, int size) {
        return has ? vector(prefix + part + ".weight", size) : nullptr;
    };
    const auto bias = [&](const char* part, int size) {
        return vector_if_there(prefix + part + ".bias", size);
    };
    LayerWeights w{};
    w.q = weight("attn_q", q, in);
    w.k = weight("attn_k", kv, in);
    w.v = weight("attn_v", kv, in);
    w.o = weight("attn_output", hidden, q);
    w.gate = weight("ffn_gate", ffn, hidden);
    w.up = weight("ffn_up", ffn, hidden);
    w.down = weight("ffn_down", hidden, ffn);
    w.attention_norm = norm(layer.norms.attention, "attn_norm", hidden);
    w.state_norm = norm(spec.is_head() && i == 0, "attn_norm_2", hidden);
    w.q_norm = norm(layer.norms.q, "attn_q_norm", layer.norms.whole_qk ? q : spec.head_dim);
    w.k_norm = norm(layer.norms.k, "attn_k_norm", layer.norms.whole_qk ? kv : spec.head_dim);
    w.post_attention_norm = norm(layer.norms.post_attention, "post_attention_norm", hidden);
    w.ffn_norm = norm(layer.norms.ffn, "ffn_norm", hidden);
    w.post_ffn_norm = norm(layer.norms.post_ffn, "post_ffw_norm", hidden);
    w.q_bias = bias("attn_q", q);
    w.k_bias = bias("attn_k", kv);
    w.v_bias = bias("attn_v", kv);
    w.o_bias = bias("attn_output", hidden);
    if (w.down->order)  // models/column_order.py takes it into the rows of the matrices before it
        throw std::invalid_argument("tensor " + prefix + "ffn_down.weight: its columns must be in order");
    if (layer.norms.whole_qk && (w.q_bias || w.k_bias))
        throw std::invalid_argument("tensor " + prefix +
                                    "attn_q.bias: has no place before a norm of all heads");
    return w;
}

StateWeights Weights::resolve_states(const ModelSpec& spec) const {
    StateWeights found{};
    const HeadSpec& head = spec.head;
    if (!spec.is_head()) return found;
    found.fc = &matrix("fc.weight", spec.hidden, head.width());
    if (head.joint_norm) found.joint_norm = vector("enc.output_norm.weight", head.width());
    for (int i = 0; head.state_norms && i < head.states; i++)
        found.norms.push_back(vector("fc_norm." + std::to_string(i) + ".weight", head.state_size));
    return found;
}

void Weights::resolve(const ModelSpec& spec) {
    layers_.clear();
    std::vector<LayerWeights> found;
    for (int i = 0; i < int(spec.layers.size()); i++) found.push_back(resolve_layer(spec, i));
    states_ = resolve_states(spec);
    output_norm_ = vector("output_norm.weight", spec.hidden);
    output_ = &matrix("output.weight", spec.vocab, spec.hidden);
    if (!embedding_) throw std::invalid_argument("missing tensor token_embd.weight");
    InputFormats& formats = input_formats_ = {};
    for (const LayerWeights& w : found) {
        formats.attention = std::max(formats.attention, activation_format({w.q, w.k, w.v}));
        formats.o = std::max(formats.o, activation_format({w.o}));
        formats.ffn = std::max(formats.ffn, activation_format({w.gate, w.up}));
        formats.down = std::max(formats.down, activation_format({w.down}));
    }
    formats.output = activation_format({output_});
    if (states_.fc) formats.states = activation_format({states_.fc});
    layers_.swap(found);
}

void Weights::embed(int id, int hidden, float* out) const {
    dequantize_row(embedding_type_, embedding_ + size_t(id) * row_bytes(embedding_type_, hidden), hidden,
                   out);
}

}  // namespace outrider
