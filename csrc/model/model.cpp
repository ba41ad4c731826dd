#include "model/model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace outrider {

Model::Model(Config config, int threads, const std::string& isa)
    : config_(std::move(config)), kernels_(choose_kernels(isa.c_str())), pool_(Pool::shared(threads)) {
    const Config& c = config_;
    if (c.head_dim % 16)
        throw std::invalid_argument("the native engine needs a head size that is a multiple of 16");
    if (c.rope_dim > c.head_dim || c.rope_dim % 2 || int(c.inv_freq.size()) != c.rope_dim / 2)
        throw std::invalid_argument("the rotary dimension does not fit the head size");
    if (c.kv_heads < 1 || c.heads % c.kv_heads)
        throw std::invalid_argument("query heads must be a multiple of key-value heads");
    shape_ = {c.layers, c.kv_heads, c.head_dim, c.half_cache};
    blocks_ = std::make_shared<BlockStore>(shape_.block_bytes());
}

void Model::add_matrix(const std::string& name, Kind kind, int rows, int columns, const uint8_t* file) {
    Matrix m = make_matrix(kind, rows, columns, slabs_);
    const int chunk = 16, chunks = (m.panels + chunk - 1) / chunk;
    const auto turn = pool_->turn();
    pool_->phase(chunks,
                 [&](int i, int) { pack_panels(m, file, i * chunk, std::min(m.panels, (i + 1) * chunk)); });
    matrices_[name] = std::move(m);
}

void Model::add_packed(const std::string& name, Kind kind, int rows, int columns, const uint8_t* packed,
                       size_t bytes) {
    matrices_[name] = view_matrix(kind, rows, columns, packed, bytes);
}

const Matrix& Model::packed(const std::string& name) const {
    const auto found = matrices_.find(name);
    if (found == matrices_.end()) throw std::invalid_argument("missing tensor " + name);
    return found->second;
}

void Model::add_vector(const std::string& name, std::vector<float> values) {
    vectors_[name] = std::move(values);
}

void Model::set_embedding(Kind kind, const uint8_t* file) {
    embedding_kind_ = kind;
    embedding_ = file;
}

const Matrix& Model::matrix(const std::string& name, int rows, int columns) const {
    const auto found = matrices_.find(name);
    if (found == matrices_.end()) throw std::invalid_argument("missing tensor " + name);
    if (found->second.rows != rows || found->second.columns != columns)
        throw std::invalid_argument("tensor " + name + " has the wrong shape");
    return found->second;
}

const float* Model::vector(const std::string& name, int size, bool required) const {
    const auto found = vectors_.find(name);
    if (found == vectors_.end()) {
        if (required) throw std::invalid_argument("missing tensor " + name);
        return nullptr;
    }
    if (int(found->second.size()) != size)
        throw std::invalid_argument("tensor " + name + " has the wrong size");
    return found->second.data();
}

void Model::finish() {
    const Config& c = config_;
    const int q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
    layers_.clear();
    for (int i = 0; i < c.layers; i++) {
        const std::string at = "blk." + std::to_string(i) + ".";
        layers_.push_back(
            {&matrix(at + "attn_q.weight", q, c.hidden), &matrix(at + "attn_k.weight", kv, c.hidden),
             &matrix(at + "attn_v.weight", kv, c.hidden), &matrix(at + "attn_output.weight", c.hidden, q),
             &matrix(at + "ffn_gate.weight", c.ffn, c.hidden), &matrix(at + "ffn_up.weight", c.ffn, c.hidden),
             &matrix(at + "ffn_down.weight", c.hidden, c.ffn),
             vector(at + "attn_norm.weight", c.hidden, true), vector(at + "ffn_norm.weight", c.hidden, true),
             vector(at + "attn_q.bias", q, false), vector(at + "attn_k.bias", kv, false),
             vector(at + "attn_v.bias", kv, false), vector(at + "attn_output.bias", c.hidden, false)});
    }
    output_norm_ = vector("output_norm.weight", c.hidden, true);
    output_ = &matrix("output.weight", c.vocab, c.hidden);
    if (!embedding_) throw std::invalid_argument("missing tensor token_embd.weight");
    readers_ = {};
    for (const Layer& l : layers_) {
        readers_.attention = std::max(readers_.attention, readers({l.q, l.k, l.v}));
        readers_.o = std::max(readers_.o, readers({l.o}));
        readers_.ffn = std::max(readers_.ffn, readers({l.gate, l.up}));
        readers_.down = std::max(readers_.down, readers({l.down}));
    }
    readers_.output = readers({output_});
    scratch_.resize(size_t(pool_->size()));
    gated_columns_ = std::vector<std::atomic<int>>(size_t(c.ffn) / kSuperblock);
}

size_t Model::weights_bytes() const {
    size_t total = 0;
    for (const auto& [name, m] : matrices_) total += m.bytes();
    return total;
}

double Model::read_gb_per_s() {
    const auto turn = pool_->turn();
    constexpr size_t piece = size_t(1) << 18;
    std::vector<std::pair<const uint64_t*, size_t>> pieces;
    size_t bytes = 0;
    for (const auto& [name, m] : matrices_)
        for (size_t at = 0; at < m.bytes(); at += piece) {
            const size_t size = std::min(piece, m.bytes() - at) / 64 * 8;
            pieces.push_back({reinterpret_cast<const uint64_t*>(m.q + at), size});
            bytes += size * 8;
        }
    std::atomic<uint64_t> sink{0};  // so that no read can be left out
    double best = 0;
    for (int round = 0; round < 5; round++) {
        const auto start = std::chrono::steady_clock::now();
        pool_->phase(int(pieces.size()), [&](int i, int) {
            const auto [words, size] = pieces[size_t(i)];
            uint64_t sum[8] = {0};
            for (size_t w = 0; w < size; w += 8)
                for (size_t j = 0; j < 8; j++) sum[j] += words[w + j];
            for (uint64_t s : sum) sink.fetch_xor(s, std::memory_order_relaxed);
        });
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        best = std::max(best, double(bytes) / seconds.count() / 1e9);
    }
    return best;
}

std::unique_ptr<Cache> Model::new_cache(int capacity) const {
    return std::make_unique<Cache>(shape_, capacity, blocks_);
}

void Model::check(const std::vector<Item>& items, const std::vector<int>* panels) const {
    if (layers_.empty()) throw std::invalid_argument("the model is not finished");
    for (size_t i = 0; panels && i < panels->size(); i++)
        if ((*panels)[i] < (i ? (*panels)[i - 1] + 1 : 0) || (*panels)[i] >= output_->panels)
            throw std::invalid_argument("blocks of the vocabulary must be ascending and inside it");
    std::vector<const Cache*> seen;
    for (const Item& item : items) {
        for (int i = 0; i < item.count; i++) {
            if (item.tokens[i] < 0 || item.tokens[i] >= config_.vocab)
                throw std::invalid_argument("token id " + std::to_string(item.tokens[i]) +
                                            " is outside the vocabulary of " + std::to_string(config_.vocab));
            if (item.parents[i] < -1 || item.parents[i] >= i)
                throw std::invalid_argument("a node's parent must come before it");
        }
        for (int i = 0; i < item.row_count; i++)
            if (item.rows[i] < 0 || item.rows[i] >= item.count)
                throw std::invalid_argument("a wanted row is not among the new tokens");
        if (std::find(seen.begin(), seen.end(), item.cache) != seen.end())
            throw std::invalid_argument("a cache may appear once in a pass");
        seen.push_back(item.cache);
    }
    for (const Item& item : items) item.cache->reserve(item.count);
}

// Positions, and what each token sees.
void Model::place(const std::vector<Item>& items) {
    tokens_.clear();
    visible_.clear();
    tails_.clear();
    wanted_.clear();
    std::vector<int> depth, path;
    for (const Item& item : items) {
        const int base = item.cache->length(), first = int(tokens_.size());
        depth.assign(size_t(item.count), 0);
        for (int i = 0; i < item.count; i++) {
            depth[size_t(i)] = item.parents[i] < 0 ? 0 : depth[size_t(item.parents[i])] + 1;
            const int position = base + depth[size_t(i)];
            path.clear();  // slots of positions position, position - 1, …, base
            for (int node = i; node >= 0; node = item.parents[node]) path.push_back(base + node);
            int straight = base;  // positions below it have a slot of the same number
            while (straight <= position && path[size_t(position - straight)] == straight) straight++;
            Visible visible{position + 1, position + 1, nullptr};
            std::vector<int> tail;
            if (straight <= position) {
                visible.direct = straight / 16 * 16;
                for (int p = visible.direct; p <= position; p++)
                    tail.push_back(p < base ? p : path[size_t(position - p)]);
            }
            tails_.push_back(std::move(tail));
            tokens_.push_back({item.cache, item.tokens[i], base + i, position});
            visible_.push_back(visible);
        }
        for (int i = 0; i < item.row_count; i++) wanted_.push_back(first + item.rows[i]);
    }
    for (size_t t = 0; t < tokens_.size(); t++) visible_[t].tail = tails_[t].data();

    const size_t half = size_t(config_.rope_dim) / 2;
    cos_.resize(tokens_.size() * half);
    sin_.resize(tokens_.size() * half);
    for (size_t t = 0; t < tokens_.size(); t++)
        for (size_t i = 0; i < half; i++) {
            const float angle = float(tokens_[t].position) * config_.inv_freq[i];
            cos_[t * half + i] = float(std::cos(double(angle))) * config_.rope_scale;
            sin_[t * half + i] = float(std::sin(double(angle))) * config_.rope_scale;
        }
}

// As many panels, of so many bytes each, as are worth taking from the pool, in multiples of `whole`.
static int chunk(size_t bytes, int whole) {
    constexpr size_t least = size_t(64) << 10;
    return (int(least / bytes) + whole) / whole * whole;
}

int Model::cut(int panels, size_t bytes, int whole) {
    const int size = chunk(bytes, whole);
    cuts_.assign(1, 0);
    for (int at = 0; at < panels; cuts_.push_back(at)) at = std::min(panels, at + size);
    return int(cuts_.size()) - 1;
}

void Model::expect(std::initializer_list<const Matrix*> matrices, size_t bytes, int whole) {
    // No more than a part of the second cache, which a prompt's activations fill by themselves.
    const size_t most = tokens_.size() > 2 * kBundle ? 0 : size_t(256) << 10;
    int panels = 0;
    for (const Matrix* m : matrices) panels += m->panels;
    const int size = chunk(bytes, whole), chunks = (panels + size - 1) / size;
    for (int thread = 0; thread < pool_->size(); thread++) {
        const auto from = [&](int i) { return std::min(panels, pool_->share(chunks, i) * size); };
        int first = from(thread), end = from(thread + 1);
        for (const Matrix* m : matrices) {
            if (first < m->panels) {
                end = std::min(end, m->panels);
                pool_->expect(thread, m->q + size_t(first) * m->q_stride,
                              std::min(most, size_t(end - first) * m->q_stride));
                break;
            }
            first -= m->panels, end -= m->panels;
        }
    }
}

void Model::product(std::initializer_list<Part> parts) {
    int panels = 0;
    for (const Part& part : parts) panels += part.matrix->panels;
    pool_->phase(cut(panels, parts.begin()->matrix->panel_bytes()), [&](int i, int) {
        int before = 0;  // panels of the parts before
        for (const Part& part : parts) {
            const int first = std::max(0, cuts_[size_t(i)] - before);
            const int last = std::min(part.matrix->panels, cuts_[size_t(i) + 1] - before);
            if (first < last) kernels_.matmul(*part.matrix, *part.input, first, last, part.out);
            before += part.matrix->panels;
        }
    });
}

// Adds what may be there: the products of the remainders, a bias.
static void add(float* row, const float* addend, size_t first, size_t n) {
    for (size_t i = 0; addend && i < n; i++) row[i] = row[i] + addend[first + i];
}

// Of a token, the key-value heads [first, last) and the query heads that read them.
void Model::rotate_and_store(int index, int t, int first, int last) {
    const Config& c = config_;
    const Layer& layer = layers_[size_t(index)];
    const Token& token = tokens_[size_t(t)];
    const size_t dim = size_t(c.head_dim), q_dim = size_t(c.heads / c.kv_heads) * dim,
                 kv_width = size_t(c.kv_heads) * dim;
    const size_t half = size_t(c.rope_dim) / 2;
    const float *cos = cos_.data() + size_t(t) * half, *sin = sin_.data() + size_t(t) * half;
    const float scale = 1.0f / std::sqrt(float(c.head_dim));
    const float* const rests = info(layer.v->kind).is_float ? nullptr : v_.data() + tokens_.size() * kv_width;
    const auto rotate = [&](float* head) { kernels_.rope(head, cos, sin, c.rope_dim, c.rope_interleaved); };
    for (size_t h = size_t(first); h < size_t(last); h++) {
        const size_t at = h * dim, kv_at = size_t(t) * kv_width + at, q_at = h * q_dim;
        float *q = q_.data() + size_t(t) * size_t(c.kv_heads) * q_dim + q_at, *k = k_.data() + kv_at,
              *v = v_.data() + kv_at;
        add(q, layer.q_bias, q_at, q_dim);
        for (size_t i = 0; i < q_dim; i += dim) rotate(q + i);
        for (size_t i = 0; i < q_dim; i++) q[i] *= scale;
        add(k, layer.k_bias, at, dim);
        rotate(k);
        add(v, rests, kv_at, dim);
        add(v, layer.v_bias, at, dim);
        kernels_.store_kv(token.cache->head(index, int(h)), token.slot, c.head_dim, k, v);
    }
}

// Behind the last layer's keys and values, only the rows whose logits are wanted count: of a prompt, one.
void Model::keep_wanted() {
    const size_t count = wanted_.size();
    const auto rows = [&](Aligned<float>& values, size_t width) {
        Aligned<float> kept(count * width);
        for (size_t r = 0; r < count; r++)
            std::copy_n(values.begin() + wanted_[r] * width, width, kept.begin() + r * width);
        values.swap(kept);
    };
    rows(x_, size_t(config_.hidden));
    rows(q_, size_t(config_.heads) * config_.head_dim);
    std::vector<Token> tokens;
    std::vector<Visible> visible;
    for (const int row : wanted_) {
        tokens.push_back(tokens_[size_t(row)]);
        visible.push_back(visible_[size_t(row)]);
    }
    tokens_.swap(tokens);
    visible_.swap(visible);
    std::iota(wanted_.begin(), wanted_.end(), 0);
    shape_activations();
    cut_attention();
}

// Panels of gate and up, times the tokens of a pass, that are multiplied before they are used: 32 kB of
// results.
constexpr int kStrip = 256;

// Panels [p0, p1) of gate and up, and what the last product reads of them.
void Model::gate(const Layer& layer, int p0, int p1, int thread) {
    const int n = int(tokens_.size()), first = p0 * kPanel,
              count = std::min(p1 * kPanel, config_.ffn) - first;
    const size_t width = size_t(p1 - p0) * kPanel;
    const Activations& in = ffn_in_.view();
    Aligned<float>& scratch = scratch_[size_t(thread)];
    if (scratch.size() < 2 * n * width) scratch.resize(2 * n * width);
    float *gate = scratch.data(), *up = gate + n * width;
    kernels_.matmul(*layer.gate, in, p0, p1, {gate, width, nullptr, false, first});
    kernels_.matmul(*layer.up, in, p0, p1, {up, width, nullptr, false, first});
    for (int t = 0; t < n; t++)
        kernels_.silu_mul(gate + size_t(t) * width, up + size_t(t) * width, count, gated_.row(t) + first);
    Activations& gated = gated_.view();
    if (!gated.q) return;
    const auto quantize = [&](int from, int to) {
        for (int t = 0; t < n; t++) kernels_.quantize(gated, t, from, to);
    };
    const int end = first + count;
    if (!gated.blocks) return quantize(first / kGroup, end / kGroup);
    // A superblock of which other chunks give a part is quantized by whoever comes last.
    for (int at = first; at < end;) {
        const int block = at / kSuperblock, to = std::min(end, (block + 1) * kSuperblock), columns = to - at;
        if (columns == kSuperblock ||
            gated_columns_[size_t(block)].fetch_add(columns) + columns == kSuperblock)
            quantize(block * kParts, (block + 1) * kParts);
        at = to;
    }
}

void Model::normalize(int x, const float* weight, ActivationBuffer& to, int t, Columns part) {
    const int n = config_.hidden;
    kernels_.rms_norm(x_.data() + size_t(x) * n, weight, config_.rms_eps, n, part.first, part.last,
                      to.row(t));
}

// What the products of a layer's attention read. Values decide the most about the logits for the fewest
// weights: for them, activations keep 15 bits.
void Model::attention_norm(int layer) {
    Activations& in = attention_in_.view();
    const int n = attention_tokens_.tokens;
    each_part(attention_tokens_, [&](int t, Columns part) {
        normalize(t, layers_[size_t(layer)].attn_norm, attention_in_, t, part);
        if (in.q) kernels_.quantize_fine(in, t, n + t, part.first / kGroup, part.last / kGroup);
    });
}

void Model::run_layers() {
    const Config& c = config_;
    const int hidden = c.hidden;
    int n = int(tokens_.size());
    Activations &attention_in = attention_in_.view(), &attended = attended_.view(), &ffn_in = ffn_in_.view(),
                &gated = gated_.view();
    const size_t q_width = size_t(c.heads) * c.head_dim, kv_width = size_t(c.kv_heads) * c.head_dim;
    pool_->phase(n, [&](int t, int) {
        dequantize_row(embedding_kind_,
                       embedding_ + size_t(tokens_[size_t(t)].id) * row_bytes(embedding_kind_, hidden),
                       hidden, x_.data() + size_t(t) * hidden);
    });
    attention_norm(0);
    for (int i = 0; i < c.layers; i++) {
        const Layer& layer = layers_[size_t(i)];
        expect({layer.o}, layer.o->panel_bytes());
        const Activations* for_v = info(layer.v->kind).is_float ? &attention_tokens_ : &attention_in;
        product({{layer.q, &attention_tokens_, {q_.data(), q_width, nullptr, false}},
                 {layer.k, &attention_tokens_, {k_.data(), kv_width, nullptr, false}},
                 {layer.v, for_v, {v_.data(), kv_width, nullptr, false}}});
        each(attention_tokens_, c.kv_heads,
             [&](int t, int first, int last) { rotate_and_store(i, t, first, last); });
        const bool last = i + 1 == c.layers;
        if (last && wanted_.empty()) return;
        if (last && wanted_.size() < tokens_.size()) {
            keep_wanted();
            n = int(tokens_.size());
        }
        attention(i);
        constexpr int whole = kGroup / kPanel;  // panels that give a group of the next product's activations
        expect({layer.gate}, 2 * layer.gate->panel_bytes(), whole);
        product({{layer.o, &attended, {x_.data(), size_t(hidden), layer.o_bias, true}}});
        each_part(ffn_in, [&](int t, Columns part) {
            normalize(t, layer.ffn_norm, ffn_in_, t, part);
            quantize(ffn_in, t, part);
        });
        expect({layer.down}, layer.down->panel_bytes());
        for (auto& columns : gated_columns_) columns = 0;
        pool_->phase(
            cut(layer.gate->panels, 2 * layer.gate->panel_bytes(), whole), [&](int chunk, int thread) {
                // A few panels at a time, so that what is between the products stays in this thread's caches.
                const int few = std::max(1, kStrip / (n * whole)) * whole, end = cuts_[size_t(chunk) + 1];
                for (int p = cuts_[size_t(chunk)]; p < end; p += few)
                    gate(layer, p, std::min(p + few, end), thread);
            });
        if (last) {
            expect({output_}, output_->panel_bytes());
        } else {
            const Layer& next = layers_[size_t(i) + 1];
            expect({next.q, next.k, next.v}, next.q->panel_bytes());
        }
        product({{layer.down, &gated, {x_.data(), size_t(hidden), nullptr, true}}});
        if (!last) attention_norm(i + 1);
    }
}

void Model::run_output(float* logits, const std::vector<int>* panels) {
    const int rows = int(wanted_.size());
    if (rows == 0) return;
    const size_t vocab = size_t(config_.vocab);
    Activations& last = last_.view();
    if (panels)
        pool_->phase(rows, [&](int r, int) {
            std::fill_n(logits + size_t(r) * vocab, vocab, -std::numeric_limits<float>::infinity());
        });
    each_part(last, [&](int r, Columns part) {
        normalize(wanted_[size_t(r)], output_norm_, last_, r, part);
        quantize(last, r, part);
    });
    const int count = panels ? int(panels->size()) : output_->panels;
    pool_->phase(cut(count, output_->panel_bytes()), [&](int i, int) {
        const int stop = cuts_[size_t(i) + 1];
        for (int at = cuts_[size_t(i)]; at < stop;) {  // runs of neighbours
            const int first = panels ? (*panels)[size_t(at)] : at, start = at++;
            while (at < stop && (!panels || (*panels)[size_t(at)] == first + at - start)) at++;
            kernels_.matmul(*output_, last, first, first + at - start, {logits, vocab, nullptr, false});
        }
    });
}

// Room for what products of this pass read.
void Model::shape_activations() {
    const Config& c = config_;
    const int n = int(tokens_.size());
    attention_in_.shape(2 * n, c.hidden, readers_.attention);
    attention_tokens_ = attention_in_.view();
    attention_tokens_.tokens = n;
    attended_.shape(n, c.heads * c.head_dim, readers_.o);
    ffn_in_.shape(n, c.hidden, readers_.ffn);
    gated_.shape(n, c.ffn, readers_.down);
    last_.shape(int(wanted_.size()), c.hidden, readers_.output);
}

void Model::forward(const std::vector<Item>& items, float* logits, const std::vector<int>* panels) {
    std::lock_guard<std::mutex> lock(one_pass_);
    check(items, panels);
    place(items);
    const Config& c = config_;
    const int n = int(tokens_.size());
    if (n == 0) return;
    shape_activations();
    x_.resize(size_t(n) * c.hidden);
    q_.resize(size_t(n) * c.heads * c.head_dim);
    k_.resize(size_t(n) * c.kv_heads * c.head_dim);
    v_.resize(2 * k_.size());
    cut_attention();
    {
        const auto turn = pool_->turn();
        run_layers();
        for (int thread = 0; thread < pool_->size(); thread++)
            pool_->expect(thread, nullptr, 0);  // the output is the last
        run_output(logits, panels);
    }
    for (const Item& item : items) item.cache->advance(item.count);
}

}  // namespace outrider
