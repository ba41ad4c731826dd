// The Python face of what the controller learns in every step, a module of its own. Calls are short and keep
// the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "policy/acceptance.h"
#include "policy/cost_curve.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

double number(nb::handle value) {
    const double found = PyFloat_AsDouble(value.ptr());
    if (found == -1.0 && PyErr_Occurred()) nb::raise_python_error();
    return found;
}

// Integers that do not fit are as far off as can be.
int64_t integer(nb::handle value) {
    int overflow = 0;
    const long long found = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    if (overflow)
        return overflow < 0 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
    if (found == -1 && PyErr_Occurred()) nb::raise_python_error();
    return found;
}

// The first `most` items of a sequence, each by `read`. (That may run Python code, so the size is asked for
// again.)
template <class T>
std::vector<T> items(nb::handle values, T (*read)(nb::handle), int64_t most) {
    const nb::object held = nb::steal(PySequence_Fast(values.ptr(), "expected a sequence"));
    if (!held.is_valid()) nb::raise_python_error();
    std::vector<T> out;
    if (most > 0) out.reserve(size_t(std::min<int64_t>(most, PySequence_Fast_GET_SIZE(held.ptr()))));
    for (Py_ssize_t i = 0; i < most && i < PySequence_Fast_GET_SIZE(held.ptr()); i++)
        out.push_back(read(nb::borrow(PySequence_Fast_GET_ITEM(held.ptr(), i))));
    return out;
}

template <class Values>
nb::tuple tuple_of(const Values& values) {
    return nb::tuple(nb::cast(std::vector<double>(values.begin(), values.end())));
}

outrider::CostCurve::Measured measured_of(nb::handle measured) {
    outrider::CostCurve::Measured out;
    if (measured.is_none()) return out;
    const nb::object pairs = nb::steal(PyMapping_Items(measured.ptr()));
    if (!pairs.is_valid()) nb::raise_python_error();
    for (const nb::handle pair : pairs) out.emplace_back(number(pair[0]), number(pair[1]));
    return out;
}

// A request's name as bytes. (Lone surrogates, for which UTF-8 has no place, are let through: any string will
// do.)
class Id {
  public:
    explicit Id(const nb::str& text) {
        Py_ssize_t size = 0;
        const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
        if (!data) {
            PyErr_Clear();
            encoded_ = nb::steal(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogatepass"));
            if (!encoded_.is_valid()) nb::raise_python_error();
            data = PyBytes_AS_STRING(encoded_.ptr());
            size = PyBytes_GET_SIZE(encoded_.ptr());
        }
        bytes_ = std::string_view(data, size_t(size));
    }
    operator std::string_view() const { return bytes_; }

  private:
    nb::object encoded_;
    std::string_view bytes_;
};

// With the function that says what is expected of a request. It is asked first, so that what it raises leaves
// everything as it was.
struct Acceptance : outrider::Acceptance {
    nb::object prior;

    Acceptance(double start, double weight, nb::object prior, double memory)
        : outrider::Acceptance(start, weight, memory), prior(std::move(prior)) {}

    std::optional<double> expected(const nb::str& id) const {
        if (!prior.is_valid() || prior.is_none()) return std::nullopt;
        return number(nb::object(prior)(id));  // held: the call may run anything
    }
};

using Confidence = std::optional<double>;

double chance(const Acceptance& self, const nb::str& id, int64_t depth, Confidence confidence) {
    const std::optional<double> prior = confidence ? std::nullopt : self.expected(id);
    return self.chance(Id(id), depth, confidence, prior);
}

nb::tuple chances(const Acceptance& self, const nb::str& id, nb::handle parents, nb::handle confidence,
                  int64_t most) {
    const auto tree = self.chances(Id(id), items(parents, integer, most), items(confidence, number, most));
    return nb::make_tuple(tree.chances, tree.paths);
}

void learn(Acceptance& self, const nb::str& id, int64_t depth, Confidence confidence, double accepted) {
    const std::optional<double> prior = self.expected(id);
    self.learn(Id(id), depth, confidence, accepted, prior);
}

void learn_tree(Acceptance& self, const nb::str& id, nb::handle tokens, nb::handle parents,
                nb::handle confidence, int64_t most, nb::handle emitted) {
    const std::optional<double> prior = self.expected(id);
    self.learn_tree(Id(id), items(tokens, integer, most), items(parents, integer, most),
                    items(confidence, number, most),
                    items(emitted, integer, std::numeric_limits<int64_t>::max()), prior);
}

void suppose(Acceptance& self, const nb::str& id, int64_t depth, double chance) {
    const std::optional<double> prior = self.expected(id);
    self.suppose(Id(id), depth, chance, prior);
}

// `prior` may well hold, by some way, the object that it belongs to: the collector must see it.
int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (nb::inst_ready(self)) Py_VISIT(nb::inst_ptr<Acceptance>(self)->prior.ptr());
    return 0;
}

int clear(PyObject* self) {
    if (nb::inst_ready(self)) nb::inst_ptr<Acceptance>(self)->prior.reset();
    return 0;
}

PyType_Slot kCollected[] = {{Py_tp_traverse, (void*)traverse}, {Py_tp_clear, (void*)clear}, {0, nullptr}};

void bind_cost_curve(nb::module_& m) {
    using outrider::CostCurve;
    m.attr("WIDEST") = outrider::kWidest;
    m.attr("GUESSED_SLOPE") = outrider::kGuessedSlope;
    m.attr("REPEATS") = outrider::kRepeats;
    nb::class_<CostCurve>(m, "CostCurve", nb::is_final())
        .def(
            "__init__",
            [](CostCurve* self, nb::object measured) { new (self) CostCurve(measured_of(measured)); },
            "measured"_a = nb::none())
        .def("seconds", &CostCurve::seconds, "n"_a)
        .def("doubt", &CostCurve::doubt, "n"_a)
        .def("observe", &CostCurve::observe, "n"_a, "seconds"_a)
        .def("observe_total", &CostCurve::observe_total, "predicted"_a, "seconds"_a)
        .def("elsewhere", &CostCurve::elsewhere)
        .def("age", &CostCurve::age, "steps"_a)
        .def(
            "best_count",
            [](const CostCurve& self, nb::handle chances, int64_t base, double rate) {
                return self.best_count(items(chances, number, std::numeric_limits<int64_t>::max()), base,
                                       rate);
            },
            "chances"_a, "base"_a, "rate"_a)
        .def(
            "best_nodes",
            [](const CostCurve& self, nb::handle paths, int64_t base, double rate) {
                constexpr int64_t all = std::numeric_limits<int64_t>::max();
                std::vector<std::vector<double>> trees;
                for (const nb::handle tree : nb::cast<nb::sequence>(paths))
                    trees.push_back(items(tree, number, all));
                const auto best = self.best_nodes(trees, base, rate);
                return nb::make_tuple(best.of, best.count, best.value);
            },
            "paths"_a, "base"_a, "rate"_a);
}

void bind_acceptance(nb::module_& m) {
    m.attr("EDGES") = tuple_of(outrider::kEdges);
    m.attr("CENTRES") = tuple_of(outrider::kCentres);
    m.attr("MOST") = outrider::kMostChance;
    m.attr("SHARED_MEMORY") = outrider::kSharedMemory;
    m.def("stage_of", &outrider::stage_of, "depth"_a);
    nb::class_<Acceptance>(m, "Acceptance", nb::is_final(), nb::type_slots(kCollected))
        .def(nb::init<double, double, nb::object, double>(), "start"_a = 0.7,
             "weight"_a = outrider::kStartWeight, "prior"_a = nb::none(),
             "memory"_a = outrider::kRequestMemory)
        .def("chance", &chance, "request_id"_a, "depth"_a, "confidence"_a = nb::none())
        .def("chances", &chances, "request_id"_a, "parents"_a, "confidence"_a, "most"_a)
        .def("learn", &learn, "request_id"_a, "depth"_a, "confidence"_a.none(), "accepted"_a)
        .def("learn_tree", &learn_tree, "request_id"_a, "tokens"_a, "parents"_a, "confidence"_a, "most"_a,
             "emitted"_a)
        .def("suppose", &suppose, "request_id"_a, "depth"_a, "chance"_a)
        .def("begin", [](Acceptance& self) { self.begin(); })
        .def(
            "forget", [](Acceptance& self, const nb::str& id) { self.forget(Id(id)); }, "request_id"_a)
        .def_prop_rw(
            "start", [](const Acceptance& self) { return self.start; },
            [](Acceptance& self, double start) { self.start = start; })
        .def_prop_ro("mean", [](const Acceptance& self) { return self.mean(); })
        .def_prop_ro("evidence", [](const Acceptance& self) { return self.evidence(); });
}

}  // namespace

NB_MODULE(_estimates, m) {
    // A controller may well be alive when the process ends, in a thread that is cut off: nothing to tell a
    // user of.
    nb::set_leak_warnings(false);
    bind_cost_curve(m);
    bind_acceptance(m);
}
