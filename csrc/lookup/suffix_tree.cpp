#include "lookup/suffix_tree.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <tuple>

namespace outrider {

namespace {

constexpr int kSharedLeast = 2;  // tokens of agreement that make a place in others' outputs
constexpr int kStranger = 6;     // tokens of agreement that count for nothing there
constexpr double kTrust = 1.5;   // tokens of agreement that make a lone place even odds to go on agreeing

using Set = uint32_t;  // of places

struct Child {
    int32_t token;
    double chance;
    Set places;  // that go on with it
};

// What follows `depth` tokens on, in the order of the first place of each.
std::vector<Child> children(const std::vector<Place>& places, Set alive, int depth, double factor) {
    std::vector<Child> found;  // `chance` is the weight at first
    double total = 0.0;
    for (Set rest = alive; rest; rest &= rest - 1) {
        const int which = std::countr_zero(rest);
        const Place& place = places[size_t(which)];
        if (depth >= place.length * factor) continue;
        int64_t step = place.at + depth;
        if (step >= place.end) {
            if (!place.period) continue;
            step = place.at + depth % place.period;
        }
        const int32_t token = place.tokens[step];
        if (token < 0) continue;  // outputs are parted there
        total += place.weight;
        const auto same =
            std::find_if(found.begin(), found.end(), [&](const Child& c) { return c.token == token; });
        if (same == found.end()) {
            found.push_back({token, place.weight, Set(1) << which});
        } else {
            same->chance += place.weight;
            same->places |= Set(1) << which;
        }
    }
    for (Child& child : found) {
        int longest = 0;
        for (Set rest = child.places; rest; rest &= rest - 1)
            longest = std::max(longest, places[size_t(std::countr_zero(rest))].length);
        const int agreed = std::min(longest + depth, kMaxMatch) * std::popcount(child.places);
        child.chance = child.chance / total * agreed / (agreed + kTrust);
    }
    return found;
}

struct Open {
    double path;
    int order, parent, depth;
    int32_t token;
    double chance;
    Set places;
    bool operator<(
        const Open& other) const {  // of a heap with the likeliest on top, the first opened of equal ones
        return std::tie(path, other.order) < std::tie(other.path, order);
    }
};

Set every(const std::vector<Place>& places) { return Set((uint64_t(1) << places.size()) - 1); }

}  // namespace

void Places::add_copy(const std::vector<int32_t>& path, int sure) {
    places_.push_back({path.data(), 0, int64_t(path.size()), 0, sure, double(sure) * sure});
}

void Places::add_own(const GramIndex& text, const std::vector<Match>& matches, int64_t but) {
    for (const Match& match : matches)
        if (match.start != but) add(text, match, true);
}

void Places::add_shared(const GramIndex& text, const std::vector<Match>& matches) {
    for (const Match& match : matches)
        if (match.length >= kSharedLeast) add(text, match, false);
}

void Places::add(const GramIndex& text, const Match& match, bool own) {
    const int64_t at = match.start - text.base(), end = int64_t(text.tokens().size());
    if (at < 0 || at >= end) throw std::invalid_argument("the matches are not of this text");
    if (places_.size() == kMostPlaces) throw std::invalid_argument("too many places");
    const int length = own ? match.length : std::max(1, match.length - kStranger);
    places_.push_back(
        {text.tokens().data(), at, end, own ? end - at : 0, length, double(match.length) * match.length});
}

void Places::keep(size_t most) {
    std::stable_sort(places_.begin(), places_.end(),
                     [](const Place& a, const Place& b) { return a.length > b.length; });
    if (places_.size() > most) places_.resize(most);
}

Tree SuffixTree::grow(const Places& places, size_t budget, const Ends& ends) const {
    Tree out;
    for (const Place& place : places.all()) out.length = std::max(out.length, place.length);
    std::vector<Open> open;
    Open at{1.0, 0, -1, 0, -1, 1.0, every(places.all())};
    int parent = -1, order = 0;
    for (;;) {
        if (at.depth < depth && out.tokens.size() < budget && (parent < 0 || !ends(at.token))) {
            for (const Child& child : children(places.all(), at.places, at.depth, factor)) {
                if (at.path * child.chance < least) continue;
                open.push_back({at.path * child.chance, ++order, parent, at.depth + 1, child.token,
                                child.chance, child.places});
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
        out.confidence.push_back(at.chance);
        out.paths.push_back(at.path);
    }
}

Tree SuffixTree::row(const Places& places, size_t most, const Ends& ends) const {
    Tree out;
    Set alive = every(places.all());
    while (alive && out.tokens.size() < most) {
        const auto found = children(places.all(), alive, int(out.tokens.size()), factor);
        if (found.empty()) break;
        const auto likelier = [](const Child& a, const Child& b) { return a.chance < b.chance; };
        const Child& best = *std::max_element(found.begin(), found.end(), likelier);
        out.tokens.push_back(best.token);
        out.confidence.push_back(best.chance);
        alive = best.places;
        if (ends(best.token)) break;
    }
    return out;
}

}  // namespace outrider
