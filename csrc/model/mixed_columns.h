// What is done to queries and keys where keys are held in bytes (CacheType::q8_0).
#pragma once

namespace outrider {

// The columns of a head that are mixed with one another: the largest power of two, up to 128, that divides
// it.
inline int mixed_columns(int head_dim) {
    int n = 16;
    while (n < 128 && head_dim % (2 * n) == 0) n *= 2;
    return n;
}

// The Walsh-Hadamard transform of these columns: the product of two mixed vectors is n times that of the
// vectors, and to mix again gives n times the vector. Some models have columns that are far larger than their
// neighbours, with which they share a scale: this spreads them (QuaRot, Ashkboos et al. 2024).
inline void mix_columns(float* x, int head_dim) {
    const int n = mixed_columns(head_dim);
    for (int first = 0; first < head_dim; first += n, x += n)
        for (int apart = 1; apart < n; apart *= 2)
            for (int i = 0; i < n; i += 2 * apart)
                for (int j = i; j < i + apart; j++) {
                    const float a = x[j], b = x[j + apart];
                    x[j] = a + b;
                    x[j + apart] = a - b;
                }
}

}  // namespace outrider
