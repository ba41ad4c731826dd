// The drafts of a head (EAGLE-3, Li et al. 2025): its passes, what is drawn after each, and where a tree
// grows, without a return to Python in between. src/outrider/drafters/eagle3.py is the specification.
#pragma once
#include <cstdint>
#include <vector>

#include "model/model.h"
#include "policy/tree_growth.h"
#include "sampler/sample.h"

namespace outrider {

// What tokens are drawn by: with the noise that the target's tokens are drawn with.
struct DrawParams {
    SampleParams sample;  // temperature 0: the likeliest
    uint64_t seed;
    int64_t vocab;  // ids from here on are not drawn
    std::vector<int32_t> stop_ids;
};

// One draft. The rows of `states` come with `tokens`, as in HeadStates.
struct HeadDraft {
    Cache* cache;
    std::vector<int32_t> tokens;
    const float* states;
    std::vector<int32_t> path;  // tokens that follow them, before anything is drawn
    uint64_t position;          // of the first drawn token
    size_t budget;              // most nodes
    DrawParams draw;
    TreeGrowth* guide;  // directs the growth; null for a chain
    bool confident;     // whether the confidence in each token is wanted

    // What is drawn: tokens, parents and confidence of the nodes (drafters/confidence.py).
    std::vector<int32_t> drawn, parents;
    std::vector<double> confidence;
};

// Makes all drafts in the same passes. Returns how many there were in each pass after the first. part: ids of
// the head's logits, null where they are the target's; all of them must be below DrawParams::vocab. Throws
// what Model::forward throws, before any cache is changed.
std::vector<int> make_drafts(Model& head, const PartOfIds* part, std::vector<HeadDraft>& drafts);

}  // namespace outrider
