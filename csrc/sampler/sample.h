// From one row of logits to one token: the fast path of src/outrider/decoding/sampler.py and rng.py, which
// are the specification.
//
// Everything here is a pure function of its arguments, with the same bits on every machine: IEEE double
// operations in a fixed order, and no libm. Against NumPy a logarithm or exponential may differ in its last
// place, and so may a sum: the token is another one only where two sums lie within about 1e-14 of each other.
#pragma once
#include <cstdint>
#include <memory>

namespace outrider {

// The stages after the row is adjusted, as SamplingParams names them. temperature > 0; top_k <= 0, top_p >= 1
// and min_p <= 0 are off. width: bytes of the widest vectors to use if the processor has them (16 is always
// there); the result is the same with any.
struct SampleParams {
    double temperature, min_p, top_p;
    int64_t top_k;
    int64_t width;
};

// best: the row's greatest value. When it is not finite (NaN if any value is) there is no token.
struct Choice {
    int64_t token = -1;
    double best = 0.0;
};

// position: index in the sequence of the token to be chosen.
Choice choose_token(const float* row, int64_t size, const SampleParams& params, uint64_t seed,
                    uint64_t position);
Choice choose_token(const double* row, int64_t size, const SampleParams& params, uint64_t seed,
                    uint64_t position);

// The distribution that tokens are drawn from: ascending ids and their probabilities. No ids means every id
// of the row. best is as in Choice; when it is not finite, size is 0.
struct Spread {
    std::unique_ptr<int64_t[]> ids;
    std::unique_ptr<double[]> probs;
    int64_t size = 0;
    double best = 0.0;
};

Spread token_distribution(const float* row, int64_t size, const SampleParams& params);
Spread token_distribution(const double* row, int64_t size, const SampleParams& params);

// One token's probability in it, the very number, without the others'. best is as in Choice.
struct Chance {
    double probability = 0.0, best = 0.0;
};

Chance token_probability(const float* row, int64_t size, const SampleParams& params, int64_t token);
Chance token_probability(const double* row, int64_t size, const SampleParams& params, int64_t token);

// Standard Gumbel noise of one token, as `gumbel` in rng.py.
double token_noise(uint64_t seed, uint64_t position, int64_t id);
// out[i] = e^scores[i], for scores in [-700, 0]
void token_masses(const double* scores, int64_t size, double* out);

}  // namespace outrider
