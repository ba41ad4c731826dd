// From the file's blocks (ggml's formats, as the gguf package documents and decodes them) to the panels of
// matrix.h. Runs once at load; portable code.
#include <cstring>
#include <stdexcept>

#include "kernels/matrix.h"
#include "memory/half.h"

namespace outrider {

namespace {

uint16_t read16(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }

// A block of the file: its unsigned integers and its scales, still as the file encodes them.
struct Decoded {
    uint8_t q[kSuperblock];
    uint8_t scale[16], minimum[8];  // K-quants: integer factors of d and of dmin (Q6_K: scale is signed)
    uint16_t d, m;                  // binary16, as in the file
};

void decode_k_scales(const uint8_t* s, Decoded& out) {
    for (int j = 0; j < 8; j++) {
        out.scale[j] = j < 4 ? s[j] & 63 : uint8_t((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        out.minimum[j] = j < 4 ? s[j + 4] & 63 : uint8_t((s[j + 4] >> 4) | (s[j] >> 6) << 4);
    }
}

void decode(WeightType type, const uint8_t* p, Decoded& out) {
    switch (type) {
        case WeightType::Q4_0:
        case WeightType::Q4_1:
        case WeightType::Q5_0:
        case WeightType::Q5_1: {
            const bool has_minimum = info(type).has_minimum;
            out.d = read16(p);
            out.m = has_minimum ? read16(p + 2) : 0;
            p += has_minimum ? 4 : 2;
            uint32_t high = 0;
            if (info(type).bits == 5) {
                std::memcpy(&high, p, 4);
                p += 4;
            }
            for (int i = 0; i < 16; i++) {
                out.q[i] = uint8_t((p[i] & 15) | ((high >> i & 1) << 4));
                out.q[i + 16] = uint8_t((p[i] >> 4) | ((high >> (i + 16) & 1) << 4));
            }
            break;
        }
        case WeightType::Q3_0:  // quantize.h
            out.d = read16(p);
            for (int i = 0; i < 32; i++)
                out.q[i] = uint8_t((p[2 + i % 8] >> (2 * (i / 8)) & 3) | (p[10 + i / 8] >> (i % 8) & 1) << 2);
            break;
        case WeightType::Q8_0:
            out.d = read16(p);
            for (int i = 0; i < 32; i++) out.q[i] = uint8_t(p[2 + i] ^ 0x80);
            break;
        case WeightType::Q4_K:
        case WeightType::Q5_K: {
            out.d = read16(p);
            out.m = read16(p + 2);
            decode_k_scales(p + 4, out);
            const uint8_t* high = p + 16;
            const uint8_t* q = type == WeightType::Q5_K ? p + 48 : p + 16;
            for (int pair = 0; pair < 4; pair++)
                for (int l = 0; l < 32; l++) {
                    out.q[64 * pair + l] = q[32 * pair + l] & 15;
                    out.q[64 * pair + 32 + l] = q[32 * pair + l] >> 4;
                }
            if (type == WeightType::Q5_K)
                for (int g = 0; g < 8; g++)
                    for (int l = 0; l < 32; l++) out.q[32 * g + l] |= uint8_t((high[l] >> g & 1) << 4);
            break;
        }
        case WeightType::Q6_K: {
            const uint8_t *low = p, *high = p + 128;
            std::memcpy(out.scale, p + 192, 16);
            out.d = read16(p + 208);
            for (int half = 0; half < 2; half++)
                for (int quarter = 0; quarter < 4; quarter++)
                    for (int l = 0; l < 32; l++) {
                        const uint8_t nibbles = low[64 * half + 32 * (quarter % 2) + l];
                        const uint8_t top = high[32 * half + l] >> (2 * quarter) & 3;
                        out.q[128 * half + 32 * quarter + l] =
                            uint8_t((quarter < 2 ? nibbles & 15 : nibbles >> 4) | top << 4);
                    }
            break;
        }
        default:
            throw std::logic_error("decode: a float type");
    }
}

// Writes one row's 32 integers of a group into the group's lines (matrix.h), four columns at a time.
void put_group(WeightType type, const uint8_t* q, int row, uint8_t* lines) {
    uint32_t slice[8];
    std::memcpy(slice, q, 32);
    const auto put = [&](int line, uint32_t v) { std::memcpy(lines + 64 * line + 4 * row, &v, 4); };
    if (type == WeightType::Q8_0) {
        for (int s = 0; s < 8; s++) put(s, slice[s]);
        return;
    }
    if (type == WeightType::Q3_0) {
        const uint32_t last = slice[6] | slice[7] << 3, two_bits = 0x03030303u;
        for (int i = 0; i < 3; i++) put(i, slice[i] | slice[i + 3] << 3 | (last >> (2 * i) & two_bits) << 6);
        return;
    }
    for (int i = 0; i < 4; i++) put(i, (slice[i] & 0x0f0f0f0fu) | (slice[i + 4] & 0x0f0f0f0fu) << 4);
    if (type == WeightType::Q6_K) {
        for (int h = 0; h < 2; h++) {
            uint32_t high = 0;
            for (int i = 0; i < 4; i++) high |= (slice[4 * h + i] >> 4 & 0x03030303u) << (2 * i);
            put(4 + h, high);
        }
    } else if (info(type).bits == 5) {
        uint32_t high = 0;
        for (int s = 0; s < 8; s++) high |= (slice[s] >> 4 & 0x01010101u) << s;
        put(4, high);
    }
}

void put16(uint8_t* p, int row, uint16_t v) { std::memcpy(p + 2 * row, &v, 2); }

void put_block(Matrix& m, int panel, int row, int block, const Decoded& d) {
    const WeightTypeInfo& k = info(m.type);
    const int groups = k.block_columns / kGroup;
    uint8_t* lines = m.q + panel * m.q_stride + size_t(block) * groups * k.group_bytes();
    uint8_t* scales = m.scales + panel * m.scale_stride + size_t(block) * k.scale_bytes;
    for (int g = 0; g < groups; g++) put_group(m.type, d.q + 32 * g, row, lines + g * k.group_bytes());
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
        case WeightType::Q6_K:  // d[16], then scales in pairs of groups: [8][16][2]
            for (int g = 0; g < 16; g++) scales[32 + 32 * (g / 2) + 2 * row + g % 2] = d.scale[g];
            break;
        default:
            break;
    }
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

}  // namespace

void pack_panels(Matrix& m, const uint8_t* file, int first, int last) {
    const WeightTypeInfo& k = info(m.type);
    const size_t stride = row_bytes(m.type, m.columns);
    Decoded block;
    for (int panel = first; panel < last; panel++) {
        if (k.is_float) {
            if (m.type == WeightType::F32)
                pack_float_panel<uint32_t>(m, file, panel);
            else
                pack_float_panel<uint16_t>(m, file, panel);
            continue;
        }
        if ((panel + 1) * kPanel > m.rows) {  // rows beyond the matrix are zero
            std::memset(m.q + panel * m.q_stride, 0, m.q_stride);
            std::memset(m.scales + panel * m.scale_stride, 0, m.scale_stride);
        }
        for (int r = 0; r < kPanel && panel * kPanel + r < m.rows; r++) {
            const uint8_t* row = file + size_t(panel * kPanel + r) * stride;
            for (int b = 0; b < m.columns / k.block_columns; b++) {
                decode(m.type, row + size_t(b) * k.block_bytes, block);
                put_block(m, panel, r, b, block);
            }
        }
    }
}

void dequantize_row(WeightType type, const uint8_t* row, int columns, float* out) {
    const WeightTypeInfo& k = info(type);
    if (k.is_float) {
        for (int i = 0; i < columns; i++)
            if (type == WeightType::F32)
                std::memcpy(out + i, row + 4 * size_t(i), 4);
            else
                out[i] = type == WeightType::F16 ? half_to_float(read16(row + 2 * size_t(i)))
                                                 : bfloat_to_float(read16(row + 2 * size_t(i)));
        return;
    }
    Decoded block;
    for (int b = 0; b < columns / k.block_columns; b++, row += k.block_bytes) {
        decode(type, row, block);
        const float d = half_to_float(block.d), m = half_to_float(block.m);
        for (int i = 0; i < k.block_columns; i++) {
            const int q = block.q[i] - k.offset;
            float v;
            if (!k.is_superblock)
                v = k.has_minimum ? d * float(q) + m : d * float(q);
            else if (type == WeightType::Q6_K)
                v = d * float(int8_t(block.scale[i / 16])) * float(q);
            else
                v = d * float(block.scale[i / 32]) * float(q) - m * float(block.minimum[i / 32]);
            out[b * k.block_columns + i] = v;
        }
    }
}

}  // namespace outrider
