// What a pass over n tokens costs, T(n): src/outrider/policy/cost_model.py says how it is learned.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace outrider {

constexpr int kWidest = 32;             // tokens up to which the curve is a table
constexpr int kNodes = 6;               // where the shape may bend: 1, 2, 4, 8, 16, 32
constexpr double kGuessedSlope = 0.12;  // T(n) / T(1) grows by this per token when nothing was measured
constexpr int kRepeats = 3;             // a step far off counts as an accident until it was so often in a row

// A Kalman filter (Kalman 1960) on log T(n) = base(n) + level + shape(n). The state is the level, then the
// shape at the nodes but the first; the shape at n = 1 is 0 for good. The shape is a walk from node to node,
// so that neighbours share most of their error.
class CostCurve {
  public:
    // Seconds by n. Values that are not positive finite numbers, or whose n is less than 1, are left out.
    using Measured = std::vector<std::pair<double, double>>;

    // What passes took in a longer context than the others: `positions` more that attention goes over. Each
    // position adds the same time, so base(n) is a line in them.
    struct Longer {
        Measured measured;
        double positions;
    };

    CostCurve(Measured measured, Longer longer);

    // Of a pass over n tokens; 0 for none. Beyond kWidest along the line of the upper half, less what its
    // tokens do not attend to: each goes over the positions before its own.
    double seconds(int64_t n) const {
        if (n <= kWidest) return table_[n < 0 ? 0 : n];
        const double last = table_[kWidest], middle = table_[kWidest / 2];
        const double unseen = std::min(double(n), moved_) / 2.0 * each_position_ / kWidest;
        return last + (last - middle) / (kWidest - kWidest / 2) * double(n - kWidest) - unseen * double(n);
    }
    // Attention goes over so many positions more than where the curve was measured.
    void move(double positions);
    // Standard deviation of log(T(n) / T(1)).
    double doubt(int64_t n) const;

    // Learn from one pass, or from the sum of several. True when the curve just jumped. Both throw
    // domain_error or overflow_error where the times are so far apart that there is no number for it.
    bool observe(int64_t n, double seconds);
    bool observe_total(double predicted, double seconds);

    CostCurve elsewhere() const;  // a copy that is less sure
    void age(double steps);       // were not seen

    // How many of these nodes to verify beside `base` tokens, and what that is worth in tokens.
    std::pair<int64_t, double> best_count(const std::vector<double>& chances, int64_t base,
                                          double rate) const;

    // The same of several trees together, by the chances of their nodes' paths: the nodes to verify of each,
    // ascending.
    struct Nodes {
        std::vector<std::vector<int64_t>> of;
        int64_t count = 0;
        double value = 0.0;
    };
    Nodes best_nodes(const std::vector<std::vector<double>>& paths, int64_t base, double rate) const;

  private:
    using Row = std::array<double, kNodes>;

    void learn_slope(const Longer& longer);
    void doubt_more(double level, double step);
    bool update(double error, int low, double t);
    double gain(int low, double t, Row& out) const;
    void tabulate();

    std::array<double, kWidest> near_;     // as measured
    std::array<double, kWidest> slope_{};  // seconds that each position more adds
    std::array<double, kWidest> base_;     // with those that it has moved by
    double moved_ = 0.0;
    double each_position_ = 0.0;  // seconds that a pass over kWidest tokens takes for each, at this level
    Row state_{};
    std::array<Row, kNodes> cov_{};
    std::array<int, kNodes> streaks_{};  // accidents in a row, by width: plain steps say nothing of wide ones
    std::array<double, kWidest + 1> table_;
};

}  // namespace outrider
