// Attention's share of a pass: how it is divided into tasks for the threads, and how their results are
// merged.
#pragma once
#include <vector>

#include "kernels/activation_buffer.h"
#include "model/batch.h"
#include "model/phases.h"

namespace outrider {

class Attention {
  public:
    Attention(const ModelSpec& spec, const Kernels& kernels, Phases& phases)
        : heads_(spec.heads),
          kv_heads_(spec.kv_heads),
          head_dim_(spec.head_dim),
          kernels_(kernels),
          phases_(phases) {}

    // Divides the work of a layer over these tokens.
    void partition(const Batch& batch);
    // output = softmax(queries · keys) · values, quantized where integer matrices read it. `queries` is
    // [tokens][heads * head_dim], with attention's scale applied; the tokens' own keys and values are stored.
    void run(int layer, const Batch& batch, const float* queries, ActivationBuffer& output);

  private:
    struct QueryTile {  // tokens of one sequence, next to one another, and how much the one that sees most
                        // sees
        int first, count, positions, spans;
    };
    struct Task {
        const QueryTile* tile;
        int kv_head, span;
    };

    Task task(int index) const;
    NextKeys keys_of(int layer, const Batch& batch, const Task& task) const;
    void attend(int layer, const Batch& batch, const float* queries, const Task& task, const NextKeys& next,
                int thread);
    void merge(const Batch& batch, int t, int first_head, int last_head, float* output);
    float* partial(int slot, int t, int head);

    const int heads_, kv_heads_, head_dim_;
    const Kernels& kernels_;
    Phases& phases_;
    std::vector<QueryTile> tiles_;
    int tokens_ = 0;
    int tasks_ = 0;            // of a layer: whole tiles when slots_ is 1, else their spans
    int slots_ = 1;            // partial results that each token and head has room for
    Aligned<float> partials_;  // [slots][tokens][heads][partial_floats]
};

}  // namespace outrider
