// The transformer: what a pass computes, layer by layer.
#include <algorithm>
#include <cmath>
#include <limits>

#include "model/mixed_columns.h"
#include "model/model.h"

namespace outrider {

static void add_scaled(float* to, const float* from, float scale, int first, int last) {
    for (int i = first; i < last; i++) to[i] = to[i] + scale * from[i];
}

void Model::run_layers(const Taps* taps, const HeadStates* states) {
    const int end = last_layer() + 1;
    const bool keep_all = taps && taps->layers.back() == end;
    states ? begin_head(*states) : embed(x_.data());
    for (int i = 0; i < end; i++) {
        if (taps) copy_tap(i, *taps);
        attention_block(i, keep_all);
        if (batch_.size() == 0) return;  // prefill only: no logits are wanted
        ffn_block(i);
    }
    if (keep_all) copy_tap(end, *taps);
}

// Prepares what the queries, keys and values of layer i are computed from.
void Model::begin_layer(int i) {
    const LayerWeights& w = weights_.layer(i);
    if (!spec_.is_head()) return norm_for_attention(w);
    if (i == 0) return join_inputs(w);
    shape_attention_in(spec_.attention_columns(i));
    norm_for_attention(w);
}

// x += scale * norm(Wo · attention(norm(x))), with the norms and the scale that the model has
void Model::attention_block(int i, bool keep_all) {
    const LayerWeights& w = weights_.layer(i);
    const bool ends = i == last_layer() && !keep_all, queries = !ends || !batch_.wanted.empty();
    begin_layer(i);
    phases_.prefetch_next({w.o}, w.o->panel_bytes());
    project_to_heads(w, queries);
    if (spec_.layers[size_t(i)].norms.whole_qk) norm_whole_heads(w, queries);
    phases_.for_tokens(attention_tokens_, spec_.kv_heads,
                       [&](int t, int first, int last) { rotate_and_store(i, t, first, last, queries); });
    if (ends) keep_wanted();
    if (batch_.size() == 0) return;
    attention_.run(i, batch_, q_.data(), attended_);
    phases_.prefetch_next({w.gate}, 2 * w.gate->panel_bytes(), kGroupPanels);
    ordered_.gather(attended_.view(), {w.o});
    phases_.compute(
        {{w.o, &ordered_.of(*w.o, attended_.view()), branch_output(w.post_attention_norm, w.o_bias)}});
    add_branch(ffn_in_.view(), w.post_attention_norm);
}

// x += scale * norm(Wdown · (activation(Wgate · norm(x)) * (Wup · norm(x))))
void Model::ffn_block(int i) {
    const LayerWeights& w = weights_.layer(i);
    Activations& in = ffn_in_.view();
    phases_.for_columns(in, [&](int t, Columns columns) {
        normalize(t, w.ffn_norm, ffn_in_, t, columns);
        quantize(in, t, columns);
    });
    ordered_.gather(in, {w.gate, w.up});
    phases_.prefetch_next({w.down}, w.down->panel_bytes());
    gate_and_up(w, spec_.layers[size_t(i)].feed_forward.gelu() ? kernels_.gelu_mul : kernels_.silu_mul);
    prefetch_after(i);
    phases_.compute({{w.down, &gated_.view(), branch_output(w.post_ffn_norm, nullptr)}});
    add_branch(in, w.post_ffn_norm);
}

// Where the last product of attention or of the feed-forward part goes: to the residual stream, unless a norm
// or a scale comes between.
MatmulOut Model::branch_output(const float* norm, const float* bias) {
    const bool direct = !norm && spec_.residual_scale == 1;
    return {direct ? x_.data() : branch_.data(), size_t(spec_.hidden), bias, direct};
}

// Adds what branch_output() kept apart. `tokens` says how tokens lie in tiles.
void Model::add_branch(const Activations& tokens, const float* norm) {
    const float scale = spec_.residual_scale;
    if (!norm && scale == 1) return;
    phases_.for_columns(tokens, [&](int t, Columns columns) {
        const size_t at = size_t(t) * size_t(spec_.hidden);
        const float* from = branch_.data() + at;
        if (norm) {
            kernels_.rms_norm(from, norm, spec_.rms_eps, spec_.hidden, columns.first, columns.last,
                              normed_.data() + at);
            from = normed_.data() + at;
        }
        add_scaled(x_.data() + at, from, scale, columns.first, columns.last);
    });
}

void Model::embed(float* to) {
    const int hidden = spec_.hidden;
    const float scale = spec_.embedding_scale;
    pool().phase(batch_.size(), [&](int t, int) {
        float* x = to + size_t(t) * hidden;
        weights_.embed(batch_.tokens[size_t(t)].id, hidden, x);
        for (int i = 0; scale != 1.0f && i < hidden; i++) x[i] *= scale;
    });
}

void Model::copy_tap(int layer, const Taps& taps) {
    const auto found = std::find(taps.layers.begin(), taps.layers.end(), layer);
    if (found == taps.layers.end()) return;
    const size_t hidden = size_t(spec_.hidden), width = taps.layers.size() * hidden,
                 column = size_t(found - taps.layers.begin()) * hidden;
    pool().phase(batch_.size(), [&](int t, int) {
        std::copy_n(x_.data() + size_t(t) * hidden, hidden, taps.out + size_t(t) * width + column);
    });
}

void Model::normalize(int x, const float* weight, ActivationBuffer& to, int t, Columns columns) {
    const int n = spec_.hidden;
    const float* row = x_.data() + size_t(x) * n;
    if (!weight) {
        std::copy(row + columns.first, row + columns.last, to.row(t) + columns.first);
        return;
    }
    kernels_.rms_norm(row, weight, spec_.rms_eps, n, columns.first, columns.last, to.row(t));
}

// What the products of a layer's attention read. Values decide the most about the logits for the fewest
// weights: for them, activations keep 15 bits.
void Model::norm_for_attention(const LayerWeights& w) {
    Activations& in = attention_in_.view();
    const int n = attention_tokens_.tokens;
    phases_.for_columns(attention_tokens_, [&](int t, Columns columns) {
        normalize(t, w.attention_norm, attention_in_, t, columns);
        if (in.q) kernels_.quantize_residual(in, t, n + t, columns.first / kGroup, columns.last / kGroup);
    });
    ordered_.gather(attention_tokens_, {w.q, w.k, w.v}, w.v);
}

// Without queries, the keys and values alone: of the last layer, where no logits are wanted.
void Model::project_to_heads(const LayerWeights& w, bool queries) {
    const size_t q_width = size_t(spec_.q_width()), kv_width = size_t(spec_.kv_width());
    const Activations* for_v = info(w.v->type).is_float ? &attention_tokens_ : &attention_in_.view();
    const auto input = [&](const Matrix* m, const Activations* plain) { return &ordered_.of(*m, *plain); };
    const Product q{w.q, input(w.q, &attention_tokens_), {q_.data(), q_width, nullptr, false}},
        k{w.k, input(w.k, &attention_tokens_), {k_.data(), kv_width, nullptr, false}},
        v{w.v, input(w.v, for_v), {v_.data(), kv_width, nullptr, false}};
    queries ? phases_.compute({q, k, v}) : phases_.compute({k, v});
}

// Norms over all heads of a token's queries, and of its keys.
void Model::norm_whole_heads(const LayerWeights& w, bool wants_queries) {
    const int q = spec_.q_width(), kv = spec_.kv_width();
    phases_.for_tokens(attention_tokens_, 1, [&](int t, int first, int last) {
        if (first == last) return;
        float *queries = q_.data() + size_t(t) * size_t(q), *keys = k_.data() + size_t(t) * size_t(kv);
        if (w.q_norm && wants_queries) kernels_.rms_norm(queries, w.q_norm, spec_.rms_eps, q, 0, q, queries);
        if (w.k_norm) kernels_.rms_norm(keys, w.k_norm, spec_.rms_eps, kv, 0, kv, keys);
    });
}

// What queries are multiplied by: see LayerSpec in models/spec.py.
static float query_scale(const LayerSpec& layer, int position) {
    if (layer.query_growth == 0) return layer.attention_scale;
    const double steps = double(position / layer.query_growth_positions);
    return layer.attention_scale * float(1.0 + double(layer.query_growth) * std::log1p(steps));
}

// Adds what may be there: the products of the residuals, a bias.
static void add(float* row, const float* addend, size_t first, size_t n) {
    for (size_t i = 0; addend && i < n; i++) row[i] = row[i] + addend[first + i];
}

// Of a token, the key-value heads [first, last) and, where they are wanted, the query heads that read them.
void Model::rotate_and_store(int i, int t, int first, int last, bool queries) {
    const LayerSpec& layer = spec_.layers[size_t(i)];
    const LayerWeights& w = weights_.layer(i);
    const Token& token = batch_.tokens[size_t(t)];
    const size_t dim = size_t(spec_.head_dim), kv_width = size_t(spec_.kv_width()),
                 q_dim = size_t(spec_.heads / spec_.kv_heads) * dim;  // of the heads that share a key head
    const float* const residuals =
        info(w.v->type).is_float ? nullptr : v_.data() + batch_.tokens.size() * kv_width;
    const auto norm_and_rotate = [&](float* head, const float* norm) {
        if (norm && !layer.norms.whole_qk)
            kernels_.rms_norm(head, norm, spec_.rms_eps, int(dim), 0, int(dim), head);
        if (layer.rope < 0) return;
        const RopeSpec& rope = spec_.ropes[size_t(layer.rope)];
        const Rotation& rotation = batch_.rotations[size_t(layer.rope)];
        const size_t at = size_t(t) * rotation.width;
        const auto rotate = rope.interleaved ? kernels_.rope_pairs : kernels_.rope_halves;
        rotate(head, rotation.cos.data() + at, rotation.sin.data() + at, rope.dim);
    };
    const bool mixed = shape_->type == CacheType::q8_0;
    const float scale = query_scale(layer, token.position) / float(mixed ? mixed_columns(spec_.head_dim) : 1);
    for (size_t h = size_t(first); h < size_t(last); h++) {
        const size_t at = h * dim, kv_at = size_t(t) * kv_width + at, q_at = h * q_dim;
        float *q = q_.data() + size_t(t) * size_t(spec_.q_width()) + q_at, *k = k_.data() + kv_at,
              *v = v_.data() + kv_at;
        if (queries) {
            add(q, w.q_bias, q_at, q_dim);
            for (size_t head = 0; head < q_dim; head += dim) norm_and_rotate(q + head, w.q_norm);
            for (size_t j = 0; j < q_dim; j++) q[j] *= scale;
            for (size_t head = 0; mixed && head < q_dim; head += dim) mix_columns(q + head, spec_.head_dim);
        }
        add(k, w.k_bias, at, dim);
        norm_and_rotate(k, w.k_norm);
        if (mixed) mix_columns(k, spec_.head_dim);
        add(v, residuals, kv_at, dim);
        add(v, w.v_bias, at, dim);
        kernels_.store_kv(token.cache->head(i, int(h)), token.slot, spec_.head_dim, k, v);
    }
}

// What comes after layer i: the next layer's queries, keys and values, or the output.
void Model::prefetch_after(int i) {
    if (i == last_layer())
        return phases_.prefetch_next({&weights_.output()}, weights_.output().panel_bytes());
    const LayerWeights& next = weights_.layer(i + 1);
    phases_.prefetch_next({next.q, next.k, next.v}, next.q->panel_bytes());
}

// Scale and softcap of the logits of the vocabulary's rows [first, last), where the model has them.
void Model::finish_logits(float* logits, int rows, int first, int last) const {
    if (spec_.logit_scale == 1 && spec_.logit_softcap == 0) return;
    for (int r = 0; r < rows; r++)
        kernels_.scale_and_cap(logits + size_t(r) * size_t(spec_.vocab) + first,
                               std::min(last, spec_.vocab) - first, spec_.logit_scale, spec_.logit_softcap);
}

void Model::run_output(float* logits, const std::vector<int>* panels) {
    const int rows = int(batch_.wanted.size());
    if (rows == 0) return;
    const size_t vocab = size_t(spec_.vocab);
    const Matrix& output = weights_.output();
    Activations& last = last_.view();
    if (panels)
        pool().phase(rows, [&](int r, int) {
            std::fill_n(logits + size_t(r) * vocab, vocab, -std::numeric_limits<float>::infinity());
        });
    phases_.for_columns(last, [&](int r, Columns columns) {
        normalize(batch_.wanted[size_t(r)], weights_.output_norm(), last_, r, columns);
        quantize(last, r, columns);
    });
    ordered_.gather(last, {&output});
    const Activations& in = ordered_.of(output, last);
    const int count = panels ? int(panels->size()) : output.panels;
    pool().phase(phases_.partition(count, output.panel_bytes()), [&](int i, int) {
        const int end = phases_.begin(i + 1);
        for (int at = phases_.begin(i); at < end;) {  // runs of panels that lie next to each other
            const int first = panels ? (*panels)[size_t(at)] : at, start = at++;
            while (at < end && (!panels || (*panels)[size_t(at)] == first + at - start)) at++;
            kernels_.matmul(output, in, first, first + at - start, {logits, vocab, nullptr, false});
            finish_logits(logits, rows, first * kPanel, (first + at - start) * kPanel);
        }
    });
}

}  // namespace outrider
