// Products of every weight type, compared for kernels_check.
#include "memory/half.h"
#include "memory/slabs.h"
#include "tests/comparison.h"

namespace outrider {
namespace {

// Where in a block of the file the scale is, and after it the minimum.
size_t place_of_scale(WeightType type) {
    switch (type) {
        case WeightType::Q6_K:
            return 208;
        case WeightType::Q3_K:
            return 108;
        case WeightType::Q2_K:
            return 80;
        case WeightType::TQ1_0:
            return 52;
        case WeightType::TQ2_0:
            return 64;
        default:
            return 0;
    }
}

// A file's matrix of random integers, with scales that are small and finite.
std::vector<uint8_t> random_file(WeightType type, int rows, int columns) {
    std::vector<uint8_t> file(size_t(rows) * row_bytes(type, columns));
    for (uint8_t& b : file) b = uint8_t(pick(0, 255));
    const WeightTypeInfo& k = info(type);
    const auto put16 = [&](size_t at, uint16_t v) { std::memcpy(file.data() + at, &v, 2); };
    for (size_t at = 0; at < file.size(); at += size_t(k.block_bytes)) {
        if (k.is_float && k.scale_columns) {
            const float scale = 0.01f * normal();
            std::memcpy(file.data() + at, &scale, 4);
            for (int i = 4; i < k.block_bytes; i++)  // no NaN
                if ((file[at + size_t(i)] & 0x7f) == 0x7f) file[at + size_t(i)] = 0;
            continue;
        }
        if (k.is_float) {
            const float v = normal();
            if (type == WeightType::F32)
                std::memcpy(file.data() + at, &v, 4);
            else
                put16(at, type == WeightType::F16 ? float_to_half(v) : uint16_t(float_to_bits(v) >> 16));
            continue;
        }
        if (type == WeightType::MXFP4) {  // about 2^-8, and the exponents below the normal numbers
            file[at] = uint8_t(pick(0, 9) ? pick(110, 126) : pick(0, 2));
            continue;
        }
        if (k.has_zero_point) {
            const float scale = 0.01f * normal();
            std::memcpy(file.data() + at, &scale, 4);
            if (k.bits == 4) file[at + 4] = uint8_t(pick(0, 15));
            continue;
        }
        const size_t d = at + place_of_scale(type);
        put16(d, float_to_half(0.01f * normal()));
        if (k.has_minimum) put16(d + 2, float_to_half(0.1f * normal()));
    }
    return file;
}

void check_matmul(const Kernels& oracle, const Kernels& kernels, WeightType type, int rows, int columns,
                  int tokens) {
    const WeightTypeInfo& k = info(type);
    Slabs slabs;
    Matrix m = make_matrix(type, rows, columns, slabs);
    const std::vector<uint8_t> file = random_file(type, rows, columns);
    pack_panels(m, file.data(), 0, m.panels);
    Buffer in(tokens, columns, activation_format({&m}), kernels, floats(size_t(tokens) * columns));
    Activations& a = in.view();
    if (!k.is_float)
        for (int t = 0; t < tokens; t++) oracle.quantize(a, t, 0, a.groups());
    const bool add = pick(0, 1), biased = pick(0, 1);
    const int first = pick(0, m.panels - 1), last = pick(0, 2) ? m.panels : pick(first + 1, m.panels);
    const int begin = pick(0, 1) ? first * kPanel : 0;
    const size_t stride = size_t(rows - begin) + size_t(pick(0, 5));
    const std::vector<float> bias = floats(size_t(rows)), before = floats(size_t(tokens) * stride);
    const auto run = [&](const Kernels& table) {
        std::vector<float> out = before;
        table.matmul(m, a, first, last,
                     MatmulOut{out.data(), stride, biased ? bias.data() : nullptr, add, begin});
        return out;
    };
    same(std::string("matmul ") + k.name + " " + std::to_string(rows) + " x " + std::to_string(columns) +
             ", " + std::to_string(tokens) + " tokens, panels " + std::to_string(first) + " to " +
             std::to_string(last),
         run(oracle), run(kernels));
}

}  // namespace

void check_matmuls(const Kernels& oracle, const Kernels& kernels) {
    for (const WeightTypeInfo& row : kWeightTypes) {
        const WeightType type = row.type;
        const int block = row.block_columns;
        for (int tokens = 1; tokens <= 20; tokens++)
            for (int rows : {1, 16, 23, 48}) {
                const int blocks = block >= 128 ? pick(1, 3) : block == 32 ? pick(1, 11) : pick(1, 99);
                check_matmul(oracle, kernels, type, rows, block * blocks, tokens);
            }
        check_matmul(oracle, kernels, type, 40, block == 1 ? 1000 : 2304, 5);
        for (int tokens : {21, 45, 290})  // token tiles of their usual width, and many
            check_matmul(oracle, kernels, type, 23, block >= 128 ? block : block * pick(1, 11), tokens);
        for (int tokens : {kPairTokens - 1, kPairTokens, kPairTokens + 13})
            for (int rows : {32, 55})
                check_matmul(oracle, kernels, type, rows, block * (block < 128 ? pick(1, 11) : 1), tokens);
    }
}

}  // namespace outrider
