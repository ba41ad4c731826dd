// The Python face of the native engine. Arrays are checked here; everything long runs without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "kernels/quantize.h"
#include "memory/checksum.h"
#include "model/model.h"

namespace nb = nanobind;
using namespace nb::literals;
using outrider::Cache;
using outrider::Config;
using outrider::Model;
using outrider::SharedBlocks;

namespace {

using Bytes1 = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using BytesView = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>;
using NewBytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>, nb::c_contig>;
using Logits = nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig>;

void check_bytes(const std::string& name, outrider::Kind kind, int rows, int columns, size_t bytes) {
    if (rows < 1 || columns < 1 || columns % outrider::info(kind).block_columns ||
        size_t(rows) * outrider::row_bytes(kind, columns) != bytes)
        throw std::invalid_argument("tensor " + name + ": " + std::to_string(bytes) + " bytes do not make " +
                                    std::to_string(rows) + " x " + std::to_string(columns));
}

Logits forward(Model& model, const std::vector<std::tuple<Cache*, Ints, Ints, Ints>>& work,
               std::optional<Ints> blocks) {
    std::vector<outrider::Item> items;
    size_t rows = 0;
    for (const auto& [cache, tokens, parents, wanted] : work) {
        if (!cache) throw std::invalid_argument("a cache is missing");
        if (parents.shape(0) != tokens.shape(0))
            throw std::invalid_argument("tokens and parents differ in length");
        items.push_back({cache, tokens.data(), parents.data(), wanted.data(), int(tokens.shape(0)),
                         int(wanted.shape(0))});
        rows += wanted.shape(0);
    }
    const size_t vocab = size_t(model.config().vocab);
    const std::shared_ptr<float> room = model.buffers().take(rows * vocab);
    float* logits = room.get();
    nb::capsule owner(new std::shared_ptr<float>(room),
                      [](void* p) noexcept { delete static_cast<std::shared_ptr<float>*>(p); });
    std::vector<int> panels;
    if (blocks) panels.assign(blocks->data(), blocks->data() + blocks->shape(0));
    {
        nb::gil_scoped_release release;
        model.forward(items, logits, blocks ? &panels : nullptr);
    }
    return Logits(logits, {rows, vocab}, owner);
}

// Rows of type `from` as rows of type `to`, by all threads of the model.
NewBytes quantize(Model& model, const std::string& from, const std::string& to, int rows, int columns,
                  Bytes1 data) {
    const outrider::Kind source = outrider::kind_by_name(from), target = outrider::kind_by_name(to);
    check_bytes(from, source, rows, columns, data.size());
    if (!outrider::can_quantize(target) || columns % outrider::info(target).block_columns)
        throw std::invalid_argument("cannot quantize " + from + " with " + std::to_string(columns) +
                                    " columns to " + to);
    const size_t in_bytes = outrider::row_bytes(source, columns),
                 out_bytes = outrider::row_bytes(target, columns);
    uint8_t* out = new uint8_t[size_t(rows) * out_bytes];
    nb::capsule owner(out, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
    std::atomic<bool> good{true};
    {
        nb::gil_scoped_release release;
        const auto pool = outrider::Pool::shared(model.threads());
        const auto turn = pool->turn();
        constexpr int chunk = 16;
        pool->phase((rows + chunk - 1) / chunk, [&](int i, int) {
            std::vector<float> x(static_cast<size_t>(columns));
            for (int r = i * chunk; r < std::min(rows, (i + 1) * chunk); r++) {
                outrider::dequantize_row(source, data.data() + size_t(r) * in_bytes, columns, x.data());
                if (!outrider::quantize_row(target, x.data(), columns, out + size_t(r) * out_bytes))
                    good = false;
            }
        });
    }
    if (!good) throw std::invalid_argument("has values that are not finite, or too large for " + to);
    return NewBytes(out, {size_t(rows) * out_bytes}, owner);
}

}  // namespace

NB_MODULE(_core, m) {
    m.attr("LAYOUT_VERSION") = outrider::kLayoutVersion;
    m.def(
        "packed_bytes",
        [](const std::string& type, int rows, int columns) {
            return outrider::packed_bytes(outrider::kind_by_name(type), rows, columns);
        },
        "type"_a, "rows"_a, "columns"_a);
    m.def(
        "checksum",
        [](Bytes1 data) {
            nb::gil_scoped_release release;
            return outrider::checksum(data.data(), data.size());
        },
        "data"_a.noconvert());

    nb::class_<SharedBlocks>(m, "SharedBlocks")
        .def_prop_ro("positions", &SharedBlocks::positions)
        .def_prop_ro("nbytes", &SharedBlocks::bytes);

    nb::class_<Cache>(m, "Cache")
        .def_prop_ro("length", &Cache::length)
        .def_prop_ro("capacity", &Cache::capacity)
        .def_prop_ro("nbytes", &Cache::bytes)
        .def("truncate", &Cache::truncate, "length"_a)
        .def("share", &Cache::share, "start"_a, "stop"_a)
        .def("adopt", &Cache::adopt, "blocks"_a)
        .def("close", &Cache::close);

    nb::class_<Model>(m, "Model")
        .def(
            "__init__",
            [](Model* self, int layers, int hidden, int heads, int kv_heads, int head_dim, int ffn, int vocab,
               int rope_dim, float rms_eps, float rope_scale, bool rope_interleaved, bool half_cache,
               Floats inv_freq, int threads, const std::string& isa) {
                new (self)
                    Model(Config{layers, hidden, heads, kv_heads, head_dim, ffn, vocab, rope_dim, rms_eps,
                                 rope_scale, rope_interleaved, half_cache,
                                 std::vector<float>(inv_freq.data(), inv_freq.data() + inv_freq.shape(0))},
                          threads, isa);
            },
            nb::kw_only(), "layers"_a, "hidden"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "ffn"_a, "vocab"_a,
            "rope_dim"_a, "rms_eps"_a, "rope_scale"_a, "rope_interleaved"_a, "half_cache"_a, "inv_freq"_a,
            "threads"_a, "isa"_a)
        .def("add_matrix",
             [](Model& model, const std::string& name, const std::string& type, int rows, int columns,
                Bytes1 data) {
                 const outrider::Kind kind = outrider::kind_by_name(type);
                 check_bytes(name, kind, rows, columns, data.size());
                 nb::gil_scoped_release release;
                 model.add_matrix(name, kind, rows, columns, data.data());
             })
        .def("quantize", &quantize, "from_type"_a, "to_type"_a, "rows"_a, "columns"_a, "data"_a)
        .def(
            "add_packed",
            [](Model& model, const std::string& name, const std::string& type, int rows, int columns,
               Bytes1 data) {
                model.add_packed(name, outrider::kind_by_name(type), rows, columns, data.data(), data.size());
            },
            "name"_a, "type"_a, "rows"_a, "columns"_a, "data"_a.noconvert(), nb::keep_alive<1, 6>())
        .def("packed",
             [](nb::handle_t<Model> self, const std::string& name) {
                 const outrider::Matrix& m = nb::cast<const Model&>(self).packed(name);
                 return BytesView(m.q, {m.packed_bytes()}, self);
             })
        .def("add_vector",
             [](Model& model, const std::string& name, Floats values) {
                 model.add_vector(name, std::vector<float>(values.data(), values.data() + values.shape(0)));
             })
        .def(
            "set_embedding",
            [](Model& model, const std::string& type, Bytes1 data) {
                const outrider::Kind kind = outrider::kind_by_name(type);
                check_bytes("token_embd.weight", kind, model.config().vocab, model.config().hidden,
                            data.size());
                model.set_embedding(kind, data.data());
            },
            "type"_a, "data"_a, nb::keep_alive<1, 3>())
        .def("finish", &Model::finish)
        .def("new_cache", &Model::new_cache, "capacity"_a)
        .def("keep", [](const Model& model, Cache& cache, int base,
                        const std::vector<int>& slots) { model.keep(cache, base, slots); })
        .def("forward", &forward, "items"_a, "blocks"_a = nb::none())
        .def("read_gb_per_s", &Model::read_gb_per_s, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("isa", [](const Model& model) { return std::string(model.isa()); })
        .def_prop_ro("threads", &Model::threads)
        .def_prop_ro("weights_bytes", &Model::weights_bytes)
        .def_prop_ro("cache_bytes", &Model::cache_bytes);
}
