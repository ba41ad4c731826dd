// One transformer of the Llama family: its packed weights and the forward pass.
#pragma once
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/activations.h"
#include "kernels/kernels.h"
#include "memory/aligned.h"
#include "memory/buffers.h"
#include "memory/slabs.h"
#include "model/cache.h"
#include "threads/pool.h"

namespace outrider {

struct Config {
    int layers, hidden, heads, kv_heads, head_dim, ffn, vocab, rope_dim;
    float rms_eps, rope_scale;
    bool rope_interleaved, half_cache;
    std::vector<float> inv_freq;  // [rope_dim / 2]
};

// One sequence's share of a pass; see engines/base.py, ForwardItem.
struct Item {
    Cache* cache;
    const int32_t *tokens, *parents, *rows;
    int count, row_count;
};

class Model {
  public:
    Model(Config config, int threads, const std::string& isa);

    // `file` is copied into the engine's own layout, except the embedding, which must outlive the model.
    void add_matrix(const std::string& name, Kind kind, int rows, int columns, const uint8_t* file);
    // The same over bytes that packed() of another model gave; they must outlive the model.
    void add_packed(const std::string& name, Kind kind, int rows, int columns, const uint8_t* packed,
                    size_t bytes);
    const Matrix& packed(const std::string& name) const;
    void add_vector(const std::string& name, std::vector<float> values);
    void set_embedding(Kind kind, const uint8_t* file);
    // Checks that everything is there with the right shape. Throws std::invalid_argument naming what is not.
    void finish();

    std::unique_ptr<Cache> new_cache(int capacity) const;
    void keep(Cache& cache, int base, const std::vector<int>& slots) const {
        cache.keep(base, slots, kernels_);
    }

    // One pass. `logits` is [rows of all items][vocab], in the order of the items. The new tokens stay in the
    // caches. With `panels` (ascending, each at most once) only the logits of these panels' rows, 16 each,
    // are computed, and all others are -inf. Throws std::invalid_argument or std::length_error before any
    // cache is changed.
    void forward(const std::vector<Item>& items, float* logits, const std::vector<int>* panels = nullptr);

    Buffers& buffers() const { return *buffers_; }  // for logits
    const Config& config() const { return config_; }
    const char* isa() const { return kernels_.name; }
    int threads() const { return pool_->size(); }
    size_t weights_bytes() const;
    size_t cache_bytes() const { return blocks_->bytes(); }  // held for the caches of this model
    // The best of a few reads of the packed weights by all threads: what this machine's memory can deliver.
    double read_gb_per_s();

  private:
    struct Layer {
        const Matrix *q, *k, *v, *o, *gate, *up, *down;
        const float *attn_norm, *ffn_norm, *q_bias, *k_bias, *v_bias, *o_bias;
    };
    struct Token {
        Cache* cache;
        int id, slot, position;
    };
    struct Tile {  // tokens of one sequence, next to one another, and how much the one that sees most sees
        int first, count, positions, spans;
    };
    struct Piece {  // of attention's work in a layer
        const Tile* tile;
        int kv_head, span;
    };
    struct Part {
        const Matrix* matrix;
        const Activations* input;
        MatmulOut out;
    };

    const Matrix& matrix(const std::string& name, int rows, int columns) const;
    const float* vector(const std::string& name, int size, bool required) const;
    void check(const std::vector<Item>& items, const std::vector<int>* panels) const;
    void place(const std::vector<Item>& items);
    void shape_activations();
    void keep_wanted();
    void rotate_and_store(int layer, int t, int first_head, int last_head);
    void attention_norm(int layer);
    void cut_attention();
    void attention(int layer);
    Piece piece(int index) const;
    NextKeys keys_of(int layer, const Piece& piece) const;
    void attend(int layer, const Piece& piece, const NextKeys& next, int thread);
    void join(int t, int first_head, int last_head);
    int spans(int t) const;
    float* partial(int slot, int t, int head);
    void gate(const Layer& layer, int p0, int p1, int thread);
    void run_layers();
    void run_output(float* logits, const std::vector<int>* panels);
    void product(std::initializer_list<Part> parts);
    // Calls work(t, first, last) so that every token of `a` gets [0, units). A bundle's tokens come to one
    // thread, for what is written for neighbours lies side by side in memory (activations, keys), and threads
    // that write into one line wait for each other at every step. Fewer bundles than threads are cut by units
    // too, which must not share lines.
    template <class Work>
    void each(const Activations& a, int units, const Work& work);
    // The same by columns: work(t, Columns).
    struct Columns {
        int first, last;
    };
    template <class Work>
    void each_part(const Activations& a, const Work& work);
    // Columns that a part has a multiple of.
    static int unit(const Activations& a) { return a.blocks ? kSuperblock : 2 * kGroup; }
    // These columns of row t of `to` become the norm of row `x` of x_.
    void normalize(int x, const float* weight, ActivationBuffer& to, int t, Columns part);
    // Quantizes these columns of row t, unless only float matrices read it.
    void quantize(Activations& a, int t, Columns part) const {
        if (a.q) kernels_.quantize(a, t, part.first / kGroup, part.last / kGroup);
    }
    // Cuts `panels`, each of so many bytes, into chunks of a multiple of `whole`; returns how many. Chunk i
    // is [cuts_[i], cuts_[i + 1]).
    int cut(int panels, size_t bytes, int whole = 1);
    // Says what each thread will read first in a product of these matrices, whose phase is cut as above.
    void expect(std::initializer_list<const Matrix*> matrices, size_t bytes, int whole = 1);

    Config config_;
    CacheShape shape_;
    std::shared_ptr<BlockStore> blocks_;
    std::shared_ptr<Buffers> buffers_ = std::make_shared<Buffers>();
    const Kernels& kernels_;
    std::shared_ptr<Pool> pool_;
    std::mutex one_pass_;
    Slabs slabs_;
    std::map<std::string, Matrix> matrices_;
    std::map<std::string, std::vector<float>> vectors_;
    std::vector<Layer> layers_;
    struct {
        Readers attention, o, ffn, down, output;
    } readers_{};  // of what goes into these products, in all layers
    const float* output_norm_ = nullptr;
    const Matrix* output_ = nullptr;
    Kind embedding_kind_ = Kind::F32;
    const uint8_t* embedding_ = nullptr;

    // the pass under way
    std::vector<Token> tokens_;
    std::vector<Visible> visible_;  // of tokens_
    std::vector<std::vector<int>> tails_;
    std::vector<Tile> tiles_;
    int pieces_ = 0;  // what attention in a layer is cut into: whole tiles when slots_ is 1, else their spans
    int slots_ = 1;   // partial results of attention that each token and head has room for
    Aligned<float> partials_;  // [slots][tokens][heads][partial_floats]
    Aligned<float> x_, q_, k_, v_, cos_, sin_;
    ActivationBuffer attention_in_, attended_, ffn_in_, gated_, last_;
    Activations attention_tokens_;                 // attention_in_ without the rows of remainders
    std::vector<int> wanted_;                      // rows of x_ whose logits are asked for
    std::vector<int> cuts_;                        // of the phase under way
    std::vector<Aligned<float>> scratch_;          // of each thread
    std::vector<std::atomic<int>> gated_columns_;  // of each superblock of gated_, those that are there
};

template <class Work>
void Model::each(const Activations& a, int units, const Work& work) {
    const int bundles = a.bundles(), parts = std::max(1, std::min(units, pool_->size() / bundles));
    pool_->phase(bundles * parts, [&](int i, int) {
        const int bundle = i / parts, part = i % parts, end = std::min(a.tokens, (bundle + 1) * a.pitch);
        for (int t = bundle * a.pitch; t < end; t++)
            work(t, units * part / parts, units * (part + 1) / parts);
    });
}

template <class Work>
void Model::each_part(const Activations& a, const Work& work) {
    const int wide = unit(a), units = std::max(1, a.columns / wide);
    each(a, units, [&](int t, int first, int last) {
        work(t, Columns{first * wide, last == units ? a.columns : last * wide});
    });
}

}  // namespace outrider
