// From the file's blocks to the panels of matrix.h. Runs once at load; portable code.
#include <algorithm>
#include <cstring>

#include "kernels/decode.h"
#include "kernels/matrix.h"

namespace outrider {

namespace {

// Writes one row's 32 integers of a group into the group's lines (matrix.h), four columns at a time.
void put_group(WeightType type, const uint8_t* q, int row, uint8_t* lines) {
    uint32_t slice[8];
    std::memcpy(slice, q, 32);
    const auto put = [&](int line, uint32_t v) { std::memcpy(lines + 64 * line + 4 * row, &v, 4); };
    const int bits = info(type).bits;
    if (bits == 8) {
        for (int s = 0; s < 8; s++) put(s, slice[s]);
        return;
    }
    if (bits == 2) {
        for (int i = 0; i < 2; i++)
            put(i, slice[i] | slice[i + 2] << 2 | slice[i + 4] << 4 | slice[i + 6] << 6);
        return;
    }
    if (bits == 3) {
        const uint32_t last = slice[6] | slice[7] << 3, two_bits = 0x03030303u;
        for (int i = 0; i < 3; i++) put(i, slice[i] | slice[i + 3] << 3 | (last >> (2 * i) & two_bits) << 6);
        return;
    }
    for (int i = 0; i < 4; i++) put(i, (slice[i] & 0x0f0f0f0fu) | (slice[i + 4] & 0x0f0f0f0fu) << 4);
    if (bits == 6) {
        for (int h = 0; h < 2; h++) {
            uint32_t high = 0;
            for (int i = 0; i < 4; i++) high |= (slice[4 * h + i] >> 4 & 0x03030303u) << (2 * i);
            put(4 + h, high);
        }
    } else if (bits == 5) {
        uint32_t high = 0;
        for (int s = 0; s < 8; s++) high |= (slice[s] >> 4 & 0x01010101u) << s;
        put(4, high);
    }
}

void put16(uint8_t* p, int row, uint16_t v) { std::memcpy(p + 2 * row, &v, 2); }

void put_scales(Matrix& m, int panel, int row, int block, const Decoded& d) {
    const WeightTypeInfo& k = info(m.type);
    uint8_t* scales = m.scales + panel * m.scale_stride + size_t(block) * k.scale_bytes;
    if (k.has_zero_point) {  // scale[16], zero[16]
        std::memcpy(scales + 4 * row, &d.wide_scale, 4);
        scales[64 + row] = d.zero;
        return;
    }
    if (m.type == WeightType::MXFP4)
        scales[row] = uint8_t(d.d);
    else
        put16(scales, row, d.d);
    switch (m.type) {
        case WeightType::Q4_1:
        case WeightType::Q5_1:
            put16(scales + 32, row, d.m);
            break;
        case WeightType::Q4_K:
        case WeightType::Q5_K:  // d[16], dmin[16], scale[8][16], minimum[8][16]
            put16(scales + 32, row, d.m);
            for (int g = 0; g < 8; g++) {
                scales[64 + 16 * g + row] = d.scale[g];
                scales[192 + 16 * g + row] = d.minimum[g];
            }
            break;
        case WeightType::IQ2_XS:
        case WeightType::IQ2_S:
        case WeightType::Q3_K:
        case WeightType::Q6_K:  // d[16], then scales in pairs, of a group's halves: [8][16][2]
            for (int g = 0; g < 16; g++) scales[32 + 32 * (g / 2) + 2 * row + g % 2] = d.scale[g];
            break;
        case WeightType::Q2_K:  // d[16], dmin[16], then scale | minimum << 4 of a group's halves: [8][16][2]
            put16(scales + 32, row, d.m);
            for (int g = 0; g < 16; g++)
                scales[64 + 32 * (g / 2) + 2 * row + g % 2] = uint8_t(d.scale[g] | d.minimum[g] << 4);
            break;
        case WeightType::IQ2_XXS:
        case WeightType::IQ3_XXS:
        case WeightType::IQ3_S:
        case WeightType::IQ4_XS:  // d[16], then scales in pairs of groups: [4][16][2]
            for (int g = 0; g < 8; g++) scales[32 + 32 * (g / 2) + 2 * row + g % 2] = d.scale[g];
            break;
        default:
            break;
    }
}

void put_block(Matrix& m, int panel, int row, int block, const Decoded& d) {
    const WeightTypeInfo& k = info(m.type);
    const int groups = k.block_columns / kGroup;
    uint8_t* lines = m.q + panel * m.q_stride + size_t(block) * groups * k.group_bytes();
    for (int g = 0; g < groups; g++) put_group(m.type, d.q + 32 * g, row, lines + g * k.group_bytes());
    put_scales(m, panel, row, block, d);
}

// The same for Q4_K, in which most models have most of their weights, from the file's block: its bytes have
// the nibbles of two groups, which a few operations on four bytes at a time put into their lines.
void put_q4_k(Matrix& m, int panel, int row, int block, const uint8_t* p) {
    const size_t group = info(WeightType::Q4_K).group_bytes();
    uint8_t* lines = m.q + panel * m.q_stride + size_t(block) * kSuperblockGroups * group + 4 * size_t(row);
    constexpr uint32_t low = 0x0f0f0f0fu, high = 0xf0f0f0f0u;
    for (int pair = 0; pair < kSuperblockGroups / 2; pair++, lines += 2 * group) {
        uint32_t q[8];
        std::memcpy(q, p + 16 + 32 * pair, 32);
        for (int i = 0; i < 4; i++) {
            const uint32_t first = (q[i] & low) | (q[i + 4] & low) << 4;
            const uint32_t second = (q[i] >> 4 & low) | (q[i + 4] & high);
            std::memcpy(lines + 64 * i, &first, 4);
            std::memcpy(lines + group + 64 * i, &second, 4);
        }
    }
    Decoded scales;
    decode_k_scales(p + 4, scales);
    scales.d = read16(p), scales.m = read16(p + 2);
    put_scales(m, panel, row, block, scales);
}

template <class T>
void pack_float_panel(Matrix& m, const uint8_t* file, int panel) {
    T* out = reinterpret_cast<T*>(m.q + panel * m.q_stride);
    for (int r = 0; r < kPanel; r++) {
        const int row = panel * kPanel + r;
        const uint8_t* source = file + size_t(row) * m.columns * sizeof(T);
        for (int c = 0; c < m.columns; c++) {
            T v = 0;
            if (row < m.rows) std::memcpy(&v, source + size_t(c) * sizeof(T), sizeof(T));
            out[size_t(c) * kPanel + r] = v;
        }
    }
}

// A scale (float32), then the values: bytes.
void pack_scaled_panel(Matrix& m, const uint8_t* file, int panel) {
    const WeightTypeInfo& k = info(m.type);
    uint8_t* out = m.q + panel * m.q_stride;
    uint8_t* scales = m.scales + panel * m.scale_stride;
    std::memset(out, 0, m.q_stride);  // rows beyond the matrix are zero
    std::memset(scales, 0, m.scale_stride);
    for (int r = 0; r < kPanel && panel * kPanel + r < m.rows; r++) {
        const uint8_t* p = file + size_t(panel * kPanel + r) * row_bytes(m.type, m.columns);
        for (int b = 0; b < m.columns / k.block_columns; b++, p += k.block_bytes) {
            std::memcpy(scales + size_t(b) * k.scale_bytes + 4 * size_t(r), p, 4);
            for (int c = 0; c < k.block_columns; c++)
                out[size_t(b * k.block_columns + c) * kPanel + size_t(r)] = p[4 + c];
        }
    }
}

void dequantize_float_row(WeightType type, const uint8_t* row, int columns, float* out) {
    const int block = info(type).block_columns;
    for (int i = 0; i < columns; i++) {
        const uint8_t* p = row + size_t(i / block) * size_t(info(type).block_bytes);
        if (info(type).scale_columns) {
            float scale;
            std::memcpy(&scale, p, 4);
            out[i] = scale * (kE4M3Factor * half_to_float(e4m3_to_half(p[4 + i % block])));
        } else if (type == WeightType::F32) {
            std::memcpy(out + i, p, 4);
        } else {
            out[i] = type == WeightType::F16 ? half_to_float(read16(p)) : bfloat_to_float(read16(p));
        }
    }
}

}  // namespace

void pack_panels(Matrix& m, const uint8_t* file, int first, int last) {
    const WeightTypeInfo& k = info(m.type);
    const size_t stride = row_bytes(m.type, m.columns);
    Decoded block;
    for (int panel = first; panel < last; panel++) {
        if (k.is_float) {
            if (k.scale_columns)
                pack_scaled_panel(m, file, panel);
            else if (m.type == WeightType::F32)
                pack_float_panel<uint32_t>(m, file, panel);
            else
                pack_float_panel<uint16_t>(m, file, panel);
            continue;
        }
        if ((panel + 1) * kPanel > m.rows) {  // rows beyond the matrix are zero
            std::memset(m.q + panel * m.q_stride, 0, m.q_stride);
            std::memset(m.scales + panel * m.scale_stride, 0, m.scale_stride);
        }
        const int rows = std::min(kPanel, m.rows - panel * kPanel), blocks = m.columns / k.block_columns;
        for (int r = 0; r < rows; r++) {
            const uint8_t* row = file + size_t(panel * kPanel + r) * stride;
            for (int b = 0; b < blocks; b++, row += k.block_bytes) {
                if (m.type == WeightType::Q4_K) {
                    put_q4_k(m, panel, r, b, row);
                } else {
                    decode(m.type, row, block);
                    put_block(m, panel, r, b, block);
                }
            }
        }
    }
}

void dequantize_row(WeightType type, const uint8_t* row, int columns, float* out) {
    const WeightTypeInfo& k = info(type);
    if (k.is_float) return dequantize_float_row(type, row, columns, out);
    Decoded block;
    for (int b = 0; b < columns / k.block_columns; b++, row += k.block_bytes) {
        decode(type, row, block);
        const float d = block_scale(type, block), m = k.has_minimum ? half_to_float(block.m) : 0.0f;
        const int zero = k.has_zero_point ? block.zero : k.offset;
        for (int i = 0; i < k.block_columns; i++) {
            const int part = i / k.scale_columns, q = block.q[i];
            const float scale = k.is_superblock ? d * float(int8_t(block.scale[part])) : d;
            const float weight =
                k.codebook ? float(k.codebook[q]) / float(1 << k.fraction_bits) : float(q - zero);
            float v = scale * weight;
            if (k.has_minimum) v = k.is_superblock ? v - m * float(block.minimum[part]) : v + m;
            out[b * k.block_columns + i] = v;
        }
    }
}

}  // namespace outrider
