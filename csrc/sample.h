// From one row of logits to one token: the fast path of src/outrider/decoding/sampler.py and rng.py, which
// are the specification.
//
// Everything here is a pure function of its arguments, computed by one code path whatever the machine: IEEE
// double operations in a fixed order, no libm, no threads, no instruction set chosen at run time.
#pragma once
#include <cstdint>

namespace outrider {

// The stages after the row is adjusted, as SamplingParams names them. temperature 0 is greedy; top_k <= 0,
// top_p >= 1 and min_p <= 0 are off. position: index in the sequence of the token to be chosen.
struct SampleParams {
    double temperature, min_p, top_p;
    int64_t top_k;
    uint64_t seed, position;
};

// best: the row's greatest value. When it is not finite (NaN if any value is) there is no token.
struct Choice {
    int64_t token;
    double best;
};

// Values that replace the row's own: `ids` strictly ascending and inside the row. `only`: every other token
// is ruled out.
struct Changes {
    const int64_t* ids;
    const double* values;
    int64_t size;
    bool only;
};

Choice choose_token(const float* row, int64_t size, const Changes& changes, const SampleParams& params);
Choice choose_token(const double* row, int64_t size, const Changes& changes, const SampleParams& params);

// Standard Gumbel noise of one token, as `gumbel` in rng.py.
double token_noise(uint64_t seed, uint64_t position, int64_t id);
// out[i] = e^scores[i], for scores in [-700, 0]
void token_masses(const double* scores, int64_t size, double* out);

}  // namespace outrider
