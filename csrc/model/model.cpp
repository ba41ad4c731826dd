#include "model/model.h"

#include <algorithm>
#include <stdexcept>

namespace outrider {

static ModelSpec checked(ModelSpec spec) {
    check_spec(spec);
    return spec;
}

Model::Model(ModelSpec spec, CacheType cache_type, int threads, const std::string& isa)
    : spec_(checked(std::move(spec))),
      shape_(std::make_shared<const CacheShape>(spec_, cache_type)),
      kernels_(choose_kernels(isa.c_str())),
      phases_(Pool::shared(threads), kernels_),
      weights_(Pool::shared(threads)),
      attention_(spec_, kernels_, phases_),
      ordered_(kernels_, phases_) {
    for (size_t g = 0; g < shape_->groups.size(); g++)
        blocks_.push_back(std::make_shared<BlockStore>(shape_->block_bytes(g)));
}

void Model::finish() {
    weights_.resolve(spec_);
    gated_columns_ = std::vector<std::atomic<int>>(size_t(spec_.ffn()) / kSuperblock);
}

std::unique_ptr<Cache> Model::new_cache(int capacity) const {
    return std::make_unique<Cache>(shape_, capacity, blocks_);
}

size_t Model::cache_bytes() const {
    size_t total = 0;
    for (const auto& store : blocks_) total += store->bytes();
    return total;
}

void Model::check(const std::vector<BatchItem>& items, const std::vector<int>* panels, const Taps* taps,
                  const HeadStates* states) const {
    if (!weights_.resolved()) throw std::invalid_argument("the model is not finished");
    const auto ascend = [](const std::vector<int>& values, int end) {
        for (size_t i = 0; i < values.size(); i++)
            if (values[i] < (i ? values[i - 1] + 1 : 0) || values[i] >= end) return false;
        return true;
    };
    if (panels && !ascend(*panels, weights_.output().panels))
        throw std::invalid_argument("blocks of the vocabulary must be ascending and inside it");
    if (taps && (taps->layers.empty() || !ascend(taps->layers, int(spec_.layers.size()) + 1)))
        throw std::invalid_argument("taps must be ascending, at least one, and from 0 to " +
                                    std::to_string(spec_.layers.size()));
    if (spec_.is_head() != (states != nullptr))
        throw std::invalid_argument(states ? "the model is not a head" : "a head needs hidden states");
    check_batch(items, spec_.tokens());
}

// Room for what products of this pass read.
void Model::shape_activations() {
    const int n = batch_.size();
    const Weights::InputFormats& formats = weights_.input_formats();
    shape_attention_in(spec_.attention_columns(0));
    attended_.shape(n, spec_.q_width(), formats.o, kernels_);
    ffn_in_.shape(n, spec_.hidden, formats.ffn, kernels_);
    gated_.shape(n, spec_.ffn(), formats.down, kernels_);
    last_.shape(int(batch_.wanted.size()), spec_.hidden, formats.output, kernels_);
    phases_.set_tokens(n);
    attention_.partition(batch_);
}

// What attention reads, with room for the residuals of what values are computed from.
void Model::shape_attention_in(int columns) {
    const int n = batch_.size();
    attention_in_.shape(2 * n, columns, weights_.input_formats().attention, kernels_);
    attention_tokens_ = attention_in_.view();
    attention_tokens_.tokens = n;
}

// After the last layer's keys and values are stored, only the rows whose logits are wanted count: of a
// prompt, one, or none.
void Model::keep_wanted() {
    if (batch_.wanted.empty()) return batch_.tokens.clear();
    if (batch_.wanted.size() >= batch_.tokens.size()) return;
    const auto keep_rows = [&](Aligned<float>& values, size_t width) {
        Aligned<float> kept(batch_.wanted.size() * width);
        for (size_t r = 0; r < batch_.wanted.size(); r++)
            std::copy_n(values.begin() + batch_.wanted[r] * width, width, kept.begin() + r * width);
        values.swap(kept);
    };
    keep_rows(x_, size_t(spec_.hidden));
    keep_rows(q_, size_t(spec_.q_width()));
    keep_wanted_tokens(batch_);
    shape_activations();
}

void Model::forward(const std::vector<BatchItem>& items, float* logits, const std::vector<int>* panels,
                    const Taps* taps, const HeadStates* states) {
    std::lock_guard<std::mutex> lock(one_pass_);
    check(items, panels, taps, states);
    layout_batch(items, batch_);
    const size_t n = size_t(batch_.size());
    if (n == 0) return;
    fill_rotations(spec_.ropes, batch_);
    shape_activations();
    x_.resize(n * spec_.hidden);
    q_.resize(n * spec_.q_width());
    k_.resize(n * spec_.kv_width());
    v_.resize(2 * k_.size());
    branch_.resize(x_.size());
    normed_.resize(x_.size());
    {
        const auto pool_lock = pool().lock();
        run_layers(taps, states);
        phases_.prefetch_nothing();
        run_output(logits, panels);
        if (states) give_states(states->out);
    }
    for (const BatchItem& item : items) item.cache->advance(item.count);
}

}  // namespace outrider
