// The activations that a product reads, quantized, as the kernels see them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/types.h"

namespace outrider {

// Activations of n tokens: int8 with one float scale for each token and group of 32 columns, and the sums
// over columns that offsets and minimums are multiplied with. (One scale for 256 columns, as ggml's K-quants
// have it, loses precision to outliers: logits of a 135M model were off by 10% on average, against 2%.) Where
// K-quants read them (`superblocks`), a group's scale is its superblock's divided by 2^k
// (superblock_scale.h).
//
// Tokens are stored in token tiles of `tile_tokens`, and for each group the values of a tile's tokens are
// contiguous: a kernel finds them at fixed distances from one address, and reads memory from front to back.
struct Activations {
    int tokens = 0, columns = 0;
    int tile_tokens = 1;  // tokens of a token tile
    bool superblocks = false;
    const float* x = nullptr;     // [tokens][columns], the values before quantization
    int8_t* q = nullptr;          // [tiles][groups][tile_tokens][32]
    float* scale = nullptr;       // [tiles][groups][tile_tokens]
    int32_t* sum = nullptr;       // [tiles][groups][tile_tokens], sum of q over the group's columns
    float* scaled_sum = nullptr;  // [tiles][groups][tile_tokens], scale * sum
    // Only with `superblocks`, for what K-quants sum in integers (docs/kernels.md):
    float* superblock_scale = nullptr;  // [tiles][superblocks][tile_tokens]
    int32_t* shifts = nullptr;          // [tiles][groups][tile_tokens][2], 1 + k and 15 - k
    int32_t* rounding = nullptr;  // [tiles][groups][tile_tokens], added before a shift by 1 + k: half of what
                                  // it drops, minus 1 in odd groups
    int32_t* centred_start = nullptr;  // [tiles][groups][tile_tokens][2], rounding - 32 * the sum of q over
                                       // each half of the group (Q6_K, whose offset is 32)
    int16_t* min_sums_q3 = nullptr;  // [tiles][groups / 2][tile_tokens][2], sum * 2^-k with 3 fractional bits
    int16_t* half_sums_q4 = nullptr;  // [tiles][groups][tile_tokens][2], the sum of q over each half of the
                                      // group * 2^-k with 4 fractional bits; null unless Q2_K reads it

    // Divides the tokens into tiles of nearly equal size. A tile has at most `widest` tokens if all of them
    // make two such tiles or fewer, else at most `usual`.
    void shape(int tokens_, int columns_, int widest, int usual) {
        tokens = tokens_;
        columns = columns_;
        const int most = tokens <= 2 * widest ? widest : usual;
        const int count = (tokens + most - 1) / most;
        tile_tokens = tokens > 1 ? (tokens + count - 1) / count : 1;
    }
    int groups() const { return columns / kGroup; }
    int tiles() const { return (tokens + tile_tokens - 1) / tile_tokens; }
    // Groups of all tokens, with those that fill up the last tile.
    size_t cells() const { return size_t(tiles()) * size_t(tile_tokens) * size_t(groups()); }
    // Index into the arrays above that have one entry for every `groups_per_entry` groups.
    size_t at(int token, int group, int groups_per_entry = 1) const {
        const int tile = token / tile_tokens;
        return (size_t(tile) * size_t(groups() / groups_per_entry) + size_t(group / groups_per_entry)) *
                   size_t(tile_tokens) +
               size_t(token - tile * tile_tokens);
    }
};

}  // namespace outrider
