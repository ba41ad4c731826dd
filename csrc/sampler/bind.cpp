// The Python binding of the sampler, the module _sampler. Calls are short and keep the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include <cmath>
#include <memory>
#include <optional>
#include <stdexcept>

#include "sampler/sample.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using NewVector = nb::ndarray<nb::numpy, T, nb::ndim<1>, nb::c_contig>;

template <class T>
outrider::SampleParams checked(const Vector<T>& row, double temperature, double min_p, int64_t top_k,
                               double top_p, int64_t width) {
    if (row.shape(0) < 1 || row.shape(0) > INT32_MAX)
        throw std::invalid_argument("a row has between 1 and 2^31 - 1 values");
    if (!(temperature > 0.0 && temperature < INFINITY && min_p >= 0.0 && min_p <= 1.0 && top_p > 0.0))
        throw std::invalid_argument("temperature, min_p or top_p is out of range");
    return {temperature, min_p, top_p, top_k, width};
}

void check_id(int64_t id) {
    if (id < 0 || id > INT32_MAX) throw std::invalid_argument("an id is out of range");
}

template <class T>
std::pair<int64_t, double> choose(Vector<T> row, double temperature, double min_p, int64_t top_k,
                                  double top_p, uint64_t seed, uint64_t position, int64_t width) {
    const auto params = checked(row, temperature, min_p, top_k, top_p, width);
    const auto [token, best] =
        outrider::choose_token(row.data(), int64_t(row.shape(0)), params, seed, position);
    return {token, best};
}

template <class T>
NewVector<T> owned(std::unique_ptr<T[]> values, size_t size) {
    T* const data = values.release();
    return NewVector<T>(data, {size},
                        nb::capsule(data, [](void* p) noexcept { delete[] static_cast<T*>(p); }));
}

template <class T>
NewVector<T> new_vector(size_t size) {
    return owned(std::make_unique_for_overwrite<T[]>(size + 1), size);
}

using Ids = std::optional<NewVector<int64_t>>;

template <class T>
std::tuple<Ids, NewVector<double>, double> distribution(Vector<T> row, double temperature, double min_p,
                                                        int64_t top_k, double top_p, int64_t width) {
    const auto params = checked(row, temperature, min_p, top_k, top_p, width);
    outrider::Distribution found = outrider::token_distribution(row.data(), int64_t(row.shape(0)), params);
    const size_t size = size_t(found.size);
    if (!found.probs) return {Ids{}, new_vector<double>(0), found.best};
    Ids ids;
    if (found.ids) ids = owned(std::move(found.ids), size);
    return {std::move(ids), owned(std::move(found.probs), size), found.best};
}

template <class T>
std::pair<double, double> probability(Vector<T> row, double temperature, double min_p, int64_t top_k,
                                      double top_p, int64_t token, int64_t width) {
    const auto params = checked(row, temperature, min_p, top_k, top_p, width);
    check_id(token);
    const auto [probability, best] =
        outrider::token_probability(row.data(), int64_t(row.shape(0)), params, token);
    return {probability, best};
}

template <class T>
void bind_row(nb::module_& m) {
    m.def("choose_token", &choose<T>, "row"_a.noconvert(), "temperature"_a, "min_p"_a, "top_k"_a, "top_p"_a,
          "seed"_a, "position"_a, "width"_a = 64);
    m.def("token_distribution", &distribution<T>, "row"_a.noconvert(), "temperature"_a, "min_p"_a, "top_k"_a,
          "top_p"_a, "width"_a = 64);
    m.def("token_probability", &probability<T>, "row"_a.noconvert(), "temperature"_a, "min_p"_a, "top_k"_a,
          "top_p"_a, "token"_a, "width"_a = 64);
}

}  // namespace

NB_MODULE(_sampler, m) {
    bind_row<float>(m);
    bind_row<double>(m);
    m.def(
        "token_noise",
        [](uint64_t seed, uint64_t position, Vector<int64_t> ids) {
            NewVector<double> out = new_vector<double>(ids.shape(0));
            for (size_t i = 0; i < ids.shape(0); i++) {
                check_id(ids.data()[i]);
                out.data()[i] = outrider::token_noise(seed, position, ids.data()[i]);
            }
            return out;
        },
        "seed"_a, "position"_a, "ids"_a.noconvert());
    m.def(
        "token_masses",
        [](Vector<double> scores) {
            NewVector<double> out = new_vector<double>(scores.shape(0));
            outrider::token_masses(scores.data(), int64_t(scores.shape(0)), out.data());
            return out;
        },
        "scores"_a.noconvert());
}
