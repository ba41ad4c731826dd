#include "policy/row_length.h"

#include <algorithm>
#include <stdexcept>

namespace outrider {

RowLength row_length(const CostCurve& seconds, const std::vector<std::vector<double>>& expected,
                     const RowPrices& prices) {
    const RowPrices& p = prices;
    double most = p.other;  // however many are drawn
    size_t longest = 0;
    for (const auto& of : expected) {
        if (of.empty()) throw std::invalid_argument("of no drawn token, 0 are expected");
        most += of.back();
        longest = std::max(longest, of.size());
    }
    RowLength best;
    best.worth = p.value;
    double best_gain = 0.0;
    for (size_t k = 1; k < longest; k++) {
        double accepted = p.other;
        int64_t width = p.width;
        for (const auto& of : expected) {
            const size_t at = std::min(k, of.size() - 1);
            accepted += of[at];
            width += int64_t(at);
        }
        const double price = p.rate * (seconds.seconds(width) + p.spent + double(k) * p.one),
                     worth = accepted - price,
                     steps =
                         std::max(1.0, std::min(p.horizon, p.left / (1.0 + accepted / double(p.requests)))),
                     gain = worth - p.value - p.prefill / steps;
        best.gained = std::max(best.gained, worth - p.value);
        if (k == 1) best.chance = accepted - p.other, best.first = worth;
        if (gain > best_gain) best.worth = worth, best_gain = gain, best.length = int64_t(k);
        if (most - price <= p.value) break;  // longer ones cost more, and cannot give so much
    }
    return best;
}

}  // namespace outrider
