// Instruction sets that this processor lacks, for kernels_check.
#pragma once
#include "kernels/kernels.h"

namespace outrider {

const Kernels* emulated_avxvnni_kernels();  // null where AVX2 is not compiled

// From now on, a tile instruction that amx.cpp uses and this processor refuses is done by a signal handler.
// So what runs is the same machine code, and its encodings and configuration are checked with it. False where
// this cannot be.
bool emulate_tiles();

extern bool g_emulated_tiles_drop_a_column;  // to test the comparison

}  // namespace outrider
