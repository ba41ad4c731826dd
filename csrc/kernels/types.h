// The weight types: one row of facts for each. Packing, kernels (at compile time) and Python
// (`_core.weight_types()`) read this table and have no lists of their own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace outrider {

constexpr int kPanel = 16;        // rows of a matrix that are packed together
constexpr int kGroup = 32;        // columns whose activations share a scale
constexpr int kSuperblock = 256;  // columns of a K-quant's superblock
constexpr int kSuperblockGroups = kSuperblock / kGroup;

// ggml's types; Q3_0, which no file holds: like Q4_0 with three bits, for draft models (quantize.h); and
// those that Hugging Face's quantized folders are turned into (models/formats/hf_quantized.py): W4 and W8,
// integers of 4 and 8 bits with a zero point; F8, floats of 8 bits (E4M3) with a scale. Their names end with
// the columns that share a scale. The order is the table's below.
enum class WeightType : uint8_t {
    // clang-format off
    F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, Q3_0, IQ4_NL, IQ4_XS, MXFP4,
    Q3_K, Q2_K, TQ1_0, TQ2_0, IQ3_XXS, IQ3_S, W4_32, W4_128, W8_32, W8_128,
    F8_32, F8_128, IQ2_XXS, IQ2_XS, IQ2_S,
    // clang-format on
};

// The values that a packed integer of 4 bits (IQ2: 3 bits) stands for, times 2^fraction_bits. Those of IQ3
// and IQ2 are a magnitude and, in the highest bit, a sign.
constexpr int8_t kIQ4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kFP4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr int8_t kIQ3XXSValues[16] = {2, 6, 10, 14, 18, 22, 26, 31, -2, -6, -10, -14, -18, -22, -26, -31};
constexpr int8_t kIQ3SValues[16] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
constexpr int8_t kIQ2Values[16] = {8, 25, 43, 0, -8, -25, -43, 0};

// A weight is scale * (q - offset), or with has_minimum scale * q + minimum (of K-quants scale * q -
// minimum), where q is an unsigned integer. With a codebook, a weight is scale * codebook[q], and offset is
// what makes all of the codebook's values positive. With has_zero_point it is scale * (q - zero), where scale
// is a float32 and zero an unsigned byte. Floats are their own values, those of F8 times a float32.
struct WeightTypeInfo {
    WeightType type;
    const char* name;
    int block_columns;  // columns that one block of the file's format holds
    int block_bytes;    // its bytes in the file
    int bits;           // of a packed weight
    int scale_columns;  // columns that share a scale; 0 of floats without one
    int scale_bytes;    // what is packed for the scales of a panel's 16 rows and one block
    int offset;
    int extra_shift;  // superblocks: right shift, beyond 1, that makes a group's sum fit 16 bits
    bool is_float, is_superblock, has_minimum;
    const int8_t* codebook = nullptr;  // [16]
    int fraction_bits = 0;             // kernels compute with integers so many bits larger, for precise sums
    bool has_zero_point = false;

    // Minimums are multiplied by sums over 16 columns.
    constexpr bool has_half_minimums() const { return has_minimum && scale_columns == kGroup / 2; }

    constexpr size_t group_bytes() const { return size_t(kPanel) * kGroup * size_t(bits) / 8; }  // packed
};

// clang-format off
static constexpr WeightTypeInfo kWeightTypes[] = {
    // type               name   block: columns, bytes  bits  scale: columns, bytes  offset  shift  float  super  min
    {WeightType::F32,  "F32",      1,   4,  32,   0,       0,    0, 0,  true, false, false},
    {WeightType::F16,  "F16",      1,   2,  16,   0,       0,    0, 0,  true, false, false},
    {WeightType::BF16, "BF16",     1,   2,  16,   0,       0,    0, 0,  true, false, false},
    {WeightType::Q4_0, "Q4_0",    32,  18,   4,  32,      32,    8, 0, false, false, false},
    {WeightType::Q4_1, "Q4_1",    32,  20,   4,  32, 32 + 32,    0, 0, false, false,  true},
    {WeightType::Q5_0, "Q5_0",    32,  22,   5,  32,      32,   16, 0, false, false, false},
    {WeightType::Q5_1, "Q5_1",    32,  24,   5,  32, 32 + 32,    0, 0, false, false,  true},
    {WeightType::Q8_0, "Q8_0",    32,  34,   8,  32,      32,  128, 0, false, false, false},
    {WeightType::Q4_K, "Q4_K",   256, 144,   4,  32, 64 + 256,   0, 0, false,  true,  true},
    {WeightType::Q5_K, "Q5_K",   256, 176,   5,  32, 64 + 256,   0, 1, false,  true,  true},
    {WeightType::Q6_K, "Q6_K",   256, 210,   6,  16, 32 + 256,  32, 0, false,  true, false},
    {WeightType::Q3_0, "Q3_0",    32,  14,   3,  32,      32,    4, 0, false, false, false},
    {WeightType::IQ4_NL, "IQ4_NL", 32,  18,  4,  32,      32,  128, 0, false, false, false, kIQ4Values},
    {WeightType::IQ4_XS, "IQ4_XS", 256, 136, 4,  32, 32 + 128, 128, 3, false,  true, false, kIQ4Values},
    {WeightType::MXFP4,  "MXFP4",  32,  17,  4,  32,      16,   16, 0, false, false, false, kFP4Values},
    {WeightType::Q3_K,   "Q3_K",  256, 110,  3,  16, 32 + 256,   4, 0, false,  true, false, nullptr, 3},
    {WeightType::Q2_K,   "Q2_K",  256,  84,  2,  16, 64 + 256,   0, 0, false,  true,  true, nullptr, 3},
    {WeightType::TQ1_0,  "TQ1_0", 256,  54,  2, 256,      32,    1, 0, false,  true, false, nullptr, 3},
    {WeightType::TQ2_0,  "TQ2_0", 256,  66,  2, 256,      32,    1, 0, false,  true, false, nullptr, 3},
    {WeightType::IQ3_XXS, "IQ3_XXS", 256, 98, 4, 32, 32 + 128,  16, 1, false,  true, false, kIQ3XXSValues, 1},
    {WeightType::IQ3_S,  "IQ3_S", 256, 110,  4,  32, 32 + 128,  16, 0, false,  true, false, kIQ3SValues},
    {WeightType::W4_32,  "W4_32",  32,  21,  4,  32, 64 + 16,    0, 0, false, false, false, nullptr, 0, true},
    {WeightType::W4_128, "W4_128", 128, 69,  4, 128, 64 + 16,    0, 0, false, false, false, nullptr, 0, true},
    {WeightType::W8_32,  "W8_32",  32,  37,  8,  32, 64 + 16,    0, 0, false, false, false, nullptr, 0, true},
    {WeightType::W8_128, "W8_128", 128, 133, 8, 128, 64 + 16,    0, 0, false, false, false, nullptr, 0, true},
    {WeightType::F8_32,  "F8_32",  32,  36,  8,  32,      64,    0, 0,  true, false, false},
    {WeightType::F8_128, "F8_128", 128, 132, 8, 128,      64,    0, 0,  true, false, false},
    {WeightType::IQ2_XXS, "IQ2_XXS", 256, 66, 3, 32, 32 + 128,   6, 2, false,  true, false, kIQ2Values, 3},
    {WeightType::IQ2_XS, "IQ2_XS", 256, 74,  3,  16, 32 + 256,   8, 1, false,  true, false, kIQ2Values, 3},
    {WeightType::IQ2_S,  "IQ2_S", 256,  82,  3,  16, 32 + 256,   8, 1, false,  true, false, kIQ2Values, 3},
};
// clang-format on

static constexpr const WeightTypeInfo& info(WeightType type) { return kWeightTypes[int(type)]; }

static constexpr bool in_order_of_types() {
    int i = 0;
    for (const WeightTypeInfo& row : kWeightTypes)
        if (int(row.type) != i++) return false;
    return true;
}
static_assert(in_order_of_types());

// Throws std::invalid_argument for a name that is not in the table.
WeightType weight_type_by_name(const std::string& name);

}  // namespace outrider
