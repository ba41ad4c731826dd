#include "engine/bind_heads.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>

#include "engine/arrays.h"
#include "engine/head_draft.h"

namespace nb = nanobind;
using namespace nb::literals;
using outrider::Cache;
using outrider::HeadDraft;
using outrider::Model;

namespace {

using Tokens = std::vector<int32_t>;
using Sampling = std::tuple<double, double, int64_t, double, uint64_t, int64_t, Tokens>;
using Job =
    std::tuple<Cache*, Tokens, Floats2, Tokens, uint64_t, size_t, Sampling, std::optional<nb::capsule>, bool>;
using Drawn = std::tuple<Tokens, Tokens, std::vector<double>>;

constexpr int64_t kWidth = 64;  // bytes of the widest vectors that the sampler may use

// A head, and which of the target's ids its logits are of.
class HeadDrafts {
  public:
    HeadDrafts(Model& head, std::optional<Ints> ids) : head_(head) {
        if (!head.spec().is_head()) throw std::invalid_argument("the model is not a head");
        if (!ids) return;
        if (ids->shape(0) != size_t(head.spec().vocab))
            throw std::invalid_argument("each row of the output has an id");
        part_.emplace(Tokens(ids->data(), ids->data() + ids->shape(0)));
    }

    std::tuple<std::vector<Drawn>, std::vector<int>> draft(const std::vector<Job>& jobs) {
        std::vector<HeadDraft> drafts;
        for (const Job& job : jobs) drafts.push_back(checked(job));
        std::vector<int> passes;
        if (!drafts.empty()) {
            nb::gil_scoped_release release;
            passes = outrider::make_drafts(head_, part_ ? &*part_ : nullptr, drafts);
        }
        std::vector<Drawn> drawn;
        for (HeadDraft& draft : drafts)
            drawn.emplace_back(std::move(draft.drawn), std::move(draft.parents), std::move(draft.confidence));
        return {std::move(drawn), std::move(passes)};
    }

  private:
    HeadDraft checked(const Job& job) const {
        const auto& [cache, tokens, states, path, position, budget, sampling, guide, confident] = job;
        const auto& [temperature, min_p, top_k, top_p, seed, vocab, stop_ids] = sampling;
        if (!cache) throw std::invalid_argument("a cache is missing");
        if (tokens.empty() || budget < 1) throw std::invalid_argument("a draft has tokens before and after");
        check_states(states, tokens.size(), size_t(head_.spec().head.width()));
        if (!(temperature >= 0.0 && temperature < INFINITY && min_p >= 0.0 && min_p <= 1.0 && top_p > 0.0))
            throw std::invalid_argument("temperature, min_p or top_p is out of range");
        if (vocab < 1 || (part_ && part_->ids.back() >= vocab))
            throw std::invalid_argument("the head has ids outside the vocabulary");
        outrider::TreeGrowth* growth = nullptr;
        if (guide) growth = static_cast<outrider::TreeGrowth*>(guide->data(outrider::kTreeGrowth));
        if (growth && !confident) throw std::invalid_argument("a guide asks for confidence");
        return {cache,
                tokens,
                states.data(),
                path,
                position,
                budget,
                {{temperature, min_p, top_p, top_k, kWidth}, seed, vocab, stop_ids},
                growth,
                confident,
                {},
                {},
                {}};
    }

    Model& head_;
    std::optional<outrider::PartOfIds> part_;
};

}  // namespace

void bind_heads(nb::module_& m) {
    nb::class_<HeadDrafts>(m, "HeadDrafts")
        .def(nb::init<Model&, std::optional<Ints>>(), "head"_a, "ids"_a.none(), nb::keep_alive<1, 2>())
        .def("draft", &HeadDrafts::draft, "jobs"_a);
}
