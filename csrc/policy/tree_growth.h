// How a draft model's tree grows: src/outrider/policy/tree_growth.py says what for.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "policy/acceptance_rates.h"
#include "policy/cost_curve.h"

namespace outrider {

// What is known of a draft model's tokens in one request; all of it must outlive this.
struct ModelRates {
    const AcceptanceRates* first;  // of first choices, by their rank in a row
    const RequestRates* first_request;
    const AcceptanceRates* sibling;  // of further choices, those before being wrong, by how many these are
    const RequestRates* sibling_request;
    AcceptanceRates::Odds prior_odds;  // of first choices

    double of_first(int64_t rank, std::optional<double> confidence) const {
        return first->probability(*first_request, rank, confidence, prior_odds);
    }
    double of_sibling(int64_t sibling_rank, std::optional<double> confidence) const {
        return sibling->probability(*sibling_request, sibling_rank, confidence, std::nullopt);
    }
    // Tokens expected to be accepted of 0, 1, … `most` drawn ones, before any is drawn.
    std::vector<double> expected(int64_t most) const;
};

// Acceptance probabilities of the nodes of a growing tree, added in the order in which they are drawn. A
// sibling's is computed given that the ones before it are wrong, so that siblings never sum to above 1.
class NodeProbabilities {
  public:
    struct Node {
        int64_t rank;          // 1 for the first of a row
        int64_t sibling_rank;  // siblings drawn before
        double probability;    // given the parent
        std::optional<double>
            confidence;  // the draft model's; of further siblings, the ones before being wrong
    };

    explicit NodeProbabilities(const ModelRates& rates) : rates_(rates) {}

    // The next node, below the node `parent` or, with -1, the root. Throws std::invalid_argument for a parent
    // that is not there.
    const Node& add(int64_t parent, std::optional<double> confidence);
    // Of a node's first child, before it is drawn.
    double next_in_row(int64_t node) const { return rates_.of_first(nodes_[size_t(node)].rank + 1, {}); }
    // What the last node and its siblings leave to others.
    double remaining() const { return remaining_; }
    const std::vector<Node>& nodes() const { return nodes_; }

  private:
    ModelRates rates_;
    std::vector<Node> nodes_;
    int64_t last_parent_ = -2;
    double remaining_ = 1.0, unstated_ = 1.0;  // of the last node and its siblings: calibrated, and as stated
};

// The name of the capsules by which Python hands a TreeGrowth from one extension module to another.
constexpr char kTreeGrowth[] = "outrider.policy.TreeGrowth";

// Where a tree grows and when it stops: draws while the acceptance probability is worth the price.
class TreeGrowth {
  public:
    // seconds: of a pass of the target; draw: of the draft model. Both must outlive this.
    struct Prices {
        const CostCurve *seconds, *draw;
        double rate;        // token rate, the value of time, in tokens per second
        int64_t base;       // tokens in the target's pass without this draft
        double pass_share;  // of a draft pass, what a drawn token takes as a rule
        int64_t sharers;    // requests that are drafted for at the same time
    };
    struct Limits {
        int64_t max_depth, max_siblings;
        bool branching;
    };

    // Throws std::invalid_argument for fewer than one sharer.
    TreeGrowth(const ModelRates& rates, const Prices& prices, const Limits& limits);

    // A node was drawn below `parent`. Returns whether a further sibling should be.
    bool drew(int64_t parent, double confidence);
    // Which of the nodes drawn since the last call gets children next; -1 to stop. `ready`: the node whose
    // children take no pass, -1 for none.
    int64_t next_node(int64_t ready);

  private:
    double drawing_price() const;
    double verification_price(double path) const;

    NodeProbabilities nodes_;
    const Prices prices_;
    const Limits limits_;
    std::vector<double> paths_;  // of the nodes
    size_t asked_ = 0;           // nodes that there were when next_node was last asked
};

}  // namespace outrider
