#include "sampler/sample.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "sampler/filter.h"
#include "sampler/noise.h"
#include "sampler/row.h"

namespace outrider {
namespace {

struct Winner {
    int64_t id = -1, place = -1;  // place: in the row
    double score = 0.0, sum = -kInfinity;
};

template <class T>
class TokenChoice : Filter<T> {
    using Filter<T>::row_, Filter<T>::params_, Filter<T>::limit_, Filter<T>::reach_;
    using Filter<T>::score, Filter<T>::floor_of;

  public:
    TokenChoice(const Row<T>& row, const SampleParams& params, uint64_t seed, uint64_t position)
        : Filter<T>(row, params), noise_{seed, position} {
        maxima_.resize(row.maxima().size());
        for (size_t g = 0; g < maxima_.size(); g++) maxima_[g] = score(row.maxima()[g]);
    }

    Winner token() const {
        Cut cut{-limit_, kAll};
        if (params_.top_k > 0) cut = this->top_k_top_p(cut);
        const Winner winner = best_kept(cut);
        return params_.top_k > 0 || params_.top_p >= 1.0 ? winner : within_top_p(winner);
    }

  private:
    // The winner among the tokens that top_p keeps, given the winner among all. Usually both are the same,
    // and the probabilities of the likely tokens alone prove it. Otherwise all tokens are weighed, and the
    // set that top_p keeps is computed only if the winner is not in it.
    Winner within_top_p(const Winner& winner) const {
        if (winner.score >= -kLikelyReach) {
            const Tokens tokens = this->weighed(std::min(kLikelyReach, reach_));
            if (mass_above(winner, tokens) < params_.top_p * sum(tokens.mass) * kRoundingMargin)
                return winner;
        }
        const double wanted = params_.top_p * this->mass();
        const Tokens tokens = this->weighed(-winner.score);
        if (mass_above(winner, tokens) < wanted * kRoundingMargin) return winner;
        return best_kept(top_p_cut(tokens, wanted));
    }

    // The mass of the tokens that rank higher than the winner.
    static double mass_above(const Winner& winner, const Tokens& tokens) {
        double above = 0.0;
        const Cut higher{winner.score, winner.id - 1};
        for (size_t i = 0; i < tokens.size(); i++)
            if (higher.keeps(tokens.score[i], tokens.id[i])) above += tokens.mass[i];
        return above;
    }

    // The token with the largest score + noise among those that the cut keeps; the lowest id on ties.
    Winner best_kept(const Cut& cut) const {
        Winner winner;
        const int64_t likely =
            std::max_element(row_.maxima().begin(), row_.maxima().end()) - row_.maxima().begin();
        constexpr int lanes = 8;
        int64_t groups[lanes] = {likely};
        uint32_t numbers[lanes] = {row_.number(likely)}, words[4][lanes];
        int waiting = 1;  // the best token's group is first, because it excludes most of the others
        const auto process = [&] {
            if (!waiting) return;
            noise_.blocks<lanes>(kEarliest, numbers, words);
            for (int i = 0; i < waiting; i++)
                if (maxima_[groups[i]] + noise_bound(words[0][i]) >= winner.sum)
                    update_winner(winner, cut, Earliest(numbers[i], words[0][i], words[1][i]), groups[i]);
            waiting = 0;
        };
        process();
        for (int64_t g = 0; g < row_.groups(); g++) {
            if (g == likely || maxima_[g] < cut.score) continue;
            groups[waiting] = g, numbers[waiting++] = row_.number(g);
            if (waiting == lanes) process();
        }
        process();
        return winner;
    }

    void update_winner(Winner& winner, const Cut& cut, const Earliest& earliest, int64_t g) const {
        const double most_noise = earliest.noise();
        if (maxima_[g] + most_noise < winner.sum) return;
        double values[kNoiseGroup];
        row_.load(g, values);
        const double floor = floor_of(std::max(winner.sum - most_noise, cut.score));
        IdNoise noise(noise_, earliest);
        for (int64_t i = 0; i < row_.count(g); i++) {
            if (values[i] < floor) continue;
            const double s = score(values[i]);
            const int64_t id = row_.id(g, i);
            if (s + most_noise < winner.sum || !cut.keeps(s, id)) continue;
            const double total = s + noise(id);
            if (total > winner.sum || (total == winner.sum && id < winner.id))
                winner = {id, row_.begin(g) + i, s, total};
        }
    }

    const Noise noise_;
    std::vector<double> maxima_;  // the largest score of each group
};

// use(row, params), unless the row has no finite maximum.
template <class T, class Use>
auto with_row(const T* values, int64_t size, SampleParams params, Use use) {
    if (params.top_k >= size) params.top_k = 0;
    const Row<T> row(values, size, usable_width(params.width));
    if (std::abs(row.best()) < kInfinity) return use(row, params);
    decltype(use(row, params)) nothing{};
    nothing.best = row.best();
    return nothing;
}

template <class T>
ChosenToken choose(const T* values, int64_t size, const SampleParams& params, uint64_t seed,
                   uint64_t position) {
    return with_row(values, size, params, [&](const Row<T>& row, const SampleParams& p) {
        return ChosenToken{TokenChoice<T>(row, p, seed, position).token().id, row.best()};
    });
}

template <class T>
Distribution distribution(const T* values, int64_t size, const SampleParams& params) {
    return with_row(values, size, params, [](const Row<T>& row, const SampleParams& p) {
        return Filter<T>(row, p).distribution();
    });
}

template <class T>
TokenProbability probability(const T* values, int64_t size, const SampleParams& params, int64_t token) {
    return with_row(values, size, params, [&](const Row<T>& row, const SampleParams& p) {
        return TokenProbability{Filter<T>(row, p).probability(token), row.best()};
    });
}

}  // namespace

ChosenToken choose_token(const float* row, int64_t size, const SampleParams& params, uint64_t seed,
                         uint64_t position) {
    return choose(row, size, params, seed, position);
}
ChosenToken choose_token(const double* row, int64_t size, const SampleParams& params, uint64_t seed,
                         uint64_t position) {
    return choose(row, size, params, seed, position);
}
Distribution token_distribution(const float* row, int64_t size, const SampleParams& params) {
    return distribution(row, size, params);
}
Distribution token_distribution(const double* row, int64_t size, const SampleParams& params) {
    return distribution(row, size, params);
}
TokenProbability token_probability(const float* row, int64_t size, const SampleParams& params,
                                   int64_t token) {
    return probability(row, size, params, token);
}
TokenProbability token_probability(const double* row, int64_t size, const SampleParams& params,
                                   int64_t token) {
    return probability(row, size, params, token);
}

PartOfIds::PartOfIds(std::vector<int32_t> given) : ids(std::move(given)) {
    for (size_t i = 0; i < ids.size(); i++) {
        if (ids[i] < 0 || (i && ids[i] <= ids[i - 1])) throw std::invalid_argument("ids must ascend");
        const uint32_t group = uint32_t(ids[i] / kNoiseGroup);
        if (groups.empty() || groups.back() != group) groups.push_back(group), begins.push_back(int32_t(i));
    }
    begins.push_back(int32_t(ids.size()));
}

struct SiblingDraws::State {
    float* const values;
    Row<float> row;
    const PartOfIds* const part;
    const SampleParams& params;
    const uint64_t seed, position;
    struct Drawn {
        int64_t place = -1;
        float value = 0.0f;
    } first, last;

    int64_t id(int64_t place) const { return part ? part->ids[size_t(place)] : place; }

    int64_t next_place() const {
        if (params.temperature > 0.0) return TokenChoice<float>(row, params, seed, position).token().place;
        const auto& maxima = row.maxima();
        const int64_t g = std::max_element(maxima.begin(), maxima.end()) - maxima.begin();
        const float* const from = values + row.begin(g);
        return std::max_element(from, from + row.count(g)) - values;
    }
};

SiblingDraws::SiblingDraws(float* row, int64_t size, const PartOfIds* part, const SampleParams& params,
                           uint64_t seed, uint64_t position)
    : state_(new State{row,
                       Row<float>(row, size, usable_width(params.width), part),
                       part,
                       params,
                       seed,
                       position,
                       {},
                       {}}) {}
SiblingDraws::~SiblingDraws() = default;

std::optional<int64_t> SiblingDraws::next() {
    State& s = *state_;
    if (s.last.place >= 0) {
        s.values[s.last.place] = -INFINITY;
        s.row.changed(s.last.place);
    }
    if (!(std::abs(s.row.best()) < kInfinity)) return std::nullopt;
    const int64_t place = s.next_place();
    s.last = {place, s.values[place]};
    if (s.first.place < 0) s.first = s.last;
    return s.id(place);
}

double SiblingDraws::margin() const {
    const State& s = *state_;
    const double difference = double(s.first.value) - double(s.last.value);
    if (s.params.temperature == 0.0) return std::abs(difference);
    const auto noise = [&](int64_t place) { return token_noise(s.seed, s.position, s.id(place)); };
    return std::abs(difference / s.params.temperature + (noise(s.first.place) - noise(s.last.place)));
}

double token_noise(uint64_t seed, uint64_t position, int64_t id) {
    const Noise noise{seed, position};
    const uint32_t group = uint32_t(id / kNoiseGroup);
    uint32_t words[4][1];
    noise.blocks<1>(kEarliest, &group, words);
    const Earliest earliest(group, words[0][0], words[1][0]);
    return IdNoise(noise, earliest)(id);
}

void token_masses(const double* scores, int64_t size, double* out) {
    for (int64_t i = 0; i < size; i++) out[i] = natural_exp(scores[i]);
}

}  // namespace outrider
