#include "lookup/suffix_tree.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <tuple>

namespace outrider {

namespace {

constexpr int kSharedMinMatch = 2;  // tokens that a match in others' outputs must have
constexpr int kSharedDiscount = 6;  // tokens of such a match that do not count
constexpr double kEvenOdds =
    1.5;  // matched tokens after which a single continuation is right half of the time

using Set = uint32_t;  // of continuations, one bit each

struct Child {
    int32_t token;
    double confidence;
    Set continuations;  // that have this token next
};

// The tokens that the continuations in `alive` have after `depth` tokens, in the order of the first that has
// each.
std::vector<Child> children(const std::vector<Continuation>& continuations, Set alive, int depth,
                            double factor) {
    std::vector<Child> found;  // `confidence` holds the weight at first
    double total = 0.0;
    for (Set rest = alive; rest; rest &= rest - 1) {
        const int which = std::countr_zero(rest);
        const Continuation& from = continuations[size_t(which)];
        if (depth >= from.length * factor) continue;
        int64_t step = from.at + depth;
        if (step >= from.end) {
            if (!from.period) continue;
            step = from.at + depth % from.period;
        }
        const int32_t token = from.tokens[step];
        if (token < 0) continue;  // outputs are separated by negative ids
        total += from.weight;
        const auto same =
            std::find_if(found.begin(), found.end(), [&](const Child& c) { return c.token == token; });
        if (same == found.end()) {
            found.push_back({token, from.weight, Set(1) << which});
        } else {
            same->confidence += from.weight;
            same->continuations |= Set(1) << which;
        }
    }
    for (Child& child : found) {
        int longest = 0;
        for (Set rest = child.continuations; rest; rest &= rest - 1)
            longest = std::max(longest, continuations[size_t(std::countr_zero(rest))].length);
        const int agreed = std::min(longest + depth, kMaxMatch) * std::popcount(child.continuations);
        child.confidence = child.confidence / total * agreed / (agreed + kEvenOdds);
    }
    return found;
}

struct OpenNode {
    double path;
    int order, parent, depth;
    int32_t token;
    double confidence;
    Set continuations;
    bool operator<(
        const OpenNode& other) const {  // for a heap: the most likely on top, of equal ones the first opened
        return std::tie(path, other.order) < std::tie(other.path, order);
    }
};

Set every(const std::vector<Continuation>& continuations) {
    return Set((uint64_t(1) << continuations.size()) - 1);
}

}  // namespace

void Continuations::add_copy(const std::vector<int32_t>& path, int agreement) {
    continuations_.push_back(
        {path.data(), 0, int64_t(path.size()), 0, agreement, double(agreement) * agreement, false});
}

void Continuations::add_own(const GramIndex& text, const std::vector<Match>& matches, int64_t excluded) {
    for (const Match& match : matches)
        if (match.start != excluded) add(text, match, true);
}

void Continuations::add_shared(const GramIndex& text, const std::vector<Match>& matches) {
    for (const Match& match : matches)
        if (match.length >= kSharedMinMatch) add(text, match, false);
}

void Continuations::add(const GramIndex& text, const Match& match, bool own) {
    const int64_t at = match.start - text.base(), end = int64_t(text.tokens().size());
    if (at < 0 || at >= end) throw std::invalid_argument("the matches are not of this text");
    if (continuations_.size() == kMaxContinuations) throw std::invalid_argument("too many continuations");
    const int length = own ? match.length : std::max(1, match.length - kSharedDiscount);
    continuations_.push_back({text.tokens().data(), at, end, own ? end - at : 0, length,
                              double(match.length) * match.length, !own});
}

void Continuations::keep(size_t most) {
    std::stable_sort(continuations_.begin(), continuations_.end(),
                     [](const Continuation& a, const Continuation& b) { return a.length > b.length; });
    if (continuations_.size() > most) continuations_.resize(most);
}

Tree SuffixTree::grow(const Continuations& continuations, size_t budget, const IsStop& is_stop) const {
    Tree out;
    Set own = 0;
    for (size_t i = 0; i < continuations.all().size(); i++) {
        const Continuation& from = continuations.all()[i];
        out.length = std::max(out.length, from.length);
        if (!from.shared) own |= Set(1) << i;
    }
    const bool any_shared = own != every(continuations.all());
    std::vector<OpenNode> open;
    OpenNode at{1.0, 0, -1, 0, -1, 1.0, every(continuations.all())};
    int parent = -1, order = 0;
    for (;;) {
        if (at.depth < depth && out.tokens.size() < budget && (parent < 0 || !is_stop(at.token))) {
            for (const Child& child : children(continuations.all(), at.continuations, at.depth, factor)) {
                if (at.path * child.confidence < least) continue;
                open.push_back({at.path * child.confidence, ++order, parent, at.depth + 1, child.token,
                                child.confidence, child.continuations});
                std::push_heap(open.begin(), open.end());
            }
        }
        if (open.empty() || out.tokens.size() >= budget) return out;
        std::pop_heap(open.begin(), open.end());
        at = open.back();
        open.pop_back();
        if (!branches) open.clear();
        parent = int(out.tokens.size());
        out.tokens.push_back(at.token);
        out.parents.push_back(at.parent);
        out.confidence.push_back(at.confidence);
        out.paths.push_back(at.path);
        if (any_shared) out.shared.push_back(!(at.continuations & own));
    }
}

Tree SuffixTree::row(const Continuations& continuations, size_t most, const IsStop& is_stop) const {
    Tree out;
    Set alive = every(continuations.all());
    while (alive && out.tokens.size() < most) {
        const auto found = children(continuations.all(), alive, int(out.tokens.size()), factor);
        if (found.empty()) break;
        const auto less_likely = [](const Child& a, const Child& b) { return a.confidence < b.confidence; };
        const Child& best = *std::max_element(found.begin(), found.end(), less_likely);
        out.tokens.push_back(best.token);
        out.confidence.push_back(best.confidence);
        alive = best.continuations;
        if (is_stop(best.token)) break;
    }
    return out;
}

}  // namespace outrider
