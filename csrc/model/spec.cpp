#include "model/spec.h"

#include <stdexcept>

namespace outrider {

static std::string unsupported_part(const ModelSpec& spec, const LayerSpec& layer) {
    const FeedForwardSpec& ffn = layer.feed_forward;
    if (layer.sinks) return "attention sinks";
    if (ffn.experts) return "a mixture of " + std::to_string(ffn.experts) + " experts";
    if (ffn.activation != "silu" && ffn.activation != "gelu_tanh") return "the activation " + ffn.activation;
    if (ffn.size != spec.ffn()) return "a feed-forward part of another size than layer 0";
    return "";
}

std::string unsupported(const ModelSpec& spec) {
    if (spec.head_dim % 16)
        return "a head size of " + std::to_string(spec.head_dim) +
               " is not supported: the native engine needs a multiple of 16";
    if (spec.is_head() && (spec.hidden % 16 || spec.head.state_size % 16))
        return "a head with hidden states of " + std::to_string(spec.head.state_size) + " and " +
               std::to_string(spec.hidden) +
               " columns is not supported: the native engine needs multiples of 16";
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
    if (spec.is_head() && (spec.head.tokens < 1 || spec.head.state_size < 1))
        throw std::invalid_argument("a head needs tokens and hidden states");
    for (const RopeSpec& rope : spec.ropes)
        if (rope.dim > spec.head_dim || rope.dim % 2 || int(rope.inv_freq.size()) != rope.dim / 2)
            throw std::invalid_argument("the rotary dimension does not fit the head size");
    for (const LayerSpec& layer : spec.layers) {
        if (layer.rope < -1 || layer.rope >= int(spec.ropes.size()))
            throw std::invalid_argument("a layer names a rotary table that is not there");
        if (layer.window < 0) throw std::invalid_argument("a sliding window needs at least one position");
        if (layer.query_growth != 0 && layer.query_growth_positions < 1)
            throw std::invalid_argument("queries grow after at least one position");
    }
    if (spec.kv_heads < 1 || spec.heads % spec.kv_heads)
        throw std::invalid_argument("query heads must be a multiple of key-value heads");
    const std::string part = unsupported(spec);
    if (!part.empty()) throw std::invalid_argument(part);
}

}  // namespace outrider
