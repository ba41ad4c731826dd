// From one row of logits to one token: the fast path of src/outrider/decoding/sampler.py and rng.py, which
// are the specification.
//
// Everything here is a pure function of its arguments, with the same bits on every machine: IEEE double
// operations in a fixed order, and no libm. Against NumPy a logarithm or exponential may differ in its last
// place, and so may a sum: the token is another one only where two sums lie within about 1e-14 of each other.
#pragma once
#include <cstdint>

namespace outrider {

// The stages after the row is adjusted, as SamplingParams names them. temperature > 0; top_k <= 0, top_p >= 1
// and min_p <= 0 are off. position: index in the sequence of the token to be chosen. wide: use what vectors the
// processor has; the result is the same without.
struct SampleParams {
    double temperature, min_p, top_p;
    int64_t top_k;
    uint64_t seed, position;
    bool wide;
};

// best: the row's greatest value. When it is not finite (NaN if any value is) there is no token.
struct Choice {
    int64_t token;
    double best;
};

Choice choose_token(const float* row, int64_t size, const SampleParams& params);
Choice choose_token(const double* row, int64_t size, const SampleParams& params);

// Standard Gumbel noise of one token, as `gumbel` in rng.py.
double token_noise(uint64_t seed, uint64_t position, int64_t id);
// out[i] = e^scores[i], for scores in [-700, 0]
void token_masses(const double* scores, int64_t size, double* out);

}  // namespace outrider
