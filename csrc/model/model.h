// A decoder-only transformer: its packed weights and the forward pass.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/activation_buffer.h"
#include "kernels/kernels.h"
#include "memory/aligned.h"
#include "memory/buffers.h"
#include "model/attention.h"
#include "model/batch.h"
#include "model/cache.h"
#include "model/ordered.h"
#include "model/phases.h"
#include "model/spec.h"
#include "model/weights.h"

namespace outrider {

// Hidden states to be kept: for tap i the input of layer i (the residual stream before its first norm), or,
// for the number of layers, the output of the last one before the final norm.
struct Taps {
    const std::vector<int>& layers;  // ascending
    float* out;                      // [tokens of all items][taps][hidden]
};

// The hidden states that the tokens of a head's pass come with: the target's, or what the head gave for the
// token before (`fed_back`). `out` gets what it gives now, for the rows whose logits are wanted.
struct HeadStates {
    const float* in;  // [tokens of all items][fed_back ? hidden : states * state_size]
    bool fed_back;
    float* out;  // [rows of all items][hidden]
};

class Model {
  public:
    // Throws std::invalid_argument for a spec that is not supported, and for an instruction set that this
    // processor lacks.
    Model(ModelSpec spec, CacheType cache_type, int threads, const std::string& isa);

    Weights& weights() { return weights_; }
    const Weights& weights() const { return weights_; }
    // Checks that everything is there with the right shape. Throws std::invalid_argument naming what is not.
    void finish();

    std::unique_ptr<Cache> new_cache(int capacity) const;
    void keep(Cache& cache, int base, const std::vector<int>& slots) const {
        cache.keep(base, slots, kernels_);
    }

    // One pass. `logits` is [rows of all items][vocab], in the order of the items. The new tokens stay in the
    // caches. With `panels` (ascending, each at most once) only the logits of these panels' rows, 16 each,
    // are computed, and all others are -inf. A head needs `states`. Throws std::invalid_argument or
    // std::length_error before any cache is changed.
    void forward(const std::vector<BatchItem>& items, float* logits, const std::vector<int>* panels = nullptr,
                 const Taps* taps = nullptr, const HeadStates* states = nullptr);

    Buffers& logits_buffers() const { return *logits_buffers_; }
    Buffers& hidden_buffers() const { return *hidden_buffers_; }
    const ModelSpec& spec() const { return spec_; }
    const Kernels& kernels() const { return kernels_; }
    Pool& pool() const { return phases_.pool(); }
    size_t cache_bytes() const;  // held for the caches of this model

  private:
    void check(const std::vector<BatchItem>& items, const std::vector<int>* panels, const Taps* taps,
               const HeadStates* states) const;
    // model.cpp
    void shape_activations();
    void shape_attention_in(int columns);
    void keep_wanted();
    // layers.cpp
    int last_layer() const { return int(spec_.layers.size()) - 1; }
    void run_layers(const Taps* taps, const HeadStates* states);
    void embed(float* to);
    void begin_layer(int layer);
    void copy_tap(int layer, const Taps& taps);
    void attention_block(int layer, bool keep_all);
    void ffn_block(int layer);
    void norm_for_attention(const LayerWeights& w);
    void norm_whole_heads(const LayerWeights& w, bool wants_queries);
    void project_to_heads(const LayerWeights& w, bool queries);
    void rotate_and_store(int layer, int t, int first_head, int last_head, bool queries);
    MatmulOut branch_output(const float* norm, const float* bias);
    void add_branch(const Activations& tokens, const float* norm);
    void prefetch_after(int layer);
    void finish_logits(float* logits, int rows, int first, int last) const;
    void run_output(float* logits, const std::vector<int>* panels);
    // head.cpp
    void begin_head(const HeadStates& states);
    void norm_states(const float* row, int t, Columns columns);
    void join_inputs(const LayerWeights& w);
    void give_states(float* out);
    // ffn.cpp
    using Activation = decltype(Kernels::silu_mul);
    void gate_and_up(const LayerWeights& w, Activation activation);
    void gate_panels(const LayerWeights& w, Activation activation, int first_panel, int last_panel,
                     int thread);
    void quantize_gated(int first, int last);
    // These columns of row t of `to` become the norm of row `x` of x_, or the row itself without `weight`.
    void normalize(int x, const float* weight, ActivationBuffer& to, int t, Columns columns);
    // Quantizes these columns of row t, unless only float matrices read it.
    void quantize(Activations& a, int t, Columns columns) const {
        if (a.q) kernels_.quantize(a, t, columns.first / kGroup, columns.last / kGroup);
    }

    const ModelSpec spec_;
    const std::shared_ptr<const CacheShape> shape_;
    BlockStores blocks_;
    std::shared_ptr<Buffers> logits_buffers_ = std::make_shared<Buffers>(),
                             hidden_buffers_ = std::make_shared<Buffers>();
    const Kernels& kernels_;
    Phases phases_;
    Weights weights_;
    Attention attention_;
    OrderedInputs ordered_;
    std::mutex one_pass_;

    // the pass under way
    Batch batch_;
    Aligned<float> x_, q_, k_, v_;    // x_: the residual stream, [tokens][hidden]
    Aligned<float> branch_, normed_;  // what is normed or scaled before it is added to x_, of the same shape
    Aligned<float> embedded_;         // of a head: the tokens' embeddings, [tokens][hidden]
    ActivationBuffer attention_in_, attended_, ffn_in_, gated_, last_, states_in_;
    Activations attention_tokens_;                 // attention_in_ without the rows of residuals
    std::vector<std::atomic<int>> gated_columns_;  // of each superblock of gated_, those that are there
};

}  // namespace outrider
