// IEEE binary16, bfloat16 and E8M0 conversions without instruction-set extensions.
// Round to nearest, ties to even, exactly as hardware conversions do.
#pragma once
#include <cstdint>
#include <cstring>

namespace outrider {

static inline float bits_to_float(uint32_t u) {
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}
static inline uint32_t float_to_bits(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    return u;
}

static inline float half_to_float(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
    if (exponent == 31) return bits_to_float(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0) return bits_to_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
    const float magnitude = float(mantissa) * 5.9604644775390625e-08f;  // subnormal: mantissa * 2^-24
    return sign ? -magnitude : magnitude;
}

static inline uint16_t float_to_half(float f) {
    const uint32_t u = float_to_bits(f), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // rounds to at least 65520: infinity
    if (magnitude < 0x38800000u) {  // subnormal result: let the float adder round at 2^-24
        const float rounded = bits_to_float(magnitude) + bits_to_float(0x3f000000u);
        return uint16_t(sign | (float_to_bits(rounded) - 0x3f000000u));
    }
    return uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}

static inline float bfloat_to_float(uint16_t h) { return bits_to_float(uint32_t(h) << 16); }

// Half of what an E8M0 byte of the OCP Microscaling formats stands for, 2^(e - 128): MXFP4's values are
// stored doubled. The two smallest are subnormal, and 255 is not NaN but 2^127, as in ggml.
constexpr uint32_t kE8M0HalfSubnormal = 0x00200000u;  // 2^-128
static inline float e8m0_half_to_float(uint8_t e) {
    return bits_to_float(e < 2 ? kE8M0HalfSubnormal << e : uint32_t(e - 1) << 23);
}

// E4M3 (OCP 8-bit floating point, the kind without infinities): its bits moved into a binary16 stand for its
// value divided by this. Its NaNs, 0x7f and 0xff, become 480 / kE4M3Factor: they must not occur.
constexpr float kE4M3Factor = 256.0f;
static inline uint16_t e4m3_to_half(uint8_t v) { return uint16_t((v & 0x80) << 8 | (v & 0x7f) << 7); }

}  // namespace outrider
