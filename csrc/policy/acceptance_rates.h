// How likely a drafter's next token is to be accepted: src/outrider/policy/acceptance_rates.py says how it is
// learned.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace outrider {

// Between the bins of confidence, and what each bin stands for before anything is known.
constexpr std::array kEdges{0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98};
constexpr std::array kCentres{0.01, 0.035, 0.075, 0.15, 0.27, 0.42, 0.57, 0.72, 0.85, 0.925, 0.965, 0.985};
constexpr int kStages = 5;
constexpr double kMaxProbability = 0.995;
constexpr double kStartWeight = 2.0;    // tokens that the start value counts for
constexpr double kSharedDecay = 0.99;   // of counts over all requests, for each further token
constexpr double kRequestDecay = 0.95;  // of a request's own counts, for each further token

// The group of draft depths (1 = child of the anchor): 1, 2, 3 to 4, 5 to 8, further.
int stage_of(int64_t depth);

// How the acceptance of one request's drafts compares with that of all requests: a factor on the odds.
class RequestOdds {
  public:
    // None before the first observation.
    std::optional<double> odds() const { return known_ ? std::optional(odds_) : std::nullopt; }
    void observe(double expected, double accepted, double decay);

  private:
    double accepted_ = 0.0, expected_ = 0.0, tried_ = 0.0;  // decayed
    double odds_ = 1.0;
    bool known_ = false;
};

// What is known of one request with one drafter, by tokens with a confidence and by draft depth.
struct RequestRates {
    RequestOdds by_confidence, by_depth;
};

// One drafter's acceptance probabilities. `prior_odds`, where it is given, is how many times as good the odds
// are expected to be in the request as where the drafter was verified; it counts where there is no
// confidence.
class AcceptanceRates {
  public:
    using Odds = std::optional<double>;

    // start: expected before anything is known; weight: tokens that it counts for; decay: of a request's own
    // counts, for each further token.
    AcceptanceRates(double start, double weight, double decay);

    // Of a node, given that its parent was accepted; 0 < probability <= kMaxProbability.
    double probability(const RequestRates& request, int64_t depth, std::optional<double> confidence,
                       Odds prior_odds) const;

    // Of each node of a tree given its parent, and of its path. Parents come before their children; -1 is the
    // anchor.
    struct Tree {
        std::vector<double> probabilities, path_probabilities;
    };
    Tree tree(const RequestRates& request, const std::vector<int64_t>& parents,
              const std::vector<double>& confidence) const;

    // accepted: whether the node was, 1 or 0.
    void observe(RequestRates& request, int64_t depth, std::optional<double> confidence, double accepted,
                 Odds prior_odds);
    // A tree was offered, and the text went on with `emitted`: learns of every node whose parent is in the
    // text, verified or not.
    void observe_tree(RequestRates& request, const std::vector<int64_t>& tokens,
                      const std::vector<int64_t>& parents, const std::vector<double>& confidence,
                      const std::vector<int64_t>& emitted, Odds prior_odds);
    // A node was pruned, and would have been accepted with this probability.
    void observe_pruned(RequestRates& request, int64_t depth, double probability, Odds prior_odds);
    void begin_request();

    double mean() const;                            // over everything that was observed lately
    double evidence() const { return all_.tried; }  // tokens, older ones counting less

    double start;

  private:
    struct Count {
        double accepted = 0.0, tried = 0.0;  // decayed

        void add(double one);
        void decay_for_new_request();
    };

    void update_trust();
    double at_stage(int stage) const;
    double in_cell(size_t bin, int stage) const;

    double weight_, decay_;
    std::array<Count, kCentres.size()> bins_;
    std::array<std::array<Count, kStages>, kCentres.size()> cells_;
    std::array<Count, kStages> stages_;
    Count all_;
    Count verified_;                        // of those with a confidence, without pruned nodes
    double confidence_excess_error_ = 0.0;  // decayed squared errors: of confidence, less those of the mean
    double verified_mean_ = 0.0, trust_ = 0.0;  // trust: weight of confidence against the mean, 0..1
};

}  // namespace outrider
