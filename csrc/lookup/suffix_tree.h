// Predicts how a text continues from the places where its last tokens occurred before: as a tree ranked by
// frequency, or as its most likely path. The method of SuffixDecoding (Oliaro et al. 2024), with a
// `GramIndex` instead of suffix trees. Children are weighted by how often, and after how long a match, they
// followed; the most likely paths come first.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lookup/gram_index.h"

namespace outrider {

// Where a continuation is read from: tokens [at, end); after `end` the last `period` tokens repeat (0: they
// do not). `length` tokens before `at` match the text; `weight` is how much the continuation counts.
struct Continuation {
    const int32_t* tokens;
    int64_t at, end, period;
    int length;
    double weight;
    bool shared;  // whether it is in another request's output
};

// The continuations to predict from: first that of the copy tracker, then those in the text itself, then
// those in other requests' outputs. At most kMaxContinuations.
class Continuations {
  public:
    static constexpr size_t kMaxContinuations = 32;  // so that a set of them fits one integer

    // The tracked copy continues with `path` (which must outlive this), as after a match of `agreement`
    // tokens.
    void add_copy(const std::vector<int32_t>& path, int agreement);
    // Continuations in the text itself repeat after its end. Leaves out the match that starts at `excluded`.
    void add_own(const GramIndex& text, const std::vector<Match>& matches, int64_t excluded);
    // A match counts less there: a text repeats itself more than it repeats others.
    void add_shared(const GramIndex& text, const std::vector<Match>& matches);
    // Keeps only the `most` with the longest matches.
    void keep(size_t most);

    const std::vector<Continuation>& all() const { return continuations_; }

  private:
    void add(const GramIndex& text, const Match& match, bool own);
    std::vector<Continuation> continuations_;
};

// The fields of a lookup's result: tokens, parents (-1: the text's end), confidence of each token given its
// parent, probability of each path, the length of the longest match, and whether other requests' outputs
// alone have a token; the last is empty where no match is in them.
struct Tree {
    std::vector<int32_t> tokens, parents;
    std::vector<double> confidence, paths;
    int length = 0;
    std::vector<bool> shared;
};

using IsStop = std::function<bool(int32_t)>;  // whether generation ends with a token

struct SuffixTree {
    int depth;      // most tokens of a path
    double factor;  // a path is at most `factor` times as long as its match
    double least;   // paths of a lower probability are left out
    bool branches;  // otherwise only the most likely child is followed

    // Best first: the open node of the most likely path is added to the tree, and its children become open.
    // Up to `budget` nodes.
    Tree grow(const Continuations& continuations, size_t budget, const IsStop& is_stop) const;
    // Follows the most likely child, whatever its confidence: up to `most` tokens, with their confidence
    // only.
    Tree row(const Continuations& continuations, size_t most, const IsStop& is_stop) const;
};

}  // namespace outrider
