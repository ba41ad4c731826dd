// The tokens of a pass: their positions, what each sees, and whose logits are wanted.
#pragma once
#include <vector>

#include "kernels/kernels.h"
#include "memory/aligned.h"
#include "model/cache.h"
#include "model/spec.h"

namespace outrider {

// One sequence's share of a pass; see engines/base.py, ForwardItem.
struct BatchItem {
    Cache* cache;
    const int32_t *tokens, *parents, *rows;
    int count, row_count;
};

struct Token {
    Cache* cache;
    int id, slot, position;
};

// cos and sin of the angles of one rotary table, as Kernels::rope_halves or, of pairs of neighbours,
// rope_pairs reads them: [tokens][width].
struct Rotation {
    Aligned<float> cos, sin;
    size_t width;
};

struct Batch {
    std::vector<Token> tokens;
    std::vector<Visible> visible;         // of tokens
    std::vector<std::vector<int>> tails;  // of tokens, what Visible::tail points at
    std::vector<int> wanted;              // indices of the tokens whose logits are asked for
    std::vector<Rotation> rotations;      // of each rotary table

    int size() const { return int(tokens.size()); }
};

// Throws std::invalid_argument or std::length_error for what a pass cannot compute; else reserves room in the
// caches, which do not change otherwise.
void check_batch(const std::vector<BatchItem>& items, int vocab);

// Fills everything of `batch` but the rotations.
void layout_batch(const std::vector<BatchItem>& items, Batch& batch);

void fill_rotations(const std::vector<RopeSpec>& ropes, Batch& batch);

// Leaves the wanted tokens only, in the order of `wanted`; the rotations stay those of all.
void keep_wanted_tokens(Batch& batch);

}  // namespace outrider
