#include "model/spec.h"

#include <stdexcept>

namespace outrider {

static std::string unsupported_part(const ModelSpec& spec, const LayerSpec& layer) {
    const NormsSpec& norms = layer.norms;
    const FeedForwardSpec& ffn = layer.feed_forward;
    if (!norms.attention) return "attention without a norm before it";
    if (!norms.ffn) return "a feed-forward part without a norm before it";
    if (norms.post_attention) return "a norm after attention";
    if (norms.post_ffn) return "a norm after the feed-forward part";
    if (layer.window) return "a sliding window of " + std::to_string(layer.window) + " positions";
    if (layer.attention_softcap != 0) return "a softcap on attention";
    if (layer.sinks) return "attention sinks";
    if (ffn.experts) return "a mixture of " + std::to_string(ffn.experts) + " experts";
    if (ffn.activation != "silu") return "the activation " + ffn.activation;
    if (ffn.size != spec.ffn()) return "a feed-forward part of another size than layer 0";
    return "";
}

std::string unsupported(const ModelSpec& spec) {
    if (spec.head_dim % 16)
        return "a head size of " + std::to_string(spec.head_dim) +
               " is not supported: the native engine needs a multiple of 16";
    if (spec.logit_softcap != 0) return "a softcap on the logits is not supported yet by the native engine";
    for (size_t i = 0; i < spec.layers.size(); i++) {
        const std::string part = unsupported_part(spec, spec.layers[i]);
        if (!part.empty())
            return "layer " + std::to_string(i) + " has " + part +
                   ", which the native engine does not support yet";
    }
    return "";
}

void check_spec(const ModelSpec& spec) {
    if (spec.layers.empty()) throw std::invalid_argument("a model needs a layer");
    for (const RopeSpec& rope : spec.ropes)
        if (rope.dim > spec.head_dim || rope.dim % 2 || int(rope.inv_freq.size()) != rope.dim / 2)
            throw std::invalid_argument("the rotary dimension does not fit the head size");
    for (const LayerSpec& layer : spec.layers)
        if (layer.rope < -1 || layer.rope >= int(spec.ropes.size()))
            throw std::invalid_argument("a layer names a rotary table that is not there");
    if (spec.kv_heads < 1 || spec.heads % spec.kv_heads)
        throw std::invalid_argument("query heads must be a multiple of key-value heads");
    const std::string part = unsupported(spec);
    if (!part.empty()) throw std::invalid_argument(part);
}

}  // namespace outrider
