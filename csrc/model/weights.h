// The weights of a model: packed matrices and float vectors by GGUF's names, and each layer's share of them.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/activation_buffer.h"
#include "memory/slabs.h"
#include "model/spec.h"
#include "threads/pool.h"

namespace outrider {

// Pointers are null where the layer has no such tensor.
struct LayerWeights {
    const Matrix *q, *k, *v, *o, *gate, *up, *down;
    const float *attention_norm, *q_norm, *k_norm, *post_attention_norm, *ffn_norm, *post_ffn_norm;
    const float *q_bias, *k_bias, *v_bias, *o_bias;
    const float* state_norm;  // of the hidden states, in the first layer of a head
};

// What a head reads the target's hidden states with; see HeadSpec. Null or empty where it has no such norm.
struct StateWeights {
    const Matrix* fc;  // [hidden][states * state_size]
    const float* joint_norm;
    std::vector<const float*> norms;  // of each state
};

class Weights {
  public:
    explicit Weights(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {}

    // `file` is copied into the engine's own layout, except the embedding, which must outlive the model.
    void add_matrix(const std::string& name, WeightType type, int rows, int columns, const uint8_t* file);
    // The same over bytes that packed() of another model gave; they must outlive the model.
    void add_packed(const std::string& name, WeightType type, int rows, int columns, const uint8_t* packed,
                    size_t bytes);
    // The order of a matrix's columns (Matrix::order). Throws std::invalid_argument unless it is one.
    void set_column_order(const std::string& name, std::vector<int> order);
    void add_vector(const std::string& name, std::vector<float> values);
    void set_embedding(WeightType type, const uint8_t* file);
    // Finds what `spec` calls for. Throws std::invalid_argument naming what is missing or has another shape.
    void resolve(const ModelSpec& spec);
    bool resolved() const { return !layers_.empty(); }

    const Matrix& packed(const std::string& name) const;
    const std::map<std::string, Matrix>& matrices() const { return matrices_; }
    size_t bytes() const;  // of the packed matrices

    const LayerWeights& layer(int i) const { return layers_[size_t(i)]; }
    const StateWeights& states() const { return states_; }
    const float* output_norm() const { return output_norm_; }
    const Matrix& output() const { return *output_; }
    // What the matrices of all layers read: of attention's input, its result, the feed-forward part's input,
    // its hidden columns, and the output's input; and of a head's hidden states.
    struct InputFormats {
        ActivationFormat attention, o, ffn, down, output, states;
    };
    const InputFormats& input_formats() const { return input_formats_; }
    // The embedding of a token: float32[hidden].
    void embed(int id, int hidden, float* out) const;

  private:
    const Matrix& matrix(const std::string& name, int rows, int columns) const;
    const float* vector(const std::string& name, int size) const;
    const float* vector_if_there(const std::string& name, int size) const;
    LayerWeights resolve_layer(const ModelSpec& spec, int i) const;
    StateWeights resolve_states(const ModelSpec& spec) const;

    std::shared_ptr<Pool> pool_;
    Slabs slabs_;
    std::map<std::string, Matrix> matrices_;
    std::map<std::string, std::vector<float>> vectors_;
    WeightType embedding_type_ = WeightType::F32;
    const uint8_t* embedding_ = nullptr;
    std::vector<LayerWeights> layers_;
    StateWeights states_{};
    const float* output_norm_ = nullptr;
    const Matrix* output_ = nullptr;
    InputFormats input_formats_{};
};

}  // namespace outrider
