// How weights lie in memory once they are loaded (docs/kernels.md has pictures).
//
// A matrix of N rows and K columns is cut into panels of 16 rows. Inside a panel, columns are taken in slices
// of 4: a slice holds 16 rows x 4 columns, one 32-bit lane for each row, so that one vector instruction
// multiplies 16 rows by the same 4 activations. A row stays in its lane up to the result. Nothing is summed
// across lanes, so no result depends on the vector width.
//
//   q:      the integers, in lines of 64 bytes, for each group of 32 columns:
//           4 bits: line i (0..3) holds slice i in the low and slice i + 4 in the high nibbles.
//           3 bits: line i (0..2) holds slice i in bits 0 to 2 and slice i + 3 in bits 3 to 5; bits 6 and 7
//           of the three lines, joined from line 0 up, are slice 6 and, above it, slice 7. 2 bits: bits 2i,
//           2i + 1 of line h (0, 1) hold slice 2i + h. 5 bits: as 4 bits,
//           and one line more: bit s of byte j is the fifth bit of byte j of slice s. 6 bits: as 4 bits, and
//           two lines more: bits 2i, 2i + 1 of line h are the high bits of slice 4h + i. 8 bits: 8 lines, one
//           for each slice, of Q8_0 offset by 128.
//   scales: what turns integers into values, exactly as in the file (nothing is rounded).
//
// Float matrices hold the 16 values of each column of a panel one after another; those of 8 bits have scales.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/types.h"

namespace outrider {

// Increased with every change of the layout above, so that files of packed weights (engines/native/store.py)
// in another layout are not read.
constexpr int kLayoutVersion = 1;

class Slabs;  // memory/slabs.h

struct Matrix {
    WeightType type = WeightType::F32;
    int rows = 0, columns = 0, panels = 0;
    size_t q_stride = 0, scale_stride = 0;  // bytes from one panel to the next
    std::shared_ptr<uint8_t> memory;
    // Column i multiplies column order[i] of the input; null: column i. Kernels get inputs in this order.
    std::shared_ptr<const std::vector<int>> order;
    uint8_t* q = nullptr;
    uint8_t* scales = nullptr;

    size_t panel_bytes() const { return q_stride + scale_stride; }
    size_t bytes() const { return size_t(panels) * panel_bytes(); }
    size_t scales_at() const { return (size_t(panels) * q_stride + 63) / 64 * 64; }  // scales - q
    size_t packed_bytes() const { return scales_at() + size_t(panels) * scale_stride; }
};

size_t packed_bytes(WeightType type, int rows, int columns);  // of such a matrix

// Allocates a matrix. pack_panels() then fills panels [first, last) from the file's bytes; rows of the last
// panel that the matrix does not have become zero. Throws std::invalid_argument for columns that are not a
// multiple of the type's block.
Matrix make_matrix(WeightType type, int rows, int columns, Slabs& slabs);
void pack_panels(Matrix& m, const uint8_t* file, int first, int last);

// A matrix over packed_bytes() bytes that another matrix's q begins, aligned to 64. They are never written,
// and their owner must keep them for as long as the matrix lives.
Matrix view_matrix(WeightType type, int rows, int columns, const uint8_t* packed, size_t bytes);

// One row of the file's matrix as floats (embedding look-up).
void dequantize_row(WeightType type, const uint8_t* row, int columns, float* out);
size_t row_bytes(WeightType type, int columns);

}  // namespace outrider
