// How weights lie in memory once they are loaded (docs/kernels.md has pictures).
//
// A matrix of N rows and K columns is cut into panels of 16 rows. Inside a panel, columns go in
// slices of 4: a slice holds 16 rows x 4 columns, one 32-bit lane a row, so that one vector
// instruction multiplies 16 rows by the same 4 activations. Rows are lanes all the way to the result;
// there is no sum across lanes, hence nothing whose order could depend on the vector width.
//
//   q:      the integers. Lines of 64 bytes. In a 4-bit group of 32 columns, line i (0..3) holds slice
//           i in the low and slice i + 4 in the high nibbles. In a 3-bit group, line i (0..2) holds slice i
//           in bits 0 to 2 and slice i + 3 in bits 3 to 5; bits 6 and 7 of the three lines, joined from line
//           0 up, are slice 6 and, above it, slice 7. 5-bit types add one line a group to those of 4 bits:
//           bit s of byte j is the fifth bit of byte j of slice s. 6-bit types add two: bits 2i, 2i + 1 of
//           line h are the high bits of slice 4h + i. 8-bit types have 8 lines, one a slice, offset by 128.
//   scales: what turns integers into values, exactly as in the file (no rounding anywhere).
//
// Float matrices hold, for each column of a panel, 16 values one after the other.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace outrider {

// Counts up with every change of what follows, so that files of packed weights (engines/native/store.py) are
// not read in another layout than theirs.
constexpr int kLayoutVersion = 1;

constexpr int kPanel = 16;        // rows
constexpr int kGroup = 32;        // columns that share a scale (16 in Q6_K)
constexpr int kSuperblock = 256;  // columns of a K-quant superblock
constexpr int kParts = kSuperblock / kGroup;
// Tokens, at most, whose activations lie together, and of many: ten in a tile cost less than eight and two,
// but no less for each than eight, of which sums and weights leave registers free.
constexpr int kBundle = 10, kUsualBundle = 8;

// ggml's types, and Q3_0, which is no file's: like Q4_0 with three bits, for draft models (quantize.h).
enum class Kind : uint8_t { F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, Q3_0 };

struct KindInfo {
    const char* name;
    int block_columns;     // of the file's format
    int block_bytes;       // of the file's format
    size_t q_group_bytes;  // of a panel, for 32 columns
    size_t scale_bytes;    // of a panel, for 256 columns (K-quants) or 32 (others)
    bool is_float;
};
const KindInfo& info(Kind kind);
Kind kind_by_name(const std::string& name);  // throws std::invalid_argument

class Slabs;  // slabs.h

struct FreeAligned {
    void operator()(uint8_t* p) const;
};
using Bytes = std::unique_ptr<uint8_t[], FreeAligned>;
Bytes allocate(size_t bytes);  // 64-byte aligned (2 MiB and huge pages when large), not cleared

struct Matrix {
    Kind kind = Kind::F32;
    int rows = 0, columns = 0, panels = 0;
    size_t q_stride = 0, scale_stride = 0;  // bytes from one panel to the next
    std::shared_ptr<uint8_t> memory;
    uint8_t* q = nullptr;
    uint8_t* scales = nullptr;

    size_t panel_bytes() const { return q_stride + scale_stride; }
    size_t bytes() const { return size_t(panels) * panel_bytes(); }
    size_t scales_at() const { return (size_t(panels) * q_stride + 63) / 64 * 64; }  // scales - q
    size_t packed_bytes() const { return scales_at() + size_t(panels) * scale_stride; }
};

size_t packed_bytes(Kind kind, int rows, int columns);  // of such a matrix

// Lays out the memory for `rows` x `columns`; pack_panels then fills panels [first, last) from the file's
// bytes. Rows beyond the last one are zero.
Matrix make_matrix(Kind kind, int rows, int columns, Slabs& slabs);
// The same over packed_bytes() bytes from another matrix's q on, aligned to 64. They are never written, and
// whoever owns them keeps them for as long as the matrix lives.
Matrix view_matrix(Kind kind, int rows, int columns, const uint8_t* packed, size_t bytes);
void pack_panels(Matrix& m, const uint8_t* file, int first, int last);

// One row of the file's matrix as floats (embedding look-up).
void dequantize_row(Kind kind, const uint8_t* row, int columns, float* out);
size_t row_bytes(Kind kind, int columns);

// Activations of n tokens, quantized: int8 with one float scale a token and 32 columns, and the sums over
// columns that offsets and minimums are multiplied with. (One scale for 256 columns, as ggml's K-quants have
// it, let one outlier blur 255 neighbours: logits of a 135M model were off by 10% on average, against 2%.)
// Where K-quants read them (`blocks`) a group's scale is its superblock's, divided by 2^k (block_scale.h).
//
// Tokens go in bundles of `pitch`, and what a group has of a bundle lies together: a tile of its tokens finds
// all that it needs at fixed distances from one place, and goes through memory from front to back.
struct Activations {
    int tokens = 0, columns = 0;
    int pitch = 1;  // tokens of a bundle
    bool blocks = false;
    const float* x = nullptr;  // [tokens][columns], the floats themselves
    int8_t* q = nullptr;       // [bundles][groups][pitch][32]
    float* scale = nullptr;    // [bundles][groups][pitch]
    int32_t* sum = nullptr;    // [bundles][groups][pitch], the integers' sums over 32 columns
    float* scaled = nullptr;   // [bundles][groups][pitch], scale * sum
    // With `blocks`, for what K-quants sum in integers (docs/kernels.md):
    float* whole = nullptr;     // [bundles][superblocks][pitch], the superblock's scale
    int32_t* shifts = nullptr;  // [bundles][groups][pitch][2], 1 + k and 15 - k
    int32_t* round =
        nullptr;  // [bundles][groups][pitch], half of what a shift by 1 + k drops, by turns a bit less
    int32_t* centre =
        nullptr;  // [bundles][groups][pitch][2], round - 32 * the sums over 16 columns (for Q6_K)
    int16_t* eighths = nullptr;  // [bundles][groups / 2][pitch][2], sum * 2^(3 - k), rounded

    void shape(int tokens_, int columns_) {  // in bundles of nearly equal size
        tokens = tokens_;
        columns = columns_;
        const int most = tokens <= 2 * kBundle ? kBundle : kUsualBundle;
        const int count = (tokens + most - 1) / most;
        pitch = tokens > 1 ? (tokens + count - 1) / count : 1;
    }
    int groups() const { return columns / kGroup; }
    int bundles() const { return (tokens + pitch - 1) / pitch; }
    size_t cells() const { return size_t(bundles()) * size_t(pitch) * size_t(groups()); }
    // of what there is once for every `per` groups
    size_t at(int token, int group, int per = 1) const {
        const int bundle = token / pitch;
        return (size_t(bundle) * size_t(groups() / per) + size_t(group / per)) * size_t(pitch) +
               size_t(token - bundle * pitch);
    }
};

}  // namespace outrider
