// Philox4x32-10 and the Gumbel noise made from it (decoding/sampling/rng.py defines which word is used for
// what), with a logarithm and an exponential of our own: libm's differ in the last place between libraries
// and processors.
#pragma once
#include <cstdint>
#include <cstring>

namespace outrider {
namespace {

constexpr int64_t kNoiseGroup = 256;  // ids whose earliest arrival comes from one Philox block
enum NoiseStream : uint32_t { kEarliest = 0, kPerId = 1 };

inline uint64_t double_bits(double x) {
    uint64_t b;
    std::memcpy(&b, &x, sizeof b);
    return b;
}
inline double bits_double(uint64_t b) {
    double x;
    std::memcpy(&x, &b, sizeof x);
    return x;
}

// ln 2 in two parts, the first with 21 zero bits at its end, so that small multiples of it are exact.
constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;

// Natural logarithm of a positive normal number, to about one unit in the last place. x = 2^k (1 + f) with
// 1 + f between sqrt(1/2) and sqrt(2); with s = f / (2 + f), log(1 + f) = 2 atanh(s) = f - s (f - r), r the
// tail 2/3 s^2 + 2/5 s^4 + ... of the series.
inline double natural_log(double x) {
    constexpr uint64_t sqrt_half = 0x3fe6a09e667f3bcd;
    const uint64_t bits = double_bits(x), above = bits - sqrt_half;
    const double k = double(int64_t(above) >> 52);
    const double f = bits_double(bits - (above & 0xfff0000000000000)) - 1.0;
    const double s = f / (2.0 + f), z = s * s;
    double r = 2.0 / 21;
    for (int odd = 19; odd >= 3; odd -= 2) r = 2.0 / odd + z * r;
    return k * kLn2High + (f + (k * kLn2Low - s * (f - z * r)));
}

// One double, or a vector of doubles.
struct Single {
    typedef double Reals;
    typedef uint64_t Bits;
};
template <int bytes>
struct Packed {
    typedef double Reals __attribute__((vector_size(bytes)));
    typedef int64_t Bits __attribute__((vector_size(bytes)));
};

// e^x for x in [-700, 0], to about one unit in the last place: x = n ln 2 + r with |r| at most half of ln 2,
// and e^r = 1 + r + r^2 p(r), where p has degree 9 and an error below 2^-55 (interpolated at Chebyshev
// nodes). Several numbers are computed together for speed; each result has the bits that it would have alone.
template <class Form, int N>
[[gnu::always_inline]] inline void replace_by_exp(typename Form::Reals (&x)[N]) {
    constexpr double shift = 0x1.8p52;  // adding it rounds to an integer, which is then in the low bits
    typename Form::Reals shifted[N], r[N], r2[N], r4[N], low[N], high[N];
    for (int j = 0; j < N; j++) shifted[j] = x[j] * 0x1.71547652b82fep0 + shift;
    for (int j = 0; j < N; j++) r[j] = shifted[j] - shift;
    for (int j = 0; j < N; j++) r[j] = (x[j] - r[j] * kLn2High) - r[j] * kLn2Low;
    for (int j = 0; j < N; j++) r2[j] = r[j] * r[j];
    for (int j = 0; j < N; j++) r4[j] = r2[j] * r2[j];
    for (int j = 0; j < N; j++) high[j] = 0x1.28917c89aa05dp-22 + r[j] * 0x1.af389ecfcbdafp-26;
    for (int j = 0; j < N; j++) low[j] = 0x1.a019b9149a3cep-16 + r[j] * 0x1.71de0db2f6ae9p-19;
    for (int j = 0; j < N; j++)
        low[j] = (0x1.6c16c17889ef1p-10 + r[j] * 0x1.a01a01a7c2efep-13) + r2[j] * low[j];
    for (int j = 0; j < N; j++) high[j] = low[j] + r4[j] * high[j];
    for (int j = 0; j < N; j++) low[j] = 0x1.5555555553d68p-5 + r[j] * 0x1.11111111109b5p-7;
    for (int j = 0; j < N; j++)
        low[j] = (0x1.0000000000001p-1 + r[j] * 0x1.5555555555556p-3) + r2[j] * low[j];
    for (int j = 0; j < N; j++) low[j] = low[j] + r4[j] * high[j];
    for (int j = 0; j < N; j++) low[j] = 1.0 + (r[j] + r2[j] * low[j]);
    for (int j = 0; j < N; j++) {
        typename Form::Bits exponent, bits;
        std::memcpy(&exponent, &shifted[j], sizeof exponent);
        std::memcpy(&bits, &low[j], sizeof bits);
        bits += exponent << 52;
        std::memcpy(&x[j], &bits, sizeof bits);
    }
}
inline double natural_exp(double x) {
    double one[1] = {x};
    replace_by_exp<Single>(one);
    return one[0];
}

// A random word as an exponential variable of rate 1.
inline double exponential(uint32_t word) { return -natural_log((double(word) + 0.5) * 0x1p-32); }

struct Noise {
    uint64_t seed, position;

    // The Philox blocks with these numbers, one in each lane: four words each.
    template <int N>
    void blocks(NoiseStream purpose, const uint32_t* numbers, uint32_t out[4][N]) const {
        uint32_t a[N], b[N], c[N], d[N];
        for (int i = 0; i < N; i++) {
            a[i] = numbers[i], b[i] = purpose;
            c[i] = uint32_t(position), d[i] = uint32_t(position >> 32);
        }
        uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
        for (int round = 0; round < 10; round++, k0 += 0x9E3779B9, k1 += 0xBB67AE85)
            for (int i = 0; i < N; i++) {
                const uint64_t p = uint64_t(a[i]) * 0xD2511F53, q = uint64_t(c[i]) * 0xCD9E8D57;
                a[i] = uint32_t(q >> 32) ^ b[i] ^ k0, b[i] = uint32_t(q);
                c[i] = uint32_t(p >> 32) ^ d[i] ^ k1, d[i] = uint32_t(p);
            }
        for (int i = 0; i < N; i++) out[0][i] = a[i], out[1][i] = b[i], out[2][i] = c[i], out[3][i] = d[i];
    }
};

// The earliest arrival among a group's ids, from the first two words of its Philox block.
struct Earliest {
    double time;
    int64_t holder;

    Earliest(int64_t group, uint32_t a, uint32_t b)
        : time(exponential(a) / double(kNoiseGroup)), holder(group * kNoiseGroup + b % kNoiseGroup) {}
    double noise() const { return -natural_log(time); }
};

// An upper bound of Earliest(.., a, ..).noise() without a logarithm: -log(u) >= 1 - u, and
// 1 - u = (2 (2^32 - a) - 1) / 2^33, rounded down to a power of two. The margin covers all rounding.
inline double noise_bound(uint32_t a) {
    const uint64_t odd = 2 * (0x100000000 - uint64_t(a)) - 1;
    return double(41 - (63 - __builtin_clzll(odd))) * 0.6931471805599453 + 1e-6;
}

// The noise of single ids of one group, in ascending order: four ids share a Philox block.
class IdNoise {
  public:
    IdNoise(const Noise& noise, const Earliest& earliest) : noise_(noise), earliest_(earliest) {}
    double operator()(int64_t id) {
        if (id == earliest_.holder) return earliest_.noise();
        if (id / 4 != quad_) {
            quad_ = id / 4;
            const uint32_t number = uint32_t(quad_);
            noise_.blocks<1>(kPerId, &number, words_);
        }
        return -natural_log(earliest_.time + exponential(words_[id % 4][0]));
    }

  private:
    const Noise& noise_;
    const Earliest& earliest_;
    int64_t quad_ = -1;
    uint32_t words_[4][1];
};

}  // namespace
}  // namespace outrider
