// What a model computes: its dimensions, and for each layer which parts it has. Read once from the object of
// models/spec.py, which says what every field means.
#pragma once
#include <string>
#include <vector>

namespace outrider {

struct RopeSpec {
    int dim;
    float scale;
    bool interleaved;
    std::vector<float> inv_freq;  // [dim / 2]
};

struct NormsSpec {
    bool attention, q, k, whole_qk, post_attention, ffn, post_ffn;
};

struct FeedForwardSpec {
    int size;
    std::string activation;
    int experts, experts_used;

    bool gelu() const { return activation == "gelu_tanh"; }
};

struct LayerSpec {
    FeedForwardSpec feed_forward;
    NormsSpec norms;
    int rope;                                  // index into ModelSpec::ropes; -1 for none
    int window;                                // positions; 0 for all
    float attention_scale, attention_softcap;  // a softcap of 0 is none
    float query_growth;                        // see models/spec.py; 0 for none
    int query_growth_positions;
    bool sinks;
};

// What a head on another model reads and gives; see HeadSpec in models/spec.py. `states` is 0 for other
// models.
struct HeadSpec {
    int states = 0, state_size = 0, tokens = 0;
    bool joint_norm = false, state_norms = false, norm_before_residual = false, norm_output = false;

    int width() const { return states * state_size; }
};

struct ModelSpec {
    int hidden, heads, kv_heads, head_dim, vocab;
    float rms_eps, embedding_scale, residual_scale, logit_scale, logit_softcap;  // a softcap of 0 is none
    std::vector<RopeSpec> ropes;
    std::vector<LayerSpec> layers;
    HeadSpec head;

    bool is_head() const { return head.states > 0; }
    int tokens() const { return is_head() ? head.tokens : vocab; }  // rows of the embedding
    // Columns of what the queries, keys and values of a layer are computed from.
    int attention_columns(int layer) const { return is_head() && layer == 0 ? 2 * hidden : hidden; }
    int q_width() const { return heads * head_dim; }
    int kv_width() const { return kv_heads * head_dim; }
    int ffn() const { return layers[0].feed_forward.size; }  // of every layer (see unsupported())
};

// A sentence about the first part of `spec` that this engine does not compute; empty when it computes all.
std::string unsupported(const ModelSpec& spec);

// Throws std::invalid_argument for numbers that contradict each other, and for what is unsupported.
void check_spec(const ModelSpec& spec);

}  // namespace outrider
