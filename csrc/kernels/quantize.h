// From floats to the blocks of ggml's Q8_0, Q6_K, Q4_K and Q4_0 and of our own Q3_0, for models that are
// quantized when they are loaded.
//
// Q3_0, 14 bytes for 32 values d * (q - 4): d in binary16, then bits 0 and 1 of value i at bits 2 (i / 8) of
// byte i % 8, then bit 2 of value i at bit i % 8 of byte i / 8.
#pragma once
#include "kernels/layout.h"

namespace outrider {

bool can_quantize(Kind kind);

// One row of `columns` floats (a multiple of the type's block) into row_bytes(kind, columns) bytes. The same
// bytes on every machine. Returns false when a value is not finite or larger than 3e6 (4e5 for Q4_0, 1.5e5
// for Q3_0). Throws std::invalid_argument for a kind that can_quantize refuses.
bool quantize_row(Kind kind, const float* x, int columns, uint8_t* out);

}  // namespace outrider
