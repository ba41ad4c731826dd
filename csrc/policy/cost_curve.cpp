#include "policy/cost_curve.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <tuple>

namespace outrider {
namespace {

// Standard deviations, of logarithms of seconds.
constexpr double kNoise = 0.10;  // of one step
constexpr double kDrift = 0.03;  // of the level, from step to step
constexpr double kWarp = 0.003;  // of the shape at one node, from step to step
struct Unsure {
    double level, step;  // step: of the shape, between neighbouring nodes
};
constexpr Unsure kKnown{0.10, 0.04};  // at the start, when measured
constexpr Unsure kUnknown{10.0, 0.25};
constexpr Unsure kElsewhere{0.20, 0.06};  // what a change of context adds
constexpr double kOutlier = 3.0;          // deviations beyond which a step counts as an accident
constexpr double kLongest = 100.0;        // steps unseen that count

// Where n lies: the node at or below it, and how far it is on the way to the next by log n, 0..1.
struct Position {
    int low = 0;
    double t = 0.0;
};

std::array<Position, kWidest + 1> positions() {
    std::array<Position, kWidest + 1> out;
    for (int n = 1; n <= kWidest; n++) {
        const int low = std::min(int(std::bit_width(unsigned(n))) - 1, kNodes - 2);
        out[n] = {low, std::min(1.0, std::log2(double(n) / double(1 << low)))};
    }
    return out;
}

const std::array<Position, kWidest + 1> kPositions = positions();

const Position& position(int64_t n) { return kPositions[std::clamp<int64_t>(n, 0, kWidest)]; }

// These answer what has no number with an exception, as Python's `math` does.
double checked_exp(double x) {
    const double value = std::exp(x);
    if (std::isinf(value) && std::isfinite(x)) throw std::overflow_error("math range error");
    return value;
}

double log_ratio(double a, double b) {
    const double ratio = a / b;
    if (b == 0.0 || ratio <= 0.0) throw std::domain_error("math domain error");
    return std::log(ratio);
}

bool usable(double value) { return 0.0 < value && value < INFINITY; }

// Seconds for n = 1 .. kWidest, never falling, straight between what was measured, and beyond it along the
// line of its upper half. A pass over more tokens takes no less, and other load only adds to what one takes:
// so what a wider one took is the most that a narrower one can take.
std::array<double, kWidest> filled(CostCurve::Measured points) {
    for (size_t i = points.size() - 1; i; i--)
        points[i - 1].second = std::min(points[i - 1].second, points[i].second);
    const auto [last_n, last_s] = points.back();
    double slope = kGuessedSlope * last_s / last_n;
    if (points.size() > 1) {
        size_t i = points.size() - 2;
        while (i && 2.0 * points[i].first > last_n) i--;
        slope = (last_s - points[i].second) / (last_n - points[i].first);
    }
    const double far = std::max(last_n, double(kWidest)) + 1.0;
    points.emplace_back(far, last_s + slope * (far - last_n));
    std::array<double, kWidest> out;
    size_t i = 0;
    for (int n = 1; n <= kWidest; n++) {
        while (points[i + 1].first <= n) i++;
        const auto [a, s] = points[i];
        const auto [b, t] = points[i + 1];
        out[n - 1] = n <= a ? s : s + (t - s) * (n - a) / (b - a);
    }
    return out;
}

}  // namespace

CostCurve::CostCurve(Measured measured, Longer longer) {
    for (Measured* points : {&measured, &longer.measured}) {
        std::erase_if(*points,
                      [](const auto& point) { return !(point.first >= 1.0 && usable(point.second)); });
        std::sort(points->begin(), points->end());
    }
    const auto [level, step] = measured.empty() ? kUnknown : kKnown;
    if (measured.empty())
        for (int n = 0; n < kWidest; n++) near_[n] = 1.0 + kGuessedSlope * n;
    else
        near_ = filled(std::move(measured)), learn_slope(longer);
    base_ = near_;
    doubt_more(level, step);
    tabulate();
}

// Seconds that each position more adds to a pass: none where other load made it quicker there.
void CostCurve::learn_slope(const Longer& longer) {
    Measured slopes;
    for (const auto& [n, seconds] : longer.measured) {
        if (n > kWidest) continue;
        const double slope = (seconds - near_[size_t(n) - 1]) / longer.positions;
        if (slope < INFINITY) slopes.emplace_back(n, slope > 0.0 ? slope : 0.0);
    }
    if (usable(longer.positions) && !slopes.empty()) slope_ = filled(std::move(slopes));
}

void CostCurve::move(double positions) {
    const double to = usable(positions) ? positions : 0.0;
    if (to == moved_ || slope_[kWidest - 1] == 0.0) return;
    moved_ = to;
    for (int n = 0; n < kWidest; n++) base_[n] = near_[n] + slope_[n] * moved_;
    tabulate();
}

double CostCurve::doubt(int64_t n) const {
    const auto [low, t] = position(n);
    const double a = low ? 1.0 - t : 0.0, b = t;
    const double variance =
        a * a * cov_[low][low] + 2.0 * a * b * cov_[low][low + 1] + b * b * cov_[low + 1][low + 1];
    return std::sqrt(variance > 0.0 ? variance : 0.0);
}

bool CostCurve::observe(int64_t n, double seconds) {
    if (n < 1 || !usable(seconds)) return false;
    const auto [low, t] = position(n);
    return update(log_ratio(seconds, this->seconds(n)), low, t);
}

bool CostCurve::observe_total(double predicted, double seconds) {
    if (!(predicted > 0.0 && usable(seconds))) return false;
    return update(log_ratio(seconds, predicted), 0, 0.0);
}

CostCurve CostCurve::elsewhere() const {
    CostCurve other = *this;
    other.streaks_ = {};
    other.doubt_more(kElsewhere.level, kElsewhere.step);
    return other;
}

void CostCurve::age(double steps) { cov_[0][0] += kDrift * kDrift * std::min(steps, kLongest); }

std::pair<int64_t, double> CostCurve::best_count(const std::vector<double>& chances, int64_t base,
                                                 double rate) const {
    const double least = seconds(base);
    int64_t count = 0, n = 0;
    double best = 0.0, gained = 0.0;
    for (const double chance : chances) {
        gained += chance;
        const double value = gained - rate * (seconds(base + ++n) - least);
        if (value > best) count = n, best = value;
    }
    return {count, best};
}

CostCurve::Nodes CostCurve::best_nodes(const std::vector<std::vector<double>>& paths, int64_t base,
                                       double rate) const {
    struct Offer {
        double path;
        size_t tree;
        int64_t node;
    };
    std::vector<Offer> offers;
    for (size_t tree = 0; tree < paths.size(); tree++)
        for (size_t node = 0; node < paths[tree].size(); node++)
            offers.push_back({paths[tree][node], tree, int64_t(node)});
    const auto likelier = [](const Offer& a, const Offer& b) { return a.path > b.path; };
    std::stable_sort(offers.begin(), offers.end(), likelier);
    std::vector<double> chances;
    for (const Offer& offer : offers) chances.push_back(offer.path);
    Nodes out;
    std::tie(out.count, out.value) = best_count(chances, base, rate);
    out.of.resize(paths.size());
    for (int64_t i = 0; i < out.count; i++) out.of[offers[size_t(i)].tree].push_back(offers[size_t(i)].node);
    for (auto& nodes : out.of) std::sort(nodes.begin(), nodes.end());
    return out;
}

// Be less sure, by these standard deviations of the level and of the shape from node to node.
void CostCurve::doubt_more(double level, double step) {
    const double variance = step * step;
    cov_[0][0] += level * level;
    for (int i = 1; i < kNodes; i++)
        for (int j = 1; j < kNodes; j++) cov_[i][j] += std::min(i, j) * variance;
}

// One step of the filter for an observation of level + (1 - t) shape[low] + t shape[low + 1].
bool CostCurve::update(double error, int low, double t) {
    cov_[0][0] += kDrift * kDrift;
    cov_[low + 1][low + 1] += t * (kWarp * kWarp);
    Row gains;
    double spread = gain(low, t, gains);
    const double bound = kOutlier * std::sqrt(spread);
    bool jumped = false;
    if (-bound <= error && error <= bound) {
        streaks_[low] = 0;
    } else {
        int& streak = streaks_[low];
        streak = error > 0.0 ? std::max(streak, 0) + 1 : std::min(streak, 0) - 1;
        if (std::abs(streak) < kRepeats) {
            error = std::copysign(bound / kOutlier, error);
        } else {
            jumped = true;
            streaks_ = {};
            doubt_more(std::abs(error), std::abs(error) / 2.0);
            spread = gain(low, t, gains);
        }
    }
    const double part = error / spread;
    for (int i = 0; i < kNodes; i++) {
        if (gains[i] == 0.0) continue;
        state_[i] += gains[i] * part;
        const double share = gains[i] / spread;
        for (int j = 0; j < kNodes; j++) cov_[i][j] -= share * gains[j];
    }
    tabulate();
    return jumped;
}

// The covariance of the state with the observation; returns the observation's variance.
double CostCurve::gain(int low, double t, Row& out) const {
    if (!low && t == 0.0) {
        out = cov_[0];
        return out[0] + kNoise * kNoise;
    }
    const double a = low ? 1.0 - t : 0.0;
    for (int i = 0; i < kNodes; i++) out[i] = cov_[0][i] + a * cov_[low][i] + t * cov_[low + 1][i];
    return out[0] + a * out[low] + t * out[low + 1] + kNoise * kNoise;
}

// The table is worked out whole, although little of it is looked at: it takes a fraction of a microsecond.
void CostCurve::tabulate() {
    Row factors;
    factors[0] = checked_exp(state_[0]);
    for (int i = 1; i < kNodes; i++) factors[i] = checked_exp(state_[0] + state_[i]);
    table_[0] = 0.0;
    for (int n = 1; n <= kWidest; n++) {
        const auto [low, t] = kPositions[n];
        const double value = base_[n - 1] * (factors[low] * (1.0 - t) + factors[low + 1] * t);
        table_[n] = value > table_[n - 1] ? value : table_[n - 1];
    }
    each_position_ = slope_[kWidest - 1] * factors[kNodes - 1];
}

}  // namespace outrider
