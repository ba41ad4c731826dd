// The kernels of avxvnni.cpp with AVX2's instructions in place of vpdpbusd, for kernels_check on processors
// that lack it, in tiles of one and two tokens.
#define OUTRIDER_EMULATED_AVXVNNI
#define avxvnni_kernels emulated_avxvnni_kernels
#include "kernels/avxvnni.cpp"
