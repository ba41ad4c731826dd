// What may follow a text, by the places where it stood like this before: a tree ranked by frequency, or its
// likeliest row. The method of SuffixDecoding (Oliaro et al. 2024), with a `GramIndex` in the place of suffix
// trees: children are weighted by how often and after how long a match they followed, the likeliest paths
// first.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lookup/gram_index.h"

namespace outrider {

// A place to continue from: `tokens` go on at `at` up to `end`, from where the loop of `period` tokens goes
// round (0: it ends there). `length` tokens before it agree, which count `weight`.
struct Place {
    const int32_t* tokens;
    int64_t at, end, period;
    int length;
    double weight;
};

// Where to continue from: what is copied goes first, then the text's own places, then those of others'
// outputs. At most kMostPlaces.
class Places {
  public:
    static constexpr size_t kMostPlaces = 32;  // a set of them is one number

    // `path` should follow, as `sure` tokens of agreement say. (It must live as long as this.)
    void add_copy(const std::vector<int32_t>& path, int sure);
    // In its own text a place goes on into its own continuation, as a loop. Leaves out the place at `but`.
    void add_own(const GramIndex& text, const std::vector<Match>& matches, int64_t but);
    // Agreement counts less there: a text repeats itself rather than others.
    void add_shared(const GramIndex& text, const std::vector<Match>& matches);
    // Those that agree longest, up to so many.
    void keep(size_t most);

    const std::vector<Place>& all() const { return places_; }

  private:
    void add(const GramIndex& text, const Match& match, bool own);
    std::vector<Place> places_;
};

// As `Lookup` in outrider.decoding.plan.
struct Tree {
    std::vector<int32_t> tokens, parents;
    std::vector<double> confidence, paths;
    int length = 0;
};

using Ends = std::function<bool(int32_t)>;  // whether nothing follows a token

struct SuffixTree {
    int depth;      // most tokens of a path
    double factor;  // a path is at most so many times as long as its match
    double least;   // paths less likely than this are left out
    bool branches;  // else the likeliest child each time

    // Best first: the likeliest open node joins the tree, and its children become open. Up to `budget` nodes.
    Tree grow(const Places& places, size_t budget, const Ends& ends) const;
    // The likeliest child each time, whatever its chance: tokens and confidence only, `most` at most.
    Tree row(const Places& places, size_t most, const Ends& ends) const;
};

}  // namespace outrider
