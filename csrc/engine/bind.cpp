// The native engine's Python binding. Arrays are checked here; everything long runs without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "engine/arrays.h"
#include "engine/bind_heads.h"
#include "kernels/quantize.h"
#include "memory/checksum.h"
#include "model/bandwidth.h"
#include "model/model.h"

namespace nb = nanobind;
using namespace nb::literals;
using outrider::Cache;
using outrider::Model;
using outrider::ModelSpec;
using outrider::SharedBlocks;

namespace {

using Bytes1 = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using BytesView = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>;
using NewBytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>, nb::c_contig>;
using Rows = nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig>;
using Work = std::vector<std::tuple<Cache*, Ints, Ints, Ints>>;  // cache, tokens, parents, wanted rows

// Of every weight type, by name: columns and bytes of a block of the file's format.
nb::dict weight_types() {
    nb::dict found;
    for (const outrider::WeightTypeInfo& type : outrider::kWeightTypes)
        found[type.name] = nb::make_tuple(type.block_columns, type.block_bytes);
    return found;
}

void check_bytes(const std::string& name, outrider::WeightType kind, int rows, int columns, size_t bytes) {
    if (rows < 1 || columns < 1 || columns % outrider::info(kind).block_columns ||
        size_t(rows) * outrider::row_bytes(kind, columns) != bytes)
        throw std::invalid_argument("tensor " + name + ": " + std::to_string(bytes) + " bytes do not make " +
                                    std::to_string(rows) + " x " + std::to_string(columns));
}

template <class T>
T field(nb::handle object, const char* name) {
    return nb::cast<T>(object.attr(name));
}

// A number, or `none` where the field is None.
template <class T>
T field_or(nb::handle object, const char* name, T none) {
    const nb::object value = object.attr(name);
    return value.is_none() ? none : nb::cast<T>(value);
}

outrider::RopeSpec rope_spec(nb::handle rope) {
    const Floats inv_freq = field<Floats>(rope, "inv_freq");
    return {field<int>(rope, "dim"),
            field<float>(rope, "scale"),
            field<bool>(rope, "interleaved"),
            {inv_freq.data(), inv_freq.data() + inv_freq.shape(0)}};
}

outrider::LayerSpec layer_spec(nb::handle layer) {
    const nb::object norms = layer.attr("norms"), ffn = layer.attr("feed_forward");
    outrider::LayerSpec spec;
    spec.feed_forward = {field<int>(ffn, "size"), field<std::string>(ffn, "activation"),
                         field<int>(ffn, "experts"), field<int>(ffn, "experts_used")};
    spec.norms = {field<bool>(norms, "attention"),
                  field<bool>(norms, "q"),
                  field<bool>(norms, "k"),
                  field<bool>(norms, "whole_qk"),
                  field<bool>(norms, "post_attention"),
                  field<bool>(norms, "ffn"),
                  field<bool>(norms, "post_ffn")};
    spec.rope = field_or<int>(layer, "rope", -1);
    spec.window = field_or<int>(layer, "window", 0);
    spec.attention_scale = field<float>(layer, "attention_scale");
    spec.attention_softcap = field_or<float>(layer, "attention_softcap", 0);
    spec.query_growth = field<float>(layer, "query_growth");
    spec.query_growth_positions = field<int>(layer, "query_growth_positions");
    spec.sinks = field<bool>(layer, "sinks");
    return spec;
}

outrider::HeadSpec head_spec(nb::handle head) {
    if (head.is_none()) return {};
    return {field<int>(head, "states"),       field<int>(head, "state_size"),
            field<int>(head, "tokens"),       field<bool>(head, "joint_norm"),
            field<bool>(head, "state_norms"), field<bool>(head, "norm_before_residual"),
            field<bool>(head, "norm_output")};
}

// The object of models/spec.py, read once.
ModelSpec model_spec(nb::handle model) {
    ModelSpec spec;
    spec.hidden = field<int>(model, "hidden_size");
    spec.heads = field<int>(model, "n_heads");
    spec.kv_heads = field<int>(model, "n_kv_heads");
    spec.head_dim = field<int>(model, "head_dim");
    spec.vocab = field<int>(model, "vocab_size");
    spec.rms_eps = field<float>(model, "rms_eps");
    spec.embedding_scale = field<float>(model, "embedding_scale");
    spec.residual_scale = field<float>(model, "residual_scale");
    spec.logit_scale = field<float>(model, "logit_scale");
    spec.logit_softcap = field_or<float>(model, "logit_softcap", 0);
    for (nb::handle rope : model.attr("ropes")) spec.ropes.push_back(rope_spec(rope));
    for (nb::handle layer : model.attr("layers")) spec.layers.push_back(layer_spec(layer));
    spec.head = head_spec(model.attr("head"));
    return spec;
}

// float32[rows, columns] in memory that `buffers` takes back when the array goes.
Rows new_rows(outrider::Buffers& buffers, size_t rows, size_t columns) {
    const std::shared_ptr<float> room = buffers.take(rows * columns);
    nb::capsule owner(new std::shared_ptr<float>(room),
                      [](void* p) noexcept { delete static_cast<std::shared_ptr<float>*>(p); });
    return Rows(room.get(), {rows, columns}, owner);
}

std::vector<outrider::BatchItem> batch_items(const Work& work) {
    std::vector<outrider::BatchItem> items;
    for (const auto& [cache, tokens, parents, wanted] : work) {
        if (!cache) throw std::invalid_argument("a cache is missing");
        if (parents.shape(0) != tokens.shape(0))
            throw std::invalid_argument("tokens and parents differ in length");
        items.push_back({cache, tokens.data(), parents.data(), wanted.data(), int(tokens.shape(0)),
                         int(wanted.shape(0))});
    }
    return items;
}

Rows new_logits(Model& model, const std::vector<outrider::BatchItem>& items) {
    size_t rows = 0;
    for (const outrider::BatchItem& item : items) rows += size_t(item.row_count);
    return new_rows(model.logits_buffers(), rows, size_t(model.spec().vocab));
}

Rows forward(Model& model, const Work& work, std::optional<Ints> wanted_panels) {
    const std::vector<outrider::BatchItem> items = batch_items(work);
    Rows logits = new_logits(model, items);
    std::vector<int> panels;
    if (wanted_panels) panels.assign(wanted_panels->data(), wanted_panels->data() + wanted_panels->shape(0));
    nb::gil_scoped_release release;
    model.forward(items, logits.data(), wanted_panels ? &panels : nullptr);
    return logits;
}

// The same with the hidden states at `layers`: (logits, float32[tokens of all items, taps * hidden]).
std::tuple<Rows, Rows> forward_hidden(Model& model, const Work& work, const std::vector<int>& layers) {
    const std::vector<outrider::BatchItem> items = batch_items(work);
    Rows logits = new_logits(model, items);
    size_t tokens = 0;
    for (const outrider::BatchItem& item : items) tokens += size_t(item.count);
    Rows hidden = new_rows(model.hidden_buffers(), tokens, layers.size() * size_t(model.spec().hidden));
    {
        const outrider::Taps taps{layers, hidden.data()};
        nb::gil_scoped_release release;
        model.forward(items, logits.data(), nullptr, &taps);
    }
    return {logits, hidden};
}

// A head's pass, with the hidden states that its tokens come with, float32[tokens of all items, columns]:
// (logits, what is fed back with the next token, float32[rows of all items, hidden]).
std::tuple<Rows, Rows> forward_head(Model& model, const Work& work, Floats2 in, bool fed_back) {
    const std::vector<outrider::BatchItem> items = batch_items(work);
    size_t tokens = 0, rows = 0;
    for (const outrider::BatchItem& item : items) {
        tokens += size_t(item.count);
        rows += size_t(item.row_count);
    }
    check_states(in, tokens, size_t(fed_back ? model.spec().hidden : model.spec().head.width()));
    Rows logits = new_logits(model, items);
    Rows hidden = new_rows(model.hidden_buffers(), rows, size_t(model.spec().hidden));
    {
        const outrider::HeadStates states{in.data(), fed_back, hidden.data()};
        nb::gil_scoped_release release;
        model.forward(items, logits.data(), nullptr, nullptr, &states);
    }
    return {logits, hidden};
}

// Rows of type `from` as rows of type `to`, by all threads of the model.
NewBytes quantize(Model& model, const std::string& from, const std::string& to, int rows, int columns,
                  Bytes1 data) {
    const outrider::WeightType source = outrider::weight_type_by_name(from),
                               target = outrider::weight_type_by_name(to);
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
        const auto lock = model.pool().lock();
        constexpr int chunk = 16;
        model.pool().phase((rows + chunk - 1) / chunk, [&](int i, int) {
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

// What a cache holds of keys and values, float32[positions, head_dim] each.
nb::tuple held(const std::string& type, const std::string& isa, Floats2 keys, Floats2 values) {
    const size_t positions = keys.shape(0), head_dim = keys.shape(1);
    if (values.shape(0) != positions || values.shape(1) != head_dim || head_dim % 16 || head_dim > 4096)
        throw std::invalid_argument("keys and values must be of one shape, with multiples of 16 columns");
    const auto buffers = std::make_shared<outrider::Buffers>();
    Rows held_keys = new_rows(*buffers, positions, head_dim),
         held_values = new_rows(*buffers, positions, head_dim);
    outrider::store_and_read(outrider::choose_kernels(isa.c_str()), outrider::cache_type_by_name(type),
                             int(positions), int(head_dim), keys.data(), values.data(), held_keys.data(),
                             held_values.data());
    return nb::make_tuple(held_keys, held_values);
}

}  // namespace

NB_MODULE(_core, m) {
    m.attr("LAYOUT_VERSION") = outrider::kLayoutVersion;
    m.attr("ROLLBACK") = outrider::kRollback;
    m.def("weight_types", &weight_types);
    m.def(
        "token_tiles",
        [](const std::string& isa) {
            const outrider::Kernels& kernels = outrider::choose_kernels(isa.c_str());
            return nb::make_tuple(kernels.token_tile, kernels.usual_token_tile);
        },
        "isa"_a);
    m.def(
        "kernels", [](const std::string& isa) { return outrider::choose_kernels(isa.c_str()).name; },
        "isa"_a);
    m.def("held", &held, "type"_a, "isa"_a, "keys"_a, "values"_a);
    m.def("unsupported", [](nb::handle spec) { return outrider::unsupported(model_spec(spec)); }, "spec"_a);
    m.def(
        "packed_bytes",
        [](const std::string& type, int rows, int columns) {
            return outrider::packed_bytes(outrider::weight_type_by_name(type), rows, columns);
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
        .def_prop_ro("whole", &SharedBlocks::whole)
        .def_prop_ro("nbytes", &SharedBlocks::bytes);

    nb::class_<Cache>(m, "Cache")
        .def_prop_ro("length", &Cache::length)
        .def_prop_ro("capacity", &Cache::capacity)
        .def_prop_ro("nbytes", &Cache::bytes)
        .def_prop_ro("rollback_floor", &Cache::rollback_floor)
        .def("truncate", &Cache::truncate, "length"_a)
        .def("pad", &Cache::pad, "count"_a)
        .def("share", &Cache::share, "start"_a, "stop"_a)
        .def("adopt", &Cache::adopt, "blocks"_a)
        .def("close", &Cache::close);

    nb::class_<Model>(m, "Model")
        .def(
            "__init__",
            [](Model* self, nb::handle spec, const std::string& cache_type, int threads,
               const std::string& isa) {
                new (self) Model(model_spec(spec), outrider::cache_type_by_name(cache_type), threads, isa);
            },
            nb::kw_only(), "spec"_a, "cache_type"_a, "threads"_a, "isa"_a)
        .def("add_matrix",
             [](Model& model, const std::string& name, const std::string& type, int rows, int columns,
                Bytes1 data) {
                 const outrider::WeightType kind = outrider::weight_type_by_name(type);
                 check_bytes(name, kind, rows, columns, data.size());
                 nb::gil_scoped_release release;
                 model.weights().add_matrix(name, kind, rows, columns, data.data());
             })
        .def("quantize", &quantize, "from_type"_a, "to_type"_a, "rows"_a, "columns"_a, "data"_a)
        .def(
            "add_packed",
            [](Model& model, const std::string& name, const std::string& type, int rows, int columns,
               Bytes1 data) {
                model.weights().add_packed(name, outrider::weight_type_by_name(type), rows, columns,
                                           data.data(), data.size());
            },
            "name"_a, "type"_a, "rows"_a, "columns"_a, "data"_a.noconvert(), nb::keep_alive<1, 6>())
        .def("packed",
             [](nb::handle_t<Model> self, const std::string& name) {
                 const outrider::Matrix& m = nb::cast<const Model&>(self).weights().packed(name);
                 return BytesView(m.q, {m.packed_bytes()}, self);
             })
        .def("set_column_order",
             [](Model& model, const std::string& name, Ints order) {
                 model.weights().set_column_order(name, {order.data(), order.data() + order.shape(0)});
             })
        .def("add_vector",
             [](Model& model, const std::string& name, Floats values) {
                 model.weights().add_vector(name, {values.data(), values.data() + values.shape(0)});
             })
        .def(
            "set_embedding",
            [](Model& model, const std::string& type, Bytes1 data) {
                const outrider::WeightType kind = outrider::weight_type_by_name(type);
                check_bytes("token_embd.weight", kind, model.spec().tokens(), model.spec().hidden,
                            data.size());
                model.weights().set_embedding(kind, data.data());
            },
            "type"_a, "data"_a, nb::keep_alive<1, 3>())
        .def("finish", &Model::finish)
        .def("new_cache", &Model::new_cache, "capacity"_a)
        .def("keep", [](const Model& model, Cache& cache, int base,
                        const std::vector<int>& slots) { model.keep(cache, base, slots); })
        .def("forward", &forward, "items"_a, "panels"_a = nb::none())
        .def("forward_hidden", &forward_hidden, "items"_a, "taps"_a)
        .def("forward_head", &forward_head, "items"_a, "states"_a, "fed_back"_a)
        .def(
            "read_gb_per_s",
            [](const Model& model) { return outrider::read_gb_per_s(model.weights(), model.pool()); },
            nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("isa", [](const Model& model) { return std::string(model.kernels().name); })
        .def_prop_ro("token_tile", [](const Model& model) { return model.kernels().token_tile; })
        .def_prop_ro("usual_token_tile", [](const Model& model) { return model.kernels().usual_token_tile; })
        .def_prop_ro("threads", [](const Model& model) { return model.pool().size(); })
        .def_prop_ro("weights_bytes", [](const Model& model) { return model.weights().bytes(); })
        .def_prop_ro("cache_bytes", &Model::cache_bytes);
    bind_heads(m);
}
