#include "sampler/sample.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "sampler/filter.h"
#include "sampler/noise.h"
#include "sampler/row.h"

namespace outrider {
namespace {

struct Winner {
    int64_t id = -1;
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

    int64_t token() const {
        Cut cut{-limit_, kAll};
        if (params_.top_k > 0) cut = this->top_k_top_p(cut);
        const Winner winner = best_kept(cut);
        return params_.top_k > 0 || params_.top_p >= 1.0 ? winner.id : within_top_p(winner);
    }

  private:
    // The winner among the tokens that top_p keeps, given the winner among all. Usually both are the same,
    // and the probabilities of the likely tokens alone prove it. Otherwise all tokens are weighed, and the
    // set that top_p keeps is computed only if the winner is not in it.
    int64_t within_top_p(const Winner& winner) const {
        if (winner.score >= -kLikelyReach) {
            const Tokens tokens = this->weighed(std::min(kLikelyReach, reach_));
            if (mass_above(winner, tokens) < params_.top_p * sum(tokens.mass) * kRoundingMargin)
                return winner.id;
        }
        const double wanted = params_.top_p * this->mass();
        const Tokens tokens = this->weighed(-winner.score);
        if (mass_above(winner, tokens) < wanted * kRoundingMargin) return winner.id;
        return best_kept(top_p_cut(tokens, wanted)).id;
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
        uint32_t numbers[lanes] = {uint32_t(likely)}, words[4][lanes];
        int waiting = 1;  // the best token's group is first, because it excludes most of the others
        const auto process = [&] {
            if (!waiting) return;
            noise_.blocks<lanes>(kEarliest, numbers, words);
            for (int i = 0; i < waiting; i++)
                if (maxima_[numbers[i]] + noise_bound(words[0][i]) >= winner.sum)
                    update_winner(winner, cut, Earliest(numbers[i], words[0][i], words[1][i]), numbers[i]);
            waiting = 0;
        };
        process();
        for (int64_t g = 0; g < row_.groups(); g++) {
            if (g == likely || maxima_[g] < cut.score) continue;
            numbers[waiting++] = uint32_t(g);
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
            const int64_t id = g * kNoiseGroup + i;
            if (s + most_noise < winner.sum || !cut.keeps(s, id)) continue;
            const double total = s + noise(id);
            if (total > winner.sum || (total == winner.sum && id < winner.id)) winner = {id, s, total};
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
        return ChosenToken{TokenChoice<T>(row, p, seed, position).token(), row.best()};
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
