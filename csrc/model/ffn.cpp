// The first half of the feed-forward part: gate and up, multiplied panel by panel, so that what lies between
// the products stays in a thread's caches.
#include <algorithm>

#include "model/model.h"

namespace outrider {

// Panels of gate and up, times the tokens of a pass, that are multiplied before they are used: 32 kB of
// results.
constexpr int kStrip = 256;

// gated = activation(Wgate · ffn_in) * (Wup · ffn_in)
void Model::gate_and_up(const LayerWeights& w, Activation activation) {
    for (auto& columns : gated_columns_) columns = 0;
    const int chunks = phases_.partition(w.gate->panels, 2 * w.gate->panel_bytes(), kGroupPanels);
    pool().phase(chunks, [&](int chunk, int thread) {
        const int few = std::max(1, kStrip / (batch_.size() * kGroupPanels)) * kGroupPanels,
                  end = phases_.begin(chunk + 1);
        for (int p = phases_.begin(chunk); p < end; p += few)
            gate_panels(w, activation, p, std::min(p + few, end), thread);
    });
}

void Model::gate_panels(const LayerWeights& w, Activation activation, int first_panel, int last_panel,
                        int thread) {
    const int n = batch_.size(), first = first_panel * kPanel,
              count = std::min(last_panel * kPanel, spec_.ffn()) - first;
    const size_t width = size_t(last_panel - first_panel) * kPanel;
    const Activations& in = ffn_in_.view();
    float *gate = phases_.scratch(thread, 2 * size_t(n) * width), *up = gate + size_t(n) * width;
    kernels_.matmul(*w.gate, ordered_.of(*w.gate, in), first_panel, last_panel,
                    {gate, width, nullptr, false, first});
    kernels_.matmul(*w.up, ordered_.of(*w.up, in), first_panel, last_panel,
                    {up, width, nullptr, false, first});
    for (int t = 0; t < n; t++)
        activation(gate + size_t(t) * width, up + size_t(t) * width, count, gated_.row(t) + first);
    if (gated_.view().q) quantize_gated(first, first + count);
}

// Columns [first, last) of all tokens, which this thread has just computed.
void Model::quantize_gated(int first, int last) {
    Activations& gated = gated_.view();
    const auto quantize_groups = [&](int from, int to) {
        for (int t = 0; t < gated.tokens; t++) kernels_.quantize(gated, t, from, to);
    };
    if (!gated.superblocks) return quantize_groups(first / kGroup, last / kGroup);
    // A superblock of which other chunks give a part is quantized by the one that comes last.
    for (int at = first; at < last;) {
        const int superblock = at / kSuperblock, to = std::min(last, (superblock + 1) * kSuperblock),
                  columns = to - at;
        std::atomic<int>& there = gated_columns_[size_t(superblock)];
        if (columns == kSuperblock || there.fetch_add(columns) + columns == kSuperblock)
            quantize_groups(superblock * kSuperblockGroups, (superblock + 1) * kSuperblockGroups);
        at = to;
    }
}

}  // namespace outrider
