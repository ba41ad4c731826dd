#include "policy/tree_growth.h"

#include <algorithm>
#include <stdexcept>

namespace outrider {

std::vector<double> ModelRates::expected(int64_t most) const {
    std::vector<double> sums{0.0};
    double path = 1.0;
    for (int64_t rank = 1; rank <= most; rank++) {
        path *= of_first(rank, {});
        sums.push_back(sums.back() + path);
    }
    return sums;
}

const NodeProbabilities::Node& NodeProbabilities::add(int64_t parent, std::optional<double> confidence) {
    if (parent < -1 || parent >= int64_t(nodes_.size()))
        throw std::invalid_argument("a parent comes before its children");
    const int64_t rank = parent >= 0 ? nodes_[size_t(parent)].rank + 1 : 1;
    Node node{rank, 0, 0.0, confidence};
    if (parent != last_parent_) {
        last_parent_ = parent;
        remaining_ = unstated_ = 1.0;
        node.probability = rates_.of_first(rank, confidence);
    } else {
        node.sibling_rank = nodes_.back().sibling_rank + 1;
        if (confidence) node.confidence = std::min(1.0, *confidence / std::max(unstated_, 1e-6));
        node.probability = remaining_ * rates_.of_sibling(node.sibling_rank, node.confidence);
    }
    remaining_ -= node.probability;
    unstated_ -= confidence.value_or(0.0);
    nodes_.push_back(node);
    return nodes_.back();
}

TreeGrowth::TreeGrowth(const ModelRates& rates, const Prices& prices, const Limits& limits)
    : nodes_(rates), prices_(prices), limits_(limits) {
    if (prices.sharers < 1) throw std::invalid_argument("at least one request is drafted for");
}

bool TreeGrowth::drew(int64_t parent, double confidence) {
    const NodeProbabilities::Node& node = nodes_.add(parent, confidence);
    const double above = parent >= 0 ? paths_[size_t(parent)] : 1.0, path = above * node.probability;
    paths_.push_back(path);
    if (node.sibling_rank && path <= verification_price(path)) return false;
    const double best_case = above * nodes_.remaining();
    return limits_.branching && node.sibling_rank + 1 < limits_.max_siblings &&
           best_case > verification_price(best_case);
}

int64_t TreeGrowth::next_node(int64_t ready) {
    const size_t first = asked_, end = paths_.size();
    asked_ = end;
    if (first == end || nodes_.nodes()[first].rank >= limits_.max_depth) return -1;
    int64_t node = int64_t(first);
    if (node != ready) node = std::max_element(paths_.begin() + node, paths_.end()) - paths_.begin();
    const double path = paths_[size_t(node)] * nodes_.next_in_row(node);
    const double price = node == ready ? 0.0 : drawing_price();
    return path > price + verification_price(path) ? node : -1;
}

// In tokens, of a draft pass.
double TreeGrowth::drawing_price() const {
    const Prices& p = prices_;
    return p.rate * p.pass_share * p.draw->seconds(p.sharers) / double(p.sharers);
}

// In tokens, of verifying a node of this path probability besides the likelier ones; less likely ones would
// be pruned before it.
double TreeGrowth::verification_price(double path) const {
    const Prices& p = prices_;
    const int64_t size =
        std::count_if(paths_.begin(), paths_.end(), [&](double other) { return other > path; });
    const int64_t now = p.base + p.sharers * size;
    return p.rate * (p.seconds->seconds(now + p.sharers) - p.seconds->seconds(now)) / double(p.sharers);
}

}  // namespace outrider
