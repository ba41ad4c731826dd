// NumPy's arrays, as the binding takes them.
#pragma once
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>

using Ints = nanobind::ndarray<const int32_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Floats = nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Floats2 = nanobind::ndarray<const float, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

// Throws std::invalid_argument unless hidden states have these rows and columns.
inline void check_states(const Floats2& states, size_t rows, size_t columns) {
    if (states.shape(0) != rows || states.shape(1) != columns)
        throw std::invalid_argument("hidden states must be " + std::to_string(rows) + " rows of " +
                                    std::to_string(columns) + " columns");
}
