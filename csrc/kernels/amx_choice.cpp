// From how many tokens on tiles (amx.cpp) multiply a weight type, and up to where AVX-512's products do: what
// a measurement finds on this processor. Both give the same bits, so only time depends on it; where they do
// not, tiles are left alone.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <iterator>

#include "kernels/activation_buffer.h"
#include "kernels/kernels.h"
#include "memory/aligned.h"

namespace outrider {
namespace {

// Of each weight type, the fewest tokens of a pass whose products use tiles.
using Widths = std::array<int, std::size(kWeightTypes)>;
constexpr int kNever = 1 << 30;
// Tokens: the fewest that AVX-512 multiplies in pairs of panels, and then down to the fewest of amx.cpp.
constexpr int kTried[] = {kPairTokens, 32, 16};

// Some activations, in the token tiles of some kernels, and a product with them.
struct Trial {
    const Kernels& kernels;
    const Matrix& m;
    ActivationBuffer buffer;
    Aligned<float> results;
    double seconds = 1.0;  // of the fastest

    Trial(const Kernels& kernels_, const Matrix& matrix, int tokens)
        : kernels(kernels_), m(matrix), results(size_t(tokens) * size_t(matrix.rows)) {
        Activations& a = buffer.shape(tokens, m.columns, matrix_format(m), kernels);
        for (int t = 0; t < tokens; t++) {
            for (int c = 0; c < m.columns; c++) buffer.row(t)[c] = float((7 * t + 13 * c) % 31 - 15);
            kernels.quantize(a, t, 0, a.groups());
        }
    }
    void run() {
        using Clock = std::chrono::steady_clock;
        const Clock::time_point start = Clock::now();
        kernels.matmul(m, buffer.view(), 0, m.panels, {results.data(), size_t(m.rows), nullptr, false});
        seconds = std::min(seconds, std::chrono::duration<double>(Clock::now() - start).count());
    }
};

bool equal_bits(const Aligned<float>& a, const Aligned<float>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Bytes of packed weights, in which every float is finite, of 16 and of 32 bits.
void fill(uint8_t* packed, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) packed[i] = uint8_t((i * 2654435761u >> 11) & 0x1f);
}

// The fewest tokens from which on tiles are quicker, by a tenth at least, and right.
int measured_width(WeightType type) {
    constexpr int rows = 2 * kPanel, columns = 4 * kSuperblock, turns = 5, prefetched = 32768;
    const size_t bytes = packed_bytes(type, rows, columns);
    Aligned<uint8_t> packed(bytes + prefetched);
    fill(packed.data(), bytes);
    const Matrix m = view_matrix(type, rows, columns, packed.data(), bytes);
    int width = kNever;
    for (const int tokens : kTried) {
        Trial tiles(*amx_kernels(), m, tokens), products(*avx512_kernels(), m, tokens);
        for (int turn = 0; turn < turns; turn++) tiles.run(), products.run();
        if (!equal_bits(tiles.results, products.results)) return kNever;
        if (tiles.seconds > 0.9 * products.seconds) break;
        width = tokens;
    }
    return width;
}

const Widths& widths() {
    static const Widths found = [] {
        Widths each;
        for (const WeightTypeInfo& type : kWeightTypes)
            each[size_t(type.type)] = type.is_float ? kNever : measured_width(type.type);
        return each;
    }();
    return found;
}

void matmul(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out) {
    const bool tiles = a.tokens >= widths()[size_t(m.type)];
    (tiles ? amx_kernels() : avx512_kernels())->matmul(m, a, p0, p1, out);
}

}  // namespace

const Kernels* measured_amx_kernels() {
    static const bool pays = *std::min_element(widths().begin(), widths().end()) < kNever;
    static const Kernels table = [] {
        Kernels kernels = *amx_kernels();
        kernels.matmul = matmul;
        return kernels;
    }();
    return pays ? &table : nullptr;
}

}  // namespace outrider
