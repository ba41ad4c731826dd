// The Python face of the sampler, a module of its own. Calls are short and keep the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include <cmath>
#include <stdexcept>

#include "sample.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NewVector = nb::ndarray<nb::numpy, double, nb::ndim<1>, nb::c_contig>;

template <class T>
std::pair<int64_t, double> choose(Vector<T> row, double temperature, double min_p, int64_t top_k, double top_p,
                                  uint64_t seed, uint64_t position, bool wide) {
    if (row.shape(0) < 1 || row.shape(0) > INT32_MAX) throw std::invalid_argument("a row has between 1 and 2^31 - 1 values");
    if (!(temperature > 0.0 && temperature < INFINITY && min_p >= 0.0 && min_p <= 1.0 && top_p > 0.0))
        throw std::invalid_argument("temperature, min_p or top_p is out of range");
    const auto [token, best] = outrider::choose_token(row.data(), int64_t(row.shape(0)),
                                                      {temperature, min_p, top_p, top_k, seed, position, wide});
    return {token, best};
}

NewVector new_vector(size_t size) {
    double* out = new double[size + 1];
    return NewVector(out, {size}, nb::capsule(out, [](void* p) noexcept { delete[] static_cast<double*>(p); }));
}

template <class T>
void bind_choose(nb::module_& m) {
    m.def("choose_token", &choose<T>, "row"_a.noconvert(), "temperature"_a, "min_p"_a, "top_k"_a, "top_p"_a,
          "seed"_a, "position"_a, "wide"_a = true);
}

}  // namespace

NB_MODULE(_sampler, m) {
    bind_choose<float>(m);
    bind_choose<double>(m);
    m.def("token_noise", [](uint64_t seed, uint64_t position, Vector<int64_t> ids) {
        NewVector out = new_vector(ids.shape(0));
        for (size_t i = 0; i < ids.shape(0); i++) {
            if (ids.data()[i] < 0 || ids.data()[i] > INT32_MAX) throw std::invalid_argument("an id is out of range");
            out.data()[i] = outrider::token_noise(seed, position, ids.data()[i]);
        }
        return out;
    }, "seed"_a, "position"_a, "ids"_a.noconvert());
    m.def("token_masses", [](Vector<double> scores) {
        NewVector out = new_vector(scores.shape(0));
        outrider::token_masses(scores.data(), int64_t(scores.shape(0)), out.data());
        return out;
    }, "scores"_a.noconvert());
}
