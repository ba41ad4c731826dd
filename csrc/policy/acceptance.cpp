#include "policy/acceptance.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace outrider {
namespace {

constexpr double kBinWeight = 4.0;      // tokens that a bin's own centre counts for
constexpr double kCellWeight = 8.0;     // tokens that a bin counts for in each of its stages
constexpr double kAnew = 0.9;           // what is left of what other texts taught, when a new one begins
constexpr double kRequestWeight = 8.0;  // tokens, of each outcome, that "as in other requests" counts for
constexpr double kSuspicion = 3.0;      // how fast a confidence that foretells nothing loses its weight
constexpr double kFaith = 0.3;          // how much of that, in squared errors, it is forgiven

size_t bin_of(double confidence) {
    return size_t(std::upper_bound(kEdges.begin(), kEdges.end(), confidence) - kEdges.begin());
}

double squared(double x) { return x * x; }

void check_tree(const std::vector<int64_t>& parents) {
    for (size_t i = 0; i < parents.size(); i++)
        if (parents[i] < -1 || parents[i] >= int64_t(i))
            throw std::invalid_argument("a parent comes before its children");
}

double at_most(double chance) { return chance < kMostChance ? chance : kMostChance; }

// The chance with odds so many times as good, where there are any.
double times(double chance, std::optional<double> odds) {
    return odds ? at_most(chance * *odds / (1.0 - chance + chance * *odds)) : chance;
}

}  // namespace

int stage_of(int64_t depth) {
    if (depth < 1) throw std::invalid_argument("a depth is 1 or more");
    return depth <= 2 ? int(depth - 1) : depth <= 4 ? 2 : depth <= 8 ? 3 : kStages - 1;
}

std::optional<double> Requests::odds(std::string_view id) const {
    const auto found = sums_.find(id);
    return found == sums_.end() ? std::nullopt : std::optional(found->second.odds);
}

void Requests::learn(std::string_view id, double expected, double got) {
    auto found = sums_.find(id);
    if (found == sums_.end()) found = sums_.emplace(id, Sums()).first;
    Sums& sums = found->second;
    sums.got = memory_ * sums.got + got;
    sums.hoped = memory_ * sums.hoped + expected;
    sums.tried = memory_ * sums.tried + 1.0;
    constexpr double k = kRequestWeight;
    sums.odds =
        (sums.got + k) * (sums.tried - sums.hoped + k) / ((sums.tried - sums.got + k) * (sums.hoped + k));
}

void Requests::forget(std::string_view id) {
    const auto found = sums_.find(id);
    if (found != sums_.end()) sums_.erase(found);
}

void Acceptance::Count::add(double one) {
    got = kSharedMemory * got + one;
    tried = kSharedMemory * tried + 1.0;
}

void Acceptance::Count::fade() {
    got *= kAnew;
    tried *= kAnew;
}

Acceptance::Acceptance(double start, double weight, double memory)
    : start(start), weight_(weight), by_confidence_(memory), by_depth_(memory) {
    if (!(weight > 0.0)) throw std::invalid_argument("weight must be above 0");
    if (!(memory >= 0.0 && memory < 1.0)) throw std::invalid_argument("memory must be from 0 to below 1");
    weigh();
}

double Acceptance::chance(std::string_view id, int64_t depth, std::optional<double> confidence,
                          std::optional<double> prior) const {
    const int stage = stage_of(depth);
    if (confidence) return times(in_cell(bin_of(*confidence), stage), by_confidence_.odds(id));
    return times(times(at_stage(stage), prior), by_depth_.odds(id));
}

Acceptance::Tree Acceptance::chances(std::string_view id, const std::vector<int64_t>& parents,
                                     const std::vector<double>& confidence) const {
    const size_t count = parents.size();
    if (confidence.size() != count) throw std::invalid_argument("each node has a parent and a confidence");
    check_tree(parents);
    const std::optional<double> odds = by_confidence_.odds(id);
    Tree out{std::vector<double>(count), std::vector<double>(count)};
    std::vector<int64_t> depths(count);
    for (size_t i = 0; i < count; i++) {
        const int64_t parent = parents[i];
        depths[i] = parent < 0 ? 1 : depths[parent] + 1;
        out.chances[i] = times(in_cell(bin_of(confidence[i]), stage_of(depths[i])), odds);
        out.paths[i] = (parent < 0 ? 1.0 : out.paths[parent]) * out.chances[i];
    }
    return out;
}

void Acceptance::learn(std::string_view id, int64_t depth, std::optional<double> confidence, double got,
                       std::optional<double> prior) {
    const int stage = stage_of(depth);
    if (confidence) {
        const size_t bin = bin_of(*confidence);
        const double worse = squared(kCentres[bin] - got) - squared(tested_mean_ - got);
        vanity_ = kSharedMemory * vanity_ + worse;
        tested_.add(got);
        bins_[bin].add(got);
        cells_[bin][stage].add(got);
        weigh();
        // Expected by what is known now, this token counted: a first request sets the standard.
        by_confidence_.learn(id, in_cell(bin, stage), got);
    }
    suppose(id, depth, got, prior);
}

void Acceptance::learn_tree(std::string_view id, const std::vector<int64_t>& tokens,
                            const std::vector<int64_t>& parents, const std::vector<double>& confidence,
                            const std::vector<int64_t>& emitted, std::optional<double> prior) {
    const size_t count = tokens.size();
    if (parents.size() != count || confidence.size() != count)
        throw std::invalid_argument("each node has a token, a parent and a confidence");
    check_tree(parents);
    std::vector<size_t> depths(count);  // of those in the text; 0 for others
    for (size_t i = 0; i < count; i++) {
        const int64_t parent = parents[i];
        if (parent >= 0 && depths[parent] == 0) continue;
        const size_t depth = parent < 0 ? 1 : depths[parent] + 1;
        if (depth > emitted.size()) continue;
        const bool right = tokens[i] == emitted[depth - 1];
        if (right) depths[i] = depth;
        learn(id, int64_t(depth), confidence[i], right, prior);
    }
}

void Acceptance::suppose(std::string_view id, int64_t depth, double chance, std::optional<double> prior) {
    const int stage = stage_of(depth);
    all_.add(chance);
    stages_[stage].add(chance);
    by_depth_.learn(id, times(at_stage(stage), prior), chance);
}

void Acceptance::begin() {
    all_.fade();
    for (Count& count : stages_) count.fade();
}

void Acceptance::forget(std::string_view id) {
    by_confidence_.forget(id);
    by_depth_.forget(id);
}

double Acceptance::mean() const { return (all_.got + weight_ * start) / (all_.tried + weight_); }

void Acceptance::weigh() {
    tested_mean_ = (tested_.got + weight_ * start) / (tested_.tried + weight_);
    trust_ = 1.0 / (1.0 + std::exp(std::min(50.0, kSuspicion * (vanity_ - kFaith))));
}

double Acceptance::at_stage(int stage) const {
    const Count& count = stages_[stage];
    return at_most((count.got + kCellWeight * mean()) / (count.tried + kCellWeight));
}

double Acceptance::in_cell(size_t bin, int stage) const {
    const double centre = trust_ * kCentres[bin] + (1.0 - trust_) * tested_mean_;
    const Count &all = bins_[bin], &own = cells_[bin][stage];
    const double above = (all.got + kBinWeight * centre) / (all.tried + kBinWeight);
    return at_most((own.got + kCellWeight * above) / (own.tried + kCellWeight));
}

}  // namespace outrider
