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
          phases_(phases) {
        for (const LayerSpec& layer : spec.layers) add_layer(layer);
    }

    // Divides the work of a layer over these tokens, for layers of each window.
    void partition(const Batch& batch);
    // output = softmax(queries · keys) · values, quantized where integer matrices read it. `queries` is
    // [tokens][heads * head_dim], with attention's scale applied; the tokens' own keys and values are stored.
    void run(int layer, const Batch& batch, const float* queries, ActivationBuffer& output);

  private:
    // Tokens of one sequence, next to one another: the positions [first_position, positions) and the spans
    // [first_span, spans) that any of them sees something of.
    struct QueryTile {
        int first, count, first_position, positions, first_span, spans;
    };
    // The work of a layer with this window.
    struct Partition {
        int window;
        std::vector<QueryTile> tiles;
        std::vector<int> first_spans;  // of each token, that of its tile
        int tasks = 0;                 // whole tiles when slots is 1, else their spans
        int slots = 1;                 // partial results that each token and head has room for
    };
    struct Task {
        const QueryTile* tile;
        int kv_head, span;
    };
    struct Layer {  // what a layer's attention has of its own
        int index, partition;
        float softcap;
    };

    void add_layer(const LayerSpec& layer);
    void divide(const Batch& batch, Partition& work) const;
    Task task(const Partition& work, int index) const;
    NextKeys keys_of(const Layer& layer, const Batch& batch, const Task& task) const;
    void attend(const Layer& layer, const Batch& batch, const float* queries, const Task& task,
                const NextKeys& next, int thread);
    void merge(const Partition& work, const Batch& batch, int t, int first_head, int last_head,
               float* output);
    float* partial(int slot, int t, int head);

    const int heads_, kv_heads_, head_dim_;
    const Kernels& kernels_;
    Phases& phases_;
    std::vector<Layer> layers_;
    std::vector<Partition> partitions_;  // one for each window that layers have
    int tokens_ = 0;
    Aligned<float> partials_;  // [slots][tokens][heads][partial_floats]
};

}  // namespace outrider
