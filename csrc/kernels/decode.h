// The blocks of a file's weight types, read one at a time.
#pragma once
#include "kernels/types.h"
#include "memory/half.h"

namespace outrider {

inline uint16_t read16(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }

// A block of the file: its unsigned integers and its scales, still as the file encodes them.
struct Decoded {
    uint8_t q[kSuperblock];
    uint8_t scale[16], minimum[16];  // superblocks: integer factors of d (signed) and of dmin
    uint16_t d, m;                   // binary16, as in the file; of MXFP4, d is an exponent (E8M0)
    float wide_scale;                // of types with a zero point, in place of d
    uint8_t zero;
};

void decode(WeightType type, const uint8_t* block, Decoded& out);
// The scales and minimums of Q4_K and Q5_K: twelve bytes with integers of 6 bits.
void decode_k_scales(const uint8_t* bytes, Decoded& out);

// The scale of a block, as a float.
inline float block_scale(WeightType type, const Decoded& block) {
    if (info(type).has_zero_point) return block.wide_scale;
    return type == WeightType::MXFP4 ? e8m0_half_to_float(uint8_t(block.d)) : half_to_float(block.d);
}

}  // namespace outrider
