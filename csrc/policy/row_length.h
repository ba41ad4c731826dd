// How many tokens in a row a draft model should draw: src/outrider/policy/draft_model.py says what for.
#pragma once
#include <cstdint>
#include <vector>

#include "policy/cost_curve.h"

namespace outrider {

struct RowPrices {
    double other;      // tokens expected of what is drafted otherwise
    int64_t width;     // tokens in the target's pass without what is drawn
    double spent;      // seconds that drawing takes however many are drawn, less those of a plain pass
    double one;        // of drawing one token for all
    double rate;       // token rate, the value of time, in tokens per second
    double value;      // tokens: what the step is worth without drawing
    double prefill;    // tokens, once, paid off over the steps to come
    double horizon;    // most of these
    double left;       // tokens that each request may have
    int64_t requests;  // of the step
};

// length: tokens that pay most, 0 if none do. worth: the step's with them. gained: most over `value`, prefill
// aside. chance, first: of one token, how much more is expected, and what the step is worth.
struct RowLength {
    int64_t length = 0;
    double worth, gained = -1.0, chance = 0.0, first = 0.0;
};

// expected: for each request that is drafted for, the tokens expected to be accepted of 0, 1, 2, … drawn
// ones. Throws std::invalid_argument where one has none.
RowLength row_length(const CostCurve& seconds, const std::vector<std::vector<double>>& expected,
                     const RowPrices& prices);

}  // namespace outrider
