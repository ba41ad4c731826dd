// The Python binding of lookups, the module _lookup. Calls are short and keep the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>

#include "lookup/gram_index.h"
#include "lookup/suffix_tree.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

int32_t token_of(nb::handle item) {
    const long token = PyLong_AsLong(item.ptr());
    if (token == -1 && PyErr_Occurred()) throw nb::python_error();
    if (token < INT32_MIN || token > INT32_MAX) throw std::invalid_argument("a token is out of range");
    return int32_t(token);
}

struct Matches {
    std::vector<outrider::Match> all;

    std::vector<std::pair<int64_t, int>> list() const {
        std::vector<std::pair<int64_t, int>> out;
        for (const auto& match : all) out.emplace_back(match.start, match.length);
        return out;
    }
    std::pair<int64_t, int> longest() const {
        const auto shorter = [](const auto& a, const auto& b) { return a.length < b.length; };
        const auto best = std::max_element(all.begin(), all.end(), shorter);
        return best == all.end() ? std::pair<int64_t, int>{-1, 0} : std::pair{best->start, best->length};
    }
};

// An index of a Python list, to which its owner appends.
class ListIndex {
  public:
    explicit ListIndex(nb::list tokens) : tokens_(std::move(tokens)) {}

    const outrider::GramIndex& index() const { return index_; }
    nb::list tokens() const { return tokens_; }

    void update() {
        const size_t size = nb::len(tokens_), known = index_.tokens().size();
        if (size < known) throw std::invalid_argument("tokens were taken out of a text that is indexed");
        for (size_t i = known; i < size; i++) index_.push(token_of(tokens_[i]));
    }

    Matches find(const nb::list& text, size_t most) const {
        const size_t size = nb::len(text);
        // The indexed list's tokens are stored here already, without following pointers to Python integers.
        if (text.is(tokens_) && size == index_.tokens().size())
            return {index_.find(index_.tokens().data() + size, size, most)};
        int32_t end[outrider::kMaxMatch];
        const size_t kept = std::min(size, size_t(outrider::kMaxMatch));
        for (size_t i = 0; i < kept; i++) end[i] = token_of(text[size - kept + i]);
        return {index_.find(end + kept, kept, most)};
    }

    void forget(size_t count) {
        update();
        index_.drop_oldest(count);
        if (PyList_SetSlice(tokens_.ptr(), 0, Py_ssize_t(std::min(count, nb::len(tokens_))), nullptr))
            throw nb::python_error();
    }

    size_t nbytes() const {
        constexpr size_t listed = sizeof(void*) + 28;  // an integer in a list
        return index_.nbytes() + listed * nb::len(tokens_);
    }

  private:
    nb::list tokens_;
    outrider::GramIndex index_;
};

// Whether generation ends with a token: `stop_ids` may be any container.
outrider::IsStop is_stop_in(const nb::object& stop_ids) {
    return [&stop_ids](int32_t token) {
        const int found = PySequence_Contains(stop_ids.ptr(), nb::int_(token).ptr());
        if (found < 0) throw nb::python_error();
        return found == 1;
    };
}

nb::tuple grow(const outrider::SuffixTree& tree, const ListIndex& text, const Matches& matches,
               const ListIndex* others, const Matches* theirs, const nb::object& copy, size_t budget,
               size_t most, const nb::object& stop_ids) {
    outrider::Continuations continuations;
    std::vector<int32_t> path;
    int64_t copied = -1;
    if (!copy.is_none()) {
        copied = nb::cast<int64_t>(copy[0]);
        path = nb::cast<std::vector<int32_t>>(copy[1]);
        continuations.add_copy(path, nb::cast<int>(copy[2]));
    }
    continuations.add_own(text.index(), matches.all, copied);
    if (others && theirs) {
        continuations.add_shared(others->index(), theirs->all);
        continuations.keep(most);
    }
    const outrider::Tree found = tree.grow(continuations, budget, is_stop_in(stop_ids));
    return nb::make_tuple(found.tokens, found.parents, found.confidence, found.paths, found.length,
                          found.shared);
}

nb::tuple row(const outrider::SuffixTree& tree, const ListIndex& text, const Matches& matches,
              const ListIndex* others, const Matches* theirs, size_t most, const nb::object& stop_ids) {
    outrider::Continuations continuations;
    continuations.add_own(text.index(), matches.all, -1);
    if (others && theirs) continuations.add_shared(others->index(), theirs->all);
    const outrider::Tree found = tree.row(continuations, most, is_stop_in(stop_ids));
    return nb::make_tuple(found.tokens, found.confidence);
}

}  // namespace

NB_MODULE(_lookup, m) {
    // A drafter may be alive when the process ends, in a thread that is interrupted: not worth a warning.
    nb::set_leak_warnings(false);
    m.attr("SIZES") = nb::cast(std::vector<int>(outrider::kSizes.begin(), outrider::kSizes.end()));
    m.attr("MAX_MATCH") = outrider::kMaxMatch;
    m.attr("CHAIN") = outrider::kChain;

    nb::class_<Matches>(m, "Matches", nb::is_final())
        .def("__len__", [](const Matches& self) { return self.all.size(); })
        .def("list", &Matches::list)
        .def("longest", &Matches::longest);

    nb::class_<ListIndex>(m, "GramIndex", nb::is_final())
        .def(nb::init<nb::list>(), "tokens"_a)
        .def_prop_ro("tokens", &ListIndex::tokens)
        .def_prop_ro("base", [](const ListIndex& self) { return self.index().base(); })
        .def_prop_ro("entries", [](const ListIndex& self) { return self.index().entries(); })
        .def_prop_ro("nbytes", &ListIndex::nbytes)
        .def("update", &ListIndex::update)
        .def("find", &ListIndex::find, "text"_a, "most"_a)
        .def("forget", &ListIndex::forget, "count"_a);

    nb::class_<outrider::SuffixTree>(m, "SuffixTree", nb::is_final())
        .def(nb::init<int, double, double, bool>(), "depth"_a, "factor"_a, "least"_a, "branches"_a)
        .def("grow", &grow, "text"_a, "matches"_a, "others"_a.none(), "theirs"_a.none(), "copy"_a.none(),
             "budget"_a, "most"_a, "stop_ids"_a)
        .def("row", &row, "text"_a, "matches"_a, "others"_a.none(), "theirs"_a.none(), "most"_a,
             "stop_ids"_a);
}
