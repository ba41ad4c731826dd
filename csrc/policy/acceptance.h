// How likely a drafter's next token is to be accepted: src/outrider/decoding/estimate.py says how it is
// learned.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace outrider {

// Of confidence, between bins; and what each bin stands for.
constexpr std::array kEdges{0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98};
constexpr std::array kCentres{0.01, 0.035, 0.075, 0.15, 0.27, 0.42, 0.57, 0.72, 0.85, 0.925, 0.965, 0.985};
constexpr int kStages = 5;
constexpr double kMostChance = 0.995;
constexpr double kStartWeight = 2.0;  // tokens that the start value counts for, where there is no confidence
constexpr double kSharedMemory = 0.99;   // what is left of a count, of all requests, after one more token
constexpr double kRequestMemory = 0.95;  // the same, of a request's counts

// Which group of draft depths (1 = child of the anchor): 1, 2, 3 and 4, 5 to 8, further.
int stage_of(int64_t depth);

// How each request compares with all of them: a factor on the odds of a chance.
class Requests {
  public:
    explicit Requests(double memory) : memory_(memory) {}
    // None where nothing is known of the request.
    std::optional<double> odds(std::string_view id) const;
    void learn(std::string_view id, double expected, double got);
    void forget(std::string_view id);

  private:
    struct Sums {
        double got = 0.0, hoped = 0.0, tried = 0.0;  // decayed
        double odds = 1.0;
    };
    double memory_;
    std::map<std::string, Sums, std::less<>> sums_;
};

// One drafter's chances. `prior`, where it is given, is how many times as good the odds are expected to be in
// the request as where the drafter has been tried; it counts where there is no confidence.
class Acceptance {
  public:
    Acceptance(double start, double weight, double memory);

    // Of a node, given that its parent was accepted; 0 < chance <= kMostChance.
    double chance(std::string_view id, int64_t depth, std::optional<double> confidence,
                  std::optional<double> prior) const;

    // Of each node of a tree given its parent, and of its path. Parents come before their children; -1 is the
    // anchor.
    struct Tree {
        std::vector<double> chances, paths;
    };
    Tree chances(std::string_view id, const std::vector<int64_t>& parents,
                 const std::vector<double>& confidence) const;

    // got: whether the node was accepted, 1 or 0.
    void learn(std::string_view id, int64_t depth, std::optional<double> confidence, double got,
               std::optional<double> prior);
    // A tree was offered, `tokens` with their parents, and the text went on with `emitted`: what that says of
    // every node whose parent is in the text, verified or not.
    void learn_tree(std::string_view id, const std::vector<int64_t>& tokens,
                    const std::vector<int64_t>& parents, const std::vector<double>& confidence,
                    const std::vector<int64_t>& emitted, std::optional<double> prior);
    // It was not tried, and would have been accepted with this chance.
    void suppose(std::string_view id, int64_t depth, double chance, std::optional<double> prior);
    void begin();  // a new text
    void forget(std::string_view id);

    double mean() const;                            // over everything that was tried lately
    double evidence() const { return all_.tried; }  // tokens, older ones counting less

    double start;  // what is expected before anything is known

  private:
    struct Count {
        double got = 0.0, tried = 0.0;  // decayed

        void add(double one);
        void fade();
    };

    void weigh();
    double at_stage(int stage) const;
    double in_cell(size_t bin, int stage) const;

    double weight_;
    std::array<Count, kCentres.size()> bins_;
    std::array<std::array<Count, kStages>, kCentres.size()> cells_;
    std::array<Count, kStages> stages_;
    Count all_;
    Count tested_;         // of those with a confidence, without what was only supposed
    double vanity_ = 0.0;  // decayed: how much worse confidence has foretold than the mean, squared errors
    double tested_mean_ = 0.0, trust_ = 0.0;  // what all bins have in common
    Requests by_confidence_, by_depth_;
};

}  // namespace outrider
