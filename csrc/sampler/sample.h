// Samples one token from one row of logits: the fast implementation of decoding/sampling/sampler.py and
// rng.py, which are the specification.
//
// Everything is a pure function of its arguments and gives the same bits on every machine: IEEE double
// operations in a fixed order, without libm. A logarithm, an exponential or a sum may differ from NumPy's in
// the last place, so the token can differ only if two candidates are within about 1e-14 of each other.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace outrider {

// The stages that follow penalties and biases, with the names of SamplingParams. temperature > 0. top_k <= 0,
// top_p >= 1 and min_p <= 0 are off. width: bytes of the widest vectors to use, if the processor has them (16
// is always supported); it does not change the result.
struct SampleParams {
    double temperature, min_p, top_p;
    int64_t top_k;
    int64_t width;
};

// best: the row's maximum. If it is not finite (it is NaN if any value is), there is no token.
struct ChosenToken {
    int64_t token = -1;
    double best = 0.0;
};

// position: index in the sequence of the token to be chosen.
ChosenToken choose_token(const float* row, int64_t size, const SampleParams& params, uint64_t seed,
                         uint64_t position);
ChosenToken choose_token(const double* row, int64_t size, const SampleParams& params, uint64_t seed,
                         uint64_t position);

// The distribution that tokens are sampled from: ascending ids and their probabilities. No ids means all ids
// of the row. best: as in ChosenToken; if it is not finite, size is 0.
struct Distribution {
    std::unique_ptr<int64_t[]> ids;
    std::unique_ptr<double[]> probs;
    int64_t size = 0;
    double best = 0.0;
};

Distribution token_distribution(const float* row, int64_t size, const SampleParams& params);
Distribution token_distribution(const double* row, int64_t size, const SampleParams& params);

// The probability of one token in that distribution, bit for bit, without computing the others. best: as in
// ChosenToken.
struct TokenProbability {
    double probability = 0.0, best = 0.0;
};

TokenProbability token_probability(const float* row, int64_t size, const SampleParams& params, int64_t token);
TokenProbability token_probability(const double* row, int64_t size, const SampleParams& params,
                                   int64_t token);

// The ids of a row that has values for a part of them only, by groups of 256 ids.
struct PartOfIds {
    // Throws std::invalid_argument unless `ids` ascend from 0 on.
    explicit PartOfIds(std::vector<int32_t> ids);

    std::vector<int32_t> ids, begins;  // begins: of each group's ids, and the end
    std::vector<uint32_t> groups;      // numbers of the groups that have any

    // The group of the id at this place, by its index in `groups`.
    int64_t group_of(int64_t place) const {
        return std::upper_bound(begins.begin(), begins.end(), place) - begins.begin() - 1;
    }
};

// The tokens that are drawn from one row one after the other, each without those before: what coupled drawing
// takes as siblings (drafters/confidence.py). At temperature 0 (which is allowed here), the likeliest ones.
class SiblingDraws {
  public:
    // The row is changed: what was drawn becomes -inf in it. part: the ids of its values; null for 0, 1, ….
    // params and part must outlive this.
    SiblingDraws(float* row, int64_t size, const PartOfIds* part, const SampleParams& params, uint64_t seed,
                 uint64_t position);
    ~SiblingDraws();

    // The next token; none is left where nothing finite is, or any value is NaN or +inf.
    std::optional<int64_t> next();
    // The difference of the first token's score, noise included, and of the last one's.
    double margin() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// Standard Gumbel noise of one token, as `gumbel` in rng.py.
double token_noise(uint64_t seed, uint64_t position, int64_t id);
// out[i] = e^scores[i], for scores in [-700, 0]
void token_masses(const double* scores, int64_t size, double* out);

}  // namespace outrider
