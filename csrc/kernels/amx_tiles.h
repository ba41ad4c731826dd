// AMX's tile registers: their configuration, and the one product that amx.cpp needs of them. (All in
// assembly: the intrinsics of some versions of GCC do not tell the compiler that they read memory.)
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/types.h"

namespace outrider {
namespace {

constexpr int kTileRows = 16;                  // of a tile register, and so tokens of a product
constexpr int kTileSums = kTileRows * kPanel;  // of one product, int32: [tokens][16]

// The calling thread's tiles while this lives, for products of `tokens` tokens and `columns` columns (of
// these a multiple of 4). They are released afterwards, because the system saves tiles that are in use
// whenever it switches to another thread.
//
// Tiles 0 and 1 hold activations, 2 and 3 weights, 4 and 5 sums: two sets, so that a product begins before
// the one before is stored.
class Tiles {
  public:
    Tiles(int tokens, int columns) {
        for (int set = 0; set < 2; set++) {
            shape(set, tokens, columns);
            shape(2 + set, columns / 4, 4 * kPanel);
            shape(4 + set, tokens, 4 * kPanel);
        }
        asm volatile("ldtilecfg %0" : : "m"(configuration_));
    }
    Tiles(const Tiles&) = delete;
    ~Tiles() { asm volatile("tilerelease"); }

    // sums[token][row] = the sum over columns of a[token][column] * weights[column / 4][row][column % 4], of
    // signed bytes. Activations are kGroup bytes apart from token to token.
    template <int SET>
    inline __attribute__((always_inline)) void multiply(const int8_t* a, const uint8_t* weights,
                                                        int32_t* sums) const {
#define OUTRIDER_TILE_PRODUCT(a_tile, w_tile, sum_tile)                                                     \
    asm volatile("tilezero %%" sum_tile "\n\ttileloadd (%0,%3,1), %%" a_tile                                \
                 "\n\ttileloadd (%1,%4,1), %%" w_tile "\n\ttdpbssd %%" w_tile ", %%" a_tile ", %%" sum_tile \
                 "\n\ttilestored %%" sum_tile ", (%2,%4,1)"                                                 \
                 :                                                                                          \
                 : "r"(a), "r"(weights), "r"(sums), "r"(size_t(kGroup)), "r"(size_t(4 * kPanel))            \
                 : "memory")
        if constexpr (SET == 0)
            OUTRIDER_TILE_PRODUCT("tmm0", "tmm2", "tmm4");
        else
            OUTRIDER_TILE_PRODUCT("tmm1", "tmm3", "tmm5");
#undef OUTRIDER_TILE_PRODUCT
    }

  private:
    void shape(int tile, int rows, int row_bytes) {
        configuration_.rows[tile] = uint8_t(rows);
        configuration_.row_bytes[tile] = uint16_t(row_bytes);
    }

    struct alignas(64) Configuration {  // as ldtilecfg reads it
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
    };
    static_assert(sizeof(Configuration) == 64);
    Configuration configuration_;
};

}  // namespace
}  // namespace outrider
