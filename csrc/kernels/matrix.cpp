#include "kernels/matrix.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "memory/slabs.h"

namespace outrider {

WeightType weight_type_by_name(const std::string& name) {
    for (const WeightTypeInfo& row : kWeightTypes)
        if (name == row.name) return row.type;
    throw std::invalid_argument("tensor type " + name + " is not supported by the native engine");
}

static Matrix shape(WeightType type, int rows, int columns) {
    const WeightTypeInfo& k = info(type);
    if (rows <= 0 || columns <= 0 || columns % k.block_columns)
        throw std::invalid_argument(std::string("a ") + k.name + " matrix cannot have " +
                                    std::to_string(columns) + " columns");
    Matrix m;
    m.type = type;
    m.rows = rows;
    m.columns = columns;
    m.panels = (rows + kPanel - 1) / kPanel;
    m.q_stride = size_t(columns) * kPanel * size_t(k.bits) / 8;
    m.scale_stride = size_t(columns / k.block_columns) * size_t(k.scale_bytes);
    return m;
}

size_t packed_bytes(WeightType type, int rows, int columns) {
    return shape(type, rows, columns).packed_bytes();
}

size_t row_bytes(WeightType type, int columns) {
    return size_t(columns / info(type).block_columns) * size_t(info(type).block_bytes);
}

Matrix make_matrix(WeightType type, int rows, int columns, Slabs& slabs) {
    constexpr size_t padding = 4096;  // kernels may prefetch past the end
    Matrix m = shape(type, rows, columns);
    m.memory = slabs.take(m.packed_bytes() + padding);
    m.q = m.memory.get();
    m.scales = m.q + m.scales_at();
    std::memset(m.q + size_t(m.panels) * m.q_stride, 0, m.scales_at() - size_t(m.panels) * m.q_stride);
    return m;
}

Matrix view_matrix(WeightType type, int rows, int columns, const uint8_t* packed, size_t bytes) {
    Matrix m = shape(type, rows, columns);
    if (bytes != m.packed_bytes() || reinterpret_cast<uintptr_t>(packed) % 64)
        throw std::invalid_argument(std::to_string(bytes) + " bytes are not a packed matrix of " +
                                    std::to_string(rows) + " x " + std::to_string(columns));
    m.q = const_cast<uint8_t*>(packed);
    m.scales = m.q + m.scales_at();
    return m;
}

}  // namespace outrider
