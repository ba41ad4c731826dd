// Python bindings of what the controller learns in every step. Calls are short and keep the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <vector>

#include "policy/acceptance_rates.h"
#include "policy/cost_curve.h"
#include "policy/row_length.h"
#include "policy/tree_growth.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

double number(nb::handle value) {
    const double found = PyFloat_AsDouble(value.ptr());
    if (found == -1.0 && PyErr_Occurred()) nb::raise_python_error();
    return found;
}

// Integers that do not fit become the nearest one that does.
int64_t integer(nb::handle value) {
    int overflow = 0;
    const long long found = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    if (overflow)
        return overflow < 0 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
    if (found == -1 && PyErr_Occurred()) nb::raise_python_error();
    return found;
}

// The first `max_items` items of a sequence. `read` may run Python code, so the size is asked for each time.
template <class T>
std::vector<T> items(nb::handle values, T (*read)(nb::handle), int64_t max_items) {
    const nb::object held = nb::steal(PySequence_Fast(values.ptr(), "expected a sequence"));
    if (!held.is_valid()) nb::raise_python_error();
    std::vector<T> out;
    if (max_items > 0)
        out.reserve(size_t(std::min<int64_t>(max_items, PySequence_Fast_GET_SIZE(held.ptr()))));
    for (Py_ssize_t i = 0; i < max_items && i < PySequence_Fast_GET_SIZE(held.ptr()); i++)
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

using outrider::AcceptanceRates;
using outrider::RequestRates;
using Optional = std::optional<double>;

nb::tuple tree_probabilities(const AcceptanceRates& self, const RequestRates& request, nb::handle parents,
                             nb::handle confidence, int64_t max_nodes) {
    const auto tree =
        self.tree(request, items(parents, integer, max_nodes), items(confidence, number, max_nodes));
    return nb::make_tuple(tree.probabilities, tree.path_probabilities);
}

void observe_tree(AcceptanceRates& self, RequestRates& request, nb::handle tokens, nb::handle parents,
                  nb::handle confidence, int64_t max_nodes, nb::handle emitted, Optional prior_odds) {
    self.observe_tree(request, items(tokens, integer, max_nodes), items(parents, integer, max_nodes),
                      items(confidence, number, max_nodes),
                      items(emitted, integer, std::numeric_limits<int64_t>::max()), prior_odds);
}

void bind_cost_curve(nb::module_& m) {
    using outrider::CostCurve;
    m.attr("WIDEST") = outrider::kWidest;
    m.attr("GUESSED_SLOPE") = outrider::kGuessedSlope;
    m.attr("REPEATS") = outrider::kRepeats;
    nb::class_<CostCurve>(m, "CostCurve", nb::is_final())
        .def(
            "__init__",
            [](CostCurve* self, nb::object measured, nb::object longer, double positions) {
                new (self) CostCurve(measured_of(measured), {measured_of(longer), positions});
            },
            "measured"_a = nb::none(), "longer"_a = nb::none(), "positions"_a = 0.0)
        .def("move", &CostCurve::move, "positions"_a)
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

void bind_acceptance_rates(nb::module_& m) {
    m.attr("EDGES") = tuple_of(outrider::kEdges);
    m.attr("CENTRES") = tuple_of(outrider::kCentres);
    m.attr("MAX_PROBABILITY") = outrider::kMaxProbability;
    m.attr("SHARED_DECAY") = outrider::kSharedDecay;
    m.def("stage_of", &outrider::stage_of, "depth"_a);
    nb::class_<RequestRates>(m, "RequestRates", nb::is_final()).def(nb::init<>());
    nb::class_<AcceptanceRates>(m, "AcceptanceRates", nb::is_final())
        .def(nb::init<double, double, double>(), "start"_a = 0.7, "weight"_a = outrider::kStartWeight,
             "decay"_a = outrider::kRequestDecay)
        .def("probability", &AcceptanceRates::probability, "request"_a, "depth"_a,
             "confidence"_a = nb::none(), "prior_odds"_a = nb::none())
        .def("tree_probabilities", &tree_probabilities, "request"_a, "parents"_a, "confidence"_a,
             "max_nodes"_a)
        .def("observe", &AcceptanceRates::observe, "request"_a, "depth"_a, "confidence"_a.none(),
             "accepted"_a, "prior_odds"_a = nb::none())
        .def("observe_tree", &observe_tree, "request"_a, "tokens"_a, "parents"_a, "confidence"_a,
             "max_nodes"_a, "emitted"_a, "prior_odds"_a = nb::none())
        .def("observe_pruned", &AcceptanceRates::observe_pruned, "request"_a, "depth"_a, "probability"_a,
             "prior_odds"_a = nb::none())
        .def("begin_request", &AcceptanceRates::begin_request)
        .def_rw("start", &AcceptanceRates::start)
        .def_prop_ro("mean", &AcceptanceRates::mean)
        .def_prop_ro("evidence", &AcceptanceRates::evidence);
}

void bind_tree_growth(nb::module_& m) {
    using outrider::CostCurve;
    using outrider::ModelRates;
    using outrider::TreeGrowth;
    nb::class_<ModelRates>(m, "ModelRates", nb::is_final())
        .def(
            "__init__",
            [](ModelRates* self, const AcceptanceRates& first, const RequestRates& first_request,
               const AcceptanceRates& sibling, const RequestRates& sibling_request, Optional prior_odds) {
                new (self) ModelRates{&first, &first_request, &sibling, &sibling_request, prior_odds};
            },
            "first"_a, "first_request"_a, "sibling"_a, "sibling_request"_a, "prior_odds"_a = nb::none(),
            nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>())
        .def("expected", &ModelRates::expected, "most"_a)
        .def(
            "of_tree",
            [](const ModelRates& self, nb::handle parents, const std::vector<Optional>& confidence) {
                outrider::NodeProbabilities nodes(self);
                std::vector<double> probabilities;
                std::vector<Optional> given_wrong;
                const auto above = items(parents, integer, std::numeric_limits<int64_t>::max());
                if (above.size() != confidence.size())
                    throw std::invalid_argument("each node has a parent and a confidence");
                for (size_t i = 0; i < above.size(); i++) {
                    const auto& node = nodes.add(above[i], confidence[i]);
                    probabilities.push_back(node.probability);
                    given_wrong.push_back(node.confidence);
                }
                return nb::make_tuple(probabilities, given_wrong);
            },
            "parents"_a, "confidence"_a);
    m.def(
        "row_length",
        [](const CostCurve& seconds, const std::vector<std::vector<double>>& expected, double other,
           int64_t width, double spent, double one, double rate, double value, double prefill, double horizon,
           double left, int64_t requests) {
            const auto best = outrider::row_length(
                seconds, expected, {other, width, spent, one, rate, value, prefill, horizon, left, requests});
            return nb::make_tuple(best.length, best.worth, best.gained, best.chance, best.first);
        },
        "seconds"_a, "expected"_a, nb::kw_only(), "other"_a, "width"_a, "spent"_a, "one"_a, "rate"_a,
        "value"_a, "prefill"_a, "horizon"_a, "left"_a, "requests"_a);
    nb::class_<TreeGrowth>(m, "TreeGrowth", nb::is_final())
        .def(
            "__init__",
            [](TreeGrowth* self, const ModelRates& rates, const CostCurve& seconds, const CostCurve& draw,
               double rate, int64_t base, double pass_share, int64_t sharers, int64_t max_depth,
               int64_t max_siblings, bool branching) {
                new (self) TreeGrowth(rates, {&seconds, &draw, rate, base, pass_share, sharers},
                                      {max_depth, max_siblings, branching});
            },
            "rates"_a, "seconds"_a, "draw"_a, "rate"_a, "base"_a, nb::kw_only(), "pass_share"_a = 1.0,
            "sharers"_a = 1, "max_depth"_a = 8, "max_siblings"_a = 3, "branching"_a = true,
            nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
        .def("drew", &TreeGrowth::drew, "parent"_a, "confidence"_a)
        .def("next_node", &TreeGrowth::next_node, "ready"_a = -1)
        // For code in other modules: the object itself, valid while this one lives.
        .def_prop_ro("capsule", [](TreeGrowth& self) { return nb::capsule(&self, outrider::kTreeGrowth); });
}

}  // namespace

NB_MODULE(_estimates, m) {
    // A controller may be alive in a daemon thread when the process ends; that is no leak.
    nb::set_leak_warnings(false);
    bind_cost_curve(m);
    bind_acceptance_rates(m);
    bind_tree_growth(m);
}
