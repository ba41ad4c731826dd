#include "policy/acceptance_rates.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace outrider {
namespace {

constexpr double kBinWeight = 4.0;              // tokens that a bin's centre counts for
constexpr double kCellWeight = 8.0;             // tokens that a bin counts for in each of its stages
constexpr double kNewRequestDecay = 0.9;        // of counts by depth, for each new request
constexpr double kRequestWeight = 8.0;          // tokens, of each outcome, that "as all requests" counts for
constexpr double kConfidencePenaltyRate = 3.0;  // how fast excess errors take trust from confidence
constexpr double kTolerance = 0.3;              // excess error that costs no trust

size_t bin_of(double confidence) {
    return size_t(std::upper_bound(kEdges.begin(), kEdges.end(), confidence) - kEdges.begin());
}

double squared(double x) { return x * x; }

void check_tree(const std::vector<int64_t>& parents) {
    for (size_t i = 0; i < parents.size(); i++)
        if (parents[i] < -1 || parents[i] >= int64_t(i))
            throw std::invalid_argument("a parent comes before its children");
}

double capped(double probability) { return probability < kMaxProbability ? probability : kMaxProbability; }

// The probability with its odds multiplied, where there is a factor.
double scale_odds(double p, std::optional<double> odds) {
    return odds ? capped(p * *odds / (1.0 - p + p * *odds)) : p;
}

}  // namespace

int stage_of(int64_t depth) {
    if (depth < 1) throw std::invalid_argument("a depth is 1 or more");
    return depth <= 2 ? int(depth - 1) : depth <= 4 ? 2 : depth <= 8 ? 3 : kStages - 1;
}

void RequestOdds::observe(double expected, double accepted, double decay) {
    accepted_ = decay * accepted_ + accepted;
    expected_ = decay * expected_ + expected;
    tried_ = decay * tried_ + 1.0;
    constexpr double k = kRequestWeight;
    odds_ = (accepted_ + k) * (tried_ - expected_ + k) / ((tried_ - accepted_ + k) * (expected_ + k));
    known_ = true;
}

void AcceptanceRates::Count::add(double one) {
    accepted = kSharedDecay * accepted + one;
    tried = kSharedDecay * tried + 1.0;
}

void AcceptanceRates::Count::decay_for_new_request() {
    accepted *= kNewRequestDecay;
    tried *= kNewRequestDecay;
}

AcceptanceRates::AcceptanceRates(double start, double weight, double decay)
    : start(start), weight_(weight), decay_(decay) {
    if (!(weight > 0.0)) throw std::invalid_argument("weight must be above 0");
    if (!(decay >= 0.0 && decay < 1.0)) throw std::invalid_argument("decay must be from 0 to below 1");
    update_trust();
}

double AcceptanceRates::probability(const RequestRates& request, int64_t depth,
                                    std::optional<double> confidence, Odds prior_odds) const {
    const int stage = stage_of(depth);
    if (confidence) return scale_odds(in_cell(bin_of(*confidence), stage), request.by_confidence.odds());
    return scale_odds(scale_odds(at_stage(stage), prior_odds), request.by_depth.odds());
}

AcceptanceRates::Tree AcceptanceRates::tree(const RequestRates& request, const std::vector<int64_t>& parents,
                                            const std::vector<double>& confidence) const {
    const size_t count = parents.size();
    if (confidence.size() != count) throw std::invalid_argument("each node has a parent and a confidence");
    check_tree(parents);
    const std::optional<double> odds = request.by_confidence.odds();
    Tree out{std::vector<double>(count), std::vector<double>(count)};
    std::vector<int64_t> depths(count);
    for (size_t i = 0; i < count; i++) {
        const int64_t parent = parents[i];
        depths[i] = parent < 0 ? 1 : depths[parent] + 1;
        const double p = scale_odds(in_cell(bin_of(confidence[i]), stage_of(depths[i])), odds);
        out.probabilities[i] = p;
        out.path_probabilities[i] = (parent < 0 ? 1.0 : out.path_probabilities[parent]) * p;
    }
    return out;
}

void AcceptanceRates::observe(RequestRates& request, int64_t depth, std::optional<double> confidence,
                              double accepted, Odds prior_odds) {
    const int stage = stage_of(depth);
    if (confidence) {
        const size_t bin = bin_of(*confidence);
        const double excess = squared(kCentres[bin] - accepted) - squared(verified_mean_ - accepted);
        confidence_excess_error_ = kSharedDecay * confidence_excess_error_ + excess;
        verified_.add(accepted);
        bins_[bin].add(accepted);
        cells_[bin][stage].add(accepted);
        update_trust();
        // Expected by what is known now, this token counted: a first request sets the standard.
        request.by_confidence.observe(in_cell(bin, stage), accepted, decay_);
    }
    observe_pruned(request, depth, accepted, prior_odds);
}

void AcceptanceRates::observe_tree(RequestRates& request, const std::vector<int64_t>& tokens,
                                   const std::vector<int64_t>& parents, const std::vector<double>& confidence,
                                   const std::vector<int64_t>& emitted, Odds prior_odds) {
    const size_t count = tokens.size();
    if (parents.size() != count || confidence.size() != count)
        throw std::invalid_argument("each node has a token, a parent and a confidence");
    check_tree(parents);
    std::vector<size_t> depths(count);  // of the nodes that are in the text; 0 for others
    for (size_t i = 0; i < count; i++) {
        const int64_t parent = parents[i];
        if (parent >= 0 && depths[parent] == 0) continue;
        const size_t depth = parent < 0 ? 1 : depths[parent] + 1;
        if (depth > emitted.size()) continue;
        const bool right = tokens[i] == emitted[depth - 1];
        if (right) depths[i] = depth;
        observe(request, int64_t(depth), confidence[i], right, prior_odds);
    }
}

void AcceptanceRates::observe_pruned(RequestRates& request, int64_t depth, double probability,
                                     Odds prior_odds) {
    const int stage = stage_of(depth);
    all_.add(probability);
    stages_[stage].add(probability);
    request.by_depth.observe(scale_odds(at_stage(stage), prior_odds), probability, decay_);
}

void AcceptanceRates::begin_request() {
    all_.decay_for_new_request();
    for (Count& count : stages_) count.decay_for_new_request();
}

double AcceptanceRates::mean() const { return (all_.accepted + weight_ * start) / (all_.tried + weight_); }

void AcceptanceRates::update_trust() {
    verified_mean_ = (verified_.accepted + weight_ * start) / (verified_.tried + weight_);
    const double excess = kConfidencePenaltyRate * (confidence_excess_error_ - kTolerance);
    trust_ = 1.0 / (1.0 + std::exp(std::min(50.0, excess)));
}

double AcceptanceRates::at_stage(int stage) const {
    const Count& count = stages_[stage];
    return capped((count.accepted + kCellWeight * mean()) / (count.tried + kCellWeight));
}

double AcceptanceRates::in_cell(size_t bin, int stage) const {
    const double centre = trust_ * kCentres[bin] + (1.0 - trust_) * verified_mean_;
    const Count &all = bins_[bin], &own = cells_[bin][stage];
    const double in_bin = (all.accepted + kBinWeight * centre) / (all.tried + kBinWeight);
    return capped((own.accepted + kCellWeight * in_bin) / (own.tried + kCellWeight));
}

}  // namespace outrider
