// How the work of a pass is divided among threads, and what each prefetches for the phase after.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <memory>
#include <vector>

#include "kernels/activation_buffer.h"
#include "kernels/kernels.h"
#include "memory/aligned.h"
#include "threads/pool.h"

namespace outrider {

constexpr int kGroupPanels = kGroup / kPanel;  // panels that give a group of the next product's activations

// out = matrix · input
struct Product {
    const Matrix* matrix;
    const Activations* input;
    MatmulOut out;
};

struct Columns {
    int first, last;
};

class Phases {
  public:
    Phases(std::shared_ptr<Pool> pool, const Kernels& kernels)
        : pool_(std::move(pool)), kernels_(kernels), scratch_(size_t(pool_->size())) {}

    Pool& pool() const { return *pool_; }
    int threads() const { return pool_->size(); }
    void set_tokens(int tokens) { tokens_ = tokens; }  // of the phases to come

    // At least `floats` of memory that is this thread's until it asks again.
    float* scratch(int thread, size_t floats) {
        Aligned<float>& values = scratch_[size_t(thread)];
        if (values.size() < floats) values.resize(floats);
        return values.data();
    }

    // Divides `panels`, each of so many bytes, into chunks of a multiple of `multiple`; returns how many.
    // Chunk i is [begin(i), begin(i + 1)).
    int partition(int panels, size_t panel_bytes, int multiple = 1);
    int begin(int chunk) const { return bounds_[size_t(chunk)]; }

    // Says what each thread will read first in a product of these matrices, which partition() divides as
    // above: it prefetches that at the end of the phase that comes next.
    void prefetch_next(std::initializer_list<const Matrix*> matrices, size_t panel_bytes, int multiple = 1);
    void prefetch_nothing();

    // All of `products` in one phase.
    void compute(std::initializer_list<Product> products);

    // Calls work(t, first, last) so that every token of `a` gets [0, units). The tokens of a tile come to one
    // thread, for what is written for neighbours lies side by side in memory (activations, keys), and threads
    // that write into one line wait for each other at every step. Fewer tiles than threads are divided by
    // units too, which must not share lines.
    template <class Work>
    void for_tokens(const Activations& a, int units, const Work& work);
    // The same by columns: work(t, Columns).
    template <class Work>
    void for_columns(const Activations& a, const Work& work);
    // Columns of `a` that a thread has a multiple of.
    static int unit(const Activations& a) { return a.superblocks ? kSuperblock : 2 * kGroup; }

  private:
    int chunk_panels(size_t panel_bytes, int multiple) const;

    std::shared_ptr<Pool> pool_;
    const Kernels& kernels_;
    int tokens_ = 0;
    std::vector<int> bounds_;              // of the chunks of the phase under way
    std::vector<Aligned<float>> scratch_;  // of each thread
};

template <class Work>
void Phases::for_tokens(const Activations& a, int units, const Work& work) {
    const int tiles = a.tiles(), parts = std::max(1, std::min(units, pool_->size() / tiles));
    pool_->phase(tiles * parts, [&](int i, int) {
        const int tile = i / parts, part = i % parts, end = std::min(a.tokens, (tile + 1) * a.tile_tokens);
        for (int t = tile * a.tile_tokens; t < end; t++)
            work(t, units * part / parts, units * (part + 1) / parts);
    });
}

template <class Work>
void Phases::for_columns(const Activations& a, const Work& work) {
    const int wide = unit(a), units = std::max(1, a.columns / wide);
    for_tokens(a, units, [&](int t, int first, int last) {
        work(t, Columns{first * wide, last == units ? a.columns : last * wide});
    });
}

}  // namespace outrider
