// Quantizes floats to the blocks of ggml's Q8_0, Q6_K, Q4_K and Q4_0 and of our own Q3_0, for models that are
// quantized at load.
//
// Q3_0, 14 bytes for 32 values d * (q - 4): d in binary16, then bits 0 and 1 of value i at bits 2 (i / 8) of
// byte i % 8, then bit 2 of value i at bit i % 8 of byte i / 8.
#pragma once
#include "kernels/matrix.h"

namespace outrider {

bool can_quantize(WeightType type);

// Quantizes one row of `columns` floats (a multiple of the type's block) to row_bytes(type, columns) bytes,
// the same bytes on every machine. Returns false if a value is not finite or has a magnitude above 3e6 (4e5
// for Q4_0, 1.5e5 for Q3_0). Throws std::invalid_argument for a type that can_quantize refuses.
bool quantize_row(WeightType type, const float* x, int columns, uint8_t* out);

}  // namespace outrider
