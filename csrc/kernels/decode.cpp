// Formats: ggml's, as the gguf package documents and decodes them, and those of types.h that it does not
// have.
#include "kernels/decode.h"

#include <cstring>
#include <stdexcept>
#include <utility>

#include "kernels/iq2_grids.h"
#include "kernels/iq3_grids.h"

namespace outrider {

void decode_k_scales(const uint8_t* s, Decoded& out) {
    for (int j = 0; j < 8; j++) {
        out.scale[j] = j < 4 ? s[j] & 63 : uint8_t((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        out.minimum[j] = j < 4 ? s[j + 4] & 63 : uint8_t((s[j + 4] >> 4) | (s[j] >> 6) << 4);
    }
}

namespace {

// 32 integers of 4 bits: column i in the low half of byte i, column i + 16 in its high half.
void decode_nibbles(const uint8_t* p, uint8_t* q) {
    for (int i = 0; i < 16; i++) {
        q[i] = p[i] & 15;
        q[i + 16] = p[i] >> 4;
    }
}

void decode_iq4_xs(const uint8_t* p, Decoded& out) {
    out.d = read16(p);
    const uint16_t high = read16(p + 2);
    for (int g = 0; g < kSuperblockGroups; g++) {
        const int low = p[4 + g / 2] >> (4 * (g % 2)) & 15;
        out.scale[g] = uint8_t((low | (high >> (2 * g) & 3) << 4) - 32);
        decode_nibbles(p + 8 + 16 * g, out.q + 32 * g);
    }
}

// 256 integers of 2 bits: a run of 128 columns is in 32 bytes, its column 32 j + l in bits 2j, 2j + 1 of byte
// l.
void decode_two_bits(const uint8_t* p, uint8_t* q) {
    for (int i = 0; i < kSuperblock; i++) q[i] = p[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3;
}

void decode_q3_k(const uint8_t* p, Decoded& out) {
    decode_two_bits(p + 32, out.q);
    for (int i = 0; i < kSuperblock; i++) out.q[i] |= uint8_t((p[i % 32] >> (i / 32) & 1) << 2);
    for (int i = 0; i < 16; i++) {
        const int low = p[96 + i % 8] >> (4 * (i / 8)) & 15, high = p[104 + i % 4] >> (2 * (i / 4)) & 3;
        out.scale[i] = uint8_t((low | high << 4) - 32);
    }
    out.d = read16(p + 108);
}

void decode_q2_k(const uint8_t* p, Decoded& out) {
    for (int i = 0; i < 16; i++) {
        out.scale[i] = p[i] & 15;
        out.minimum[i] = p[i] >> 4;
    }
    decode_two_bits(p + 16, out.q);
    out.d = read16(p + 80);
    out.m = read16(p + 82);
}

// Each byte holds 5 ternary digits as a fraction of 256: multiplied by 3, the next digit is what exceeds a
// byte. Runs of 160 and 80 columns are in 32 and 16 bytes, the last 16 columns in 4 bytes of 4 digits.
void decode_tq1_0(const uint8_t* p, Decoded& out) {
    uint8_t* q = out.q;
    for (const auto& [bytes, digits] : {std::pair{32, 5}, std::pair{16, 5}, std::pair{4, 4}}) {
        for (int i = 0; i < bytes; i++) {
            uint8_t fraction = p[i];
            for (int n = 0; n < digits; n++) {
                q[bytes * n + i] = uint8_t(fraction * 3 >> 8);
                fraction = uint8_t(fraction * 3);
            }
        }
        p += bytes;
        q += bytes * digits;
    }
    out.scale[0] = 1;
    out.d = read16(p);
}

// Four integers of IQ3: magnitudes from an entry of a grid, and signs from the lowest bits of `signs`.
void put_grid(uint16_t grid, int signs, uint8_t* q) {
    for (int i = 0; i < 4; i++) q[i] = uint8_t((grid >> (3 * i) & 7) | (signs >> i & 1) << 3);
}

// Eight signs of seven: the eighth makes the number of negative weights even.
int eight_signs(int seven) { return seven | __builtin_parity(unsigned(seven)) << 7; }

// A group has 8 grid entries, then, after those of all groups, 4 times 7 signs and a scale of 4 bits.
void decode_iq3_xxs(const uint8_t* p, Decoded& out) {
    out.d = read16(p);
    for (int g = 0; g < kSuperblockGroups; g++) {
        const uint8_t *entry = p + 2 + 8 * g, *rest = p + 66 + 4 * g;
        const uint32_t word = uint32_t(read16(rest)) | uint32_t(read16(rest + 2)) << 16;
        out.scale[g] = uint8_t(2 * (word >> 28) + 1);
        for (int i = 0; i < 4; i++) {
            const int signs = eight_signs(int(word >> (7 * i) & 127));
            put_grid(kIQ3XXSGrid[entry[2 * i]], signs, out.q + 32 * g + 8 * i);
            put_grid(kIQ3XXSGrid[entry[2 * i + 1]], signs >> 4, out.q + 32 * g + 8 * i + 4);
        }
    }
}

void decode_iq3_s(const uint8_t* p, Decoded& out) {
    out.d = read16(p);
    const uint8_t *low = p + 2, *high = p + 66, *signs = p + 74, *scales = p + 106;
    for (int i = 0; i < 64; i++) {
        const int entry = low[i] | (high[i / 8] >> (i % 8) & 1) << 8;
        put_grid(kIQ3SGrid[entry], signs[i / 2] >> (4 * (i % 2)), out.q + 4 * i);
    }
    for (int g = 0; g < kSuperblockGroups; g++)
        out.scale[g] = uint8_t(2 * (scales[g / 2] >> (4 * (g % 2)) & 15) + 1);
}

// Eight integers of IQ2: magnitudes from an entry of a grid, and signs.
void put_grid8(uint16_t grid, int signs, uint8_t* q) {
    for (int i = 0; i < 8; i++) q[i] = uint8_t((grid >> (2 * i) & 3) | (signs >> i & 1) << 2);
}

// A group has 4 grid entries, then 4 times 7 signs and a scale of 4 bits.
void decode_iq2_xxs(const uint8_t* p, Decoded& out) {
    out.d = read16(p);
    for (int g = 0; g < kSuperblockGroups; g++) {
        const uint8_t* entry = p + 2 + 8 * g;
        const uint32_t word = uint32_t(read16(entry + 4)) | uint32_t(read16(entry + 6)) << 16;
        out.scale[g] = uint8_t(2 * (word >> 28) + 1);
        for (int i = 0; i < 4; i++)
            put_grid8(kIQ2XXSGrid[entry[i]], eight_signs(int(word >> (7 * i) & 127)), out.q + 32 * g + 8 * i);
    }
}

// Of IQ2_XS and IQ2_S: 4 bits for each 16 columns.
void decode_half_scales(const uint8_t* p, Decoded& out) {
    for (int i = 0; i < 16; i++) out.scale[i] = uint8_t(2 * (p[i / 2] >> (4 * (i % 2)) & 15) + 1);
}

// A word is a grid entry of 9 bits and 7 signs.
void decode_iq2_xs(const uint8_t* p, Decoded& out) {
    out.d = read16(p);
    for (int i = 0; i < 32; i++) {
        const int word = read16(p + 2 + 2 * i);
        put_grid8(kIQ2XSGrid[word & 511], eight_signs(word >> 9), out.q + 8 * i);
    }
    decode_half_scales(p + 66, out);
}

void decode_iq2_s(const uint8_t* p, Decoded& out) {
    out.d = read16(p);
    const uint8_t *low = p + 2, *signs = p + 34, *high = p + 66;
    for (int i = 0; i < 32; i++)
        put_grid8(kIQ2SGrid[low[i] | (high[i / 4] >> (2 * (i % 4)) & 3) << 8], signs[i], out.q + 8 * i);
    decode_half_scales(p + 74, out);
}

}  // namespace

// A scale (float32), a zero point (a byte), then the integers: of 4 bits in runs of 32 columns.
static void decode_with_zero_point(const WeightTypeInfo& k, const uint8_t* p, Decoded& out) {
    std::memcpy(&out.wide_scale, p, 4);
    out.zero = p[4];
    if (k.bits == 8) {
        std::memcpy(out.q, p + 5, size_t(k.block_columns));
        return;
    }
    for (int g = 0; g < k.block_columns / kGroup; g++) decode_nibbles(p + 5 + 16 * g, out.q + kGroup * g);
}

void decode(WeightType type, const uint8_t* p, Decoded& out) {
    switch (type) {
        case WeightType::W4_32:
        case WeightType::W4_128:
        case WeightType::W8_32:
        case WeightType::W8_128:
            decode_with_zero_point(info(type), p, out);
            break;
        case WeightType::Q4_0:
        case WeightType::Q4_1:
        case WeightType::Q5_0:
        case WeightType::Q5_1: {
            const bool has_minimum = info(type).has_minimum;
            out.d = read16(p);
            out.m = has_minimum ? read16(p + 2) : 0;
            p += has_minimum ? 4 : 2;
            uint32_t high = 0;
            if (info(type).bits == 5) {
                std::memcpy(&high, p, 4);
                p += 4;
            }
            for (int i = 0; i < 16; i++) {
                out.q[i] = uint8_t((p[i] & 15) | ((high >> i & 1) << 4));
                out.q[i + 16] = uint8_t((p[i] >> 4) | ((high >> (i + 16) & 1) << 4));
            }
            break;
        }
        case WeightType::IQ4_NL:
            out.d = read16(p);
            decode_nibbles(p + 2, out.q);
            break;
        case WeightType::MXFP4:
            out.d = p[0];
            decode_nibbles(p + 1, out.q);
            break;
        case WeightType::IQ4_XS:
            decode_iq4_xs(p, out);
            break;
        case WeightType::Q3_K:
            decode_q3_k(p, out);
            break;
        case WeightType::Q2_K:
            decode_q2_k(p, out);
            break;
        case WeightType::TQ1_0:
            decode_tq1_0(p, out);
            break;
        case WeightType::TQ2_0:
            decode_two_bits(p, out.q);
            out.scale[0] = 1;
            out.d = read16(p + 64);
            break;
        case WeightType::IQ3_XXS:
            decode_iq3_xxs(p, out);
            break;
        case WeightType::IQ3_S:
            decode_iq3_s(p, out);
            break;
        case WeightType::IQ2_XXS:
            decode_iq2_xxs(p, out);
            break;
        case WeightType::IQ2_XS:
            decode_iq2_xs(p, out);
            break;
        case WeightType::IQ2_S:
            decode_iq2_s(p, out);
            break;
        case WeightType::Q3_0:  // quantize.h
            out.d = read16(p);
            for (int i = 0; i < 32; i++)
                out.q[i] = uint8_t((p[2 + i % 8] >> (2 * (i / 8)) & 3) | (p[10 + i / 8] >> (i % 8) & 1) << 2);
            break;
        case WeightType::Q8_0:
            out.d = read16(p);
            for (int i = 0; i < 32; i++) out.q[i] = uint8_t(p[2 + i] ^ 0x80);
            break;
        case WeightType::Q4_K:
        case WeightType::Q5_K: {
            out.d = read16(p);
            out.m = read16(p + 2);
            decode_k_scales(p + 4, out);
            const uint8_t* high = p + 16;
            const uint8_t* q = type == WeightType::Q5_K ? p + 48 : p + 16;
            for (int pair = 0; pair < 4; pair++)
                for (int l = 0; l < 32; l++) {
                    out.q[64 * pair + l] = q[32 * pair + l] & 15;
                    out.q[64 * pair + 32 + l] = q[32 * pair + l] >> 4;
                }
            if (type == WeightType::Q5_K)
                for (int g = 0; g < 8; g++)
                    for (int l = 0; l < 32; l++) out.q[32 * g + l] |= uint8_t((high[l] >> g & 1) << 4);
            break;
        }
        case WeightType::Q6_K: {
            const uint8_t *low = p, *high = p + 128;
            std::memcpy(out.scale, p + 192, 16);
            out.d = read16(p + 208);
            for (int half = 0; half < 2; half++)
                for (int quarter = 0; quarter < 4; quarter++)
                    for (int l = 0; l < 32; l++) {
                        const uint8_t nibbles = low[64 * half + 32 * (quarter % 2) + l];
                        const uint8_t top = high[32 * half + l] >> (2 * quarter) & 3;
                        out.q[128 * half + 32 * quarter + l] =
                            uint8_t((quarter < 2 ? nibbles & 15 : nibbles >> 4) | top << 4);
                    }
            break;
        }
        default:
            throw std::logic_error("decode: a float type");
    }
}

}  // namespace outrider
