#include "sample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "sample_noise.h"

namespace outrider {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

// Tokens below e^-50 times the best add less than half a rounding step to the total mass, and cannot win
// either: noise lies between -3.14 and 28.5.
constexpr double kMassReach = 50.0;

// Greatest of a run of values; NaN if any is NaN. A maximum is the same in any order and on any hardware, so
// this one may be wide where the processor is.
template <class T, int bytes>
[[gnu::always_inline]] inline double greatest_by(const T* values, int64_t size) {
    typedef T Lanes __attribute__((vector_size(bytes)));
    constexpr int lanes = bytes / int(sizeof(T)), unrolled = 4;
    Lanes most[unrolled];
    decltype(most[0] != most[0]) odd = {};
    for (Lanes& m : most) m = Lanes{} - T(kInfinity);
    int64_t i = 0;
    for (; i + unrolled * lanes <= size; i += unrolled * lanes)
        for (int j = 0; j < unrolled; j++) {
            Lanes v;
            std::memcpy(&v, values + i + j * lanes, sizeof v);
            odd |= v != v;
            most[j] = v > most[j] ? v : most[j];
        }
    for (int j = 1; j < unrolled; j++) most[0] = most[j] > most[0] ? most[j] : most[0];
    double top = -kInfinity;
    bool any = false;
    for (int l = 0; l < lanes; l++) top = std::max(top, double(most[0][l])), any |= odd[l] != 0;
    for (; i < size; i++) top = std::max(top, double(values[i])), any |= values[i] != values[i];
    return any ? std::numeric_limits<double>::quiet_NaN() : top;
}

#if defined(__x86_64__)
template <class T>
[[gnu::target("avx2")]] double greatest_avx2(const T* values, int64_t size) {
    return greatest_by<T, 32>(values, size);
}
#endif

template <class T>
double greatest(const T* values, int64_t size, [[maybe_unused]] bool wide) {
#if defined(__x86_64__)
    if (wide) return greatest_avx2(values, size);
#endif
    return greatest_by<T, 16>(values, size);
}

// A row, read in groups of 256 ids.
template <class T>
class Row {
public:
    Row(const T* values, int64_t size, bool wide) : values_(values), size_(size) {
        tops_.resize(size_t((size + kNoiseGroup - 1) / kNoiseGroup));
        for (int64_t g = 0; g < groups(); g++) tops_[g] = greatest(values + g * kNoiseGroup, count(g), wide);
        best_ = greatest(tops_.data(), groups(), wide);
    }

    int64_t groups() const { return int64_t(tops_.size()); }
    int64_t count(int64_t g) const { return std::min(kNoiseGroup, size_ - g * kNoiseGroup); }
    const std::vector<double>& tops() const { return tops_; }
    double best() const { return best_; }
    void load(int64_t g, double* out) const {
        const T* from = values_ + g * kNoiseGroup;
        std::copy(from, from + count(g), out);
    }

private:
    const T* values_;
    int64_t size_;
    std::vector<double> tops_;  // the greatest value in each group
    double best_;
};

// The mass of the scores down to -reach among a group's values. The sum has eight lanes on every machine.
[[gnu::always_inline]] inline double group_mass_by(double* values, int64_t count, double best, double temperature,
                                                   double reach) {
    constexpr int lanes = 8;
    double mass[kNoiseGroup], sums[lanes] = {};
    for (int64_t i = count; i < kNoiseGroup; i++) values[i] = -kInfinity;
    for (int64_t i = 0; i < kNoiseGroup; i++) values[i] = (values[i] - best) / temperature;
    for (int64_t i = 0; i < kNoiseGroup; i++) mass[i] = natural_exp(values[i] > -reach ? values[i] : -reach);
    for (int64_t i = 0; i < kNoiseGroup; i++) mass[i] = values[i] >= -reach ? mass[i] : 0.0;
    for (int64_t i = 0; i < kNoiseGroup; i += lanes)
        for (int j = 0; j < lanes; j++) sums[j] += mass[i + j];
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] double group_mass_avx2(double* values, int64_t count, double best, double temperature,
                                               double reach) {
    return group_mass_by(values, count, best, temperature, reach);
}
#endif

double group_mass(double* values, int64_t count, double best, double temperature, double reach,
                  [[maybe_unused]] bool wide) {
#if defined(__x86_64__)
    if (wide) return group_mass_avx2(values, count, best, temperature, reach);
#endif
    return group_mass_by(values, count, best, temperature, reach);
}

// What the filters leave: the tokens that rank no lower than this one, the earlier id first on ties.
struct Cut {
    double score = -kInfinity;
    int64_t id = kAll;
    bool keeps(double s, int64_t i) const { return s > score || (s == score && i <= id); }
};

// Some of the row's tokens, by ascending id. score: log-probability up to a constant, 0 for the best.
struct Tokens {
    std::vector<double> score;
    std::vector<int64_t> id;
    std::vector<double> mass;  // e^score

    size_t size() const { return id.size(); }
    void weigh() {
        mass.resize(size());
        token_masses(score.data(), int64_t(size()), mass.data());
    }
    template <class Test>
    void retain(Test test) {
        size_t n = 0;
        for (size_t i = 0; i < size(); i++)
            if (test(i)) score[n] = score[i], id[n] = id[i], n++;
        score.resize(n), id.resize(n);
    }
};

double sum(const std::vector<double>& values) {  // by blocks, so that the error stays small for many
    double total = 0.0;
    for (size_t at = 0; at < values.size(); at += 256) {
        double part = 0.0;
        for (size_t i = at; i < std::min(at + 256, values.size()); i++) part += values[i];
        total += part;
    }
    return total;
}

// The last of the k best, 0 < k <= size.
Cut top_k_cut(const Tokens& tokens, size_t k) {
    std::vector<Cut> order(tokens.size());
    for (size_t i = 0; i < order.size(); i++) order[i] = {tokens.score[i], tokens.id[i]};
    const auto before = [](const Cut& a, const Cut& b) { return a.score > b.score || (a.score == b.score && a.id < b.id); };
    std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), before);
    return order[k - 1];
}

// The last of the smallest set of the best whose mass reaches `wanted`. Where it must lie is narrowed down by
// sorting scores into bins of equal width; only the last few tokens are put in order.
Cut top_p_cut(const Tokens& tokens, double wanted) {
    constexpr int bins = 512;
    std::vector<uint32_t> left(tokens.size());
    for (size_t i = 0; i < left.size(); i++) left[i] = uint32_t(i);
    double reached = 0.0;  // mass of the tokens above those left
    while (left.size() > 64) {
        double high = -kInfinity, low = kInfinity;
        for (const uint32_t i : left) high = std::max(high, tokens.score[i]), low = std::min(low, tokens.score[i]);
        const double scale = (bins - 1) / (high - low);
        if (!(scale < kInfinity)) break;
        const auto bin = [&](uint32_t i) { return std::min(bins - 1, int((high - tokens.score[i]) * scale)); };
        double mass[bins] = {};
        uint32_t count[bins] = {};
        for (const uint32_t i : left) mass[bin(i)] += tokens.mass[i], count[bin(i)]++;
        int at = 0, last = bins - 1;
        while (!count[last]) last--;
        while (at < last && reached + mass[at] < wanted) reached += mass[at++];
        left.erase(std::remove_if(left.begin(), left.end(), [&](uint32_t i) { return bin(i) != at; }), left.end());
    }
    std::stable_sort(left.begin(), left.end(), [&](uint32_t a, uint32_t b) { return tokens.score[a] > tokens.score[b]; });
    size_t i = 0;
    while (i + 1 < left.size() && (reached += tokens.mass[left[i]]) < wanted) i++;
    return {tokens.score[left[i]], tokens.id[left[i]]};
}

struct Winner {
    int64_t id = -1;
    double score = 0.0, sum = -kInfinity;
};

template <class T>
class Draw {
public:
    Draw(const Row<T>& row, const SampleParams& params) : row_(row), params_(params), noise_{params.seed, params.position} {
        tops_.resize(row.tops().size());
        for (size_t g = 0; g < tops_.size(); g++) tops_[g] = score(row.tops()[g]);
    }

    int64_t token() const {
        const double limit = params_.min_p > 0.0 ? -natural_log(std::max(params_.min_p, 0x1p-1022)) : kInfinity;
        const double reach = std::min(limit, kMassReach);
        Cut cut{-limit, kAll};
        if (params_.top_k > 0) cut = top_k_top_p(cut, reach);
        const Winner winner = best_of(cut);
        return params_.top_k > 0 || params_.top_p >= 1.0 ? winner.id : within_top_p(winner, reach);
    }

private:
    double score(double value) const { return (value - row_.best()) / params_.temperature; }

    // A value below which every score is less than `least` <= 0, with a margin for rounding.
    double floor_of(double least) const {
        return std::nextafter(row_.best() + (least - 1e-3) * params_.temperature, -kInfinity);
    }

    // The tokens with a score of at least -reach and a value of at least `floor`.
    Tokens collect(double reach, double floor) const {
        Tokens found;
        floor = std::max(floor, floor_of(-reach));
        double values[kNoiseGroup];
        for (int64_t g = 0; g < row_.groups(); g++) {
            if (row_.tops()[g] < floor) continue;
            row_.load(g, values);
            for (int64_t i = 0; i < row_.count(g); i++) {
                if (values[i] < floor) continue;
                const double s = score(values[i]);
                if (s >= -reach) found.score.push_back(s), found.id.push_back(g * kNoiseGroup + i);
            }
        }
        return found;
    }

    Cut top_k_top_p(Cut cut, double reach) const {
        double floor = -kInfinity;
        if (params_.top_k < row_.groups()) {  // so many tokens are as great as that top
            std::vector<double> tops = row_.tops();
            std::nth_element(tops.begin(), tops.begin() + (params_.top_k - 1), tops.end(), std::greater<>());
            floor = tops[params_.top_k - 1];
        }
        Tokens tokens = collect(reach, floor);
        if (uint64_t(params_.top_k) <= tokens.size()) {
            cut = top_k_cut(tokens, size_t(params_.top_k));
            tokens.retain([&](size_t i) { return cut.keeps(tokens.score[i], tokens.id[i]); });
        }
        if (params_.top_p >= 1.0) return cut;
        tokens.weigh();
        return top_p_cut(tokens, params_.top_p * sum(tokens.mass));
    }

    // The winner among the tokens that top_p keeps, from the winner of all. Mostly it is the same, and the
    // likely tokens alone show it; else all are weighed, and the set is made only when it is another.
    int64_t within_top_p(const Winner& winner, double reach) const {
        constexpr double near = 8.0, surely = 1.0 - 1e-9;  // a margin far above the sums' rounding
        if (winner.score >= -near) {
            const Tokens tokens = weighed(std::min(near, reach));
            if (mass_above(winner, tokens) < params_.top_p * sum(tokens.mass) * surely) return winner.id;
        }
        const double wanted = params_.top_p * mass(reach);
        const Tokens tokens = weighed(-winner.score);
        if (mass_above(winner, tokens) < wanted * surely) return winner.id;
        return best_of(top_p_cut(tokens, wanted)).id;
    }

    Tokens weighed(double reach) const {
        Tokens tokens = collect(reach, -kInfinity);
        tokens.weigh();
        return tokens;
    }

    // Of the tokens that rank higher.
    static double mass_above(const Winner& winner, const Tokens& tokens) {
        double above = 0.0;
        const Cut higher{winner.score, winner.id - 1};
        for (size_t i = 0; i < tokens.size(); i++)
            if (higher.keeps(tokens.score[i], tokens.id[i])) above += tokens.mass[i];
        return above;
    }

    // Of all scores down to -reach.
    double mass(double reach) const {
        double total = 0.0, values[kNoiseGroup];
        for (int64_t g = 0; g < row_.groups(); g++)
            if (tops_[g] >= -reach) {
                row_.load(g, values);
                total += group_mass(values, row_.count(g), row_.best(), params_.temperature, reach, params_.wide);
            }
        return total;
    }

    // The token that the cut keeps with the greatest score + noise, the lowest id on ties.
    Winner best_of(const Cut& cut) const {
        Winner winner;
        const int64_t likely = std::max_element(row_.tops().begin(), row_.tops().end()) - row_.tops().begin();
        constexpr int lanes = 8;
        uint32_t numbers[lanes] = {uint32_t(likely)}, words[4][lanes];
        int waiting = 1;  // the best token's group goes first: it sets the bar for the others
        const auto look = [&] {
            if (!waiting) return;
            noise_.blocks<lanes>(kFirst, numbers, words);
            for (int i = 0; i < waiting; i++)
                if (tops_[numbers[i]] + noise_bound(words[0][i]) >= winner.sum)
                    challenge(winner, cut, Earliest(numbers[i], words[0][i], words[1][i]), numbers[i]);
            waiting = 0;
        };
        look();
        for (int64_t g = 0; g < row_.groups(); g++) {
            if (g == likely || tops_[g] < cut.score) continue;
            numbers[waiting++] = uint32_t(g);
            if (waiting == lanes) look();
        }
        look();
        return winner;
    }

    void challenge(Winner& winner, const Cut& cut, const Earliest& earliest, int64_t g) const {
        const double height = earliest.noise();
        if (tops_[g] + height < winner.sum) return;
        double values[kNoiseGroup];
        row_.load(g, values);
        const double floor = floor_of(std::max(winner.sum - height, cut.score));
        IdNoise noise(noise_, earliest);
        for (int64_t i = 0; i < row_.count(g); i++) {
            if (values[i] < floor) continue;
            const double s = score(values[i]);
            const int64_t id = g * kNoiseGroup + i;
            if (s + height < winner.sum || !cut.keeps(s, id)) continue;
            const double total = s + noise(id);
            if (total > winner.sum || (total == winner.sum && id < winner.id)) winner = {id, s, total};
        }
    }

    const Row<T>& row_;
    const SampleParams& params_;
    const Noise noise_;
    std::vector<double> tops_;  // the greatest score in each group
};

template <class T>
Choice choose(const T* values, int64_t size, SampleParams params) {
#if defined(__x86_64__)
    params.wide = params.wide && __builtin_cpu_supports("avx2");
#endif
    if (params.top_k >= size) params.top_k = 0;
    const Row<T> row(values, size, params.wide);
    const double best = row.best();
    return {std::abs(best) < kInfinity ? Draw<T>(row, params).token() : -1, best};
}

}  // namespace

Choice choose_token(const float* row, int64_t size, const SampleParams& params) { return choose(row, size, params); }
Choice choose_token(const double* row, int64_t size, const SampleParams& params) { return choose(row, size, params); }

double token_noise(uint64_t seed, uint64_t position, int64_t id) {
    const Noise noise{seed, position};
    const uint32_t group = uint32_t(id / kNoiseGroup);
    uint32_t words[4][1];
    noise.blocks<1>(kFirst, &group, words);
    const Earliest earliest(group, words[0][0], words[1][0]);
    return IdNoise(noise, earliest)(id);
}

void token_masses(const double* scores, int64_t size, double* out) {
    for (int64_t i = 0; i < size; i++) out[i] = natural_exp(scores[i]);
}

}  // namespace outrider
