#include "engine/head_draft.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace outrider {
namespace {

// A draft under construction. node: whose children are drawn next, -1 for the draft's start; `input` is the
// token of the next pass.
struct Growing {
    HeadDraft& draft;
    int64_t node = -1, depth = 0;
    size_t followed = 0;  // tokens of the path in the passes so far
    int32_t input = 0;

    bool grow(float* logits, int64_t size, const PartOfIds* part);

  private:
    void draw_below(float* logits, int64_t size, const PartOfIds* part);
    void add(int64_t token);
    bool drew(int64_t token, double confidence);
    int64_t next_node();
};

// Draws below the node. Returns whether the draft needs another pass.
bool Growing::grow(float* logits, int64_t size, const PartOfIds* part) {
    if (followed < draft.path.size()) {
        input = draft.path[followed++];
        return true;
    }
    const size_t before = draft.drawn.size();
    draw_below(logits, size, part);
    if (draft.drawn.size() == before) return false;
    node = next_node();
    if (node < 0) return false;
    depth++;
    input = draft.drawn[size_t(node)];
    return true;
}

void Growing::draw_below(float* logits, int64_t size, const PartOfIds* part) {
    const DrawParams& by = draft.draw;
    SiblingDraws draws(logits, part ? size : std::min(size, by.vocab), part, by.sample, by.seed,
                       draft.position + uint64_t(depth));
    const std::optional<int64_t> token = draws.next();
    if (!token) return;
    if (!draft.confident) return add(*token);
    // That the target draws the first token and not the one that follows it.
    const auto confidence = [&] { return -std::expm1(-draws.margin()); };
    std::optional<int64_t> following = draws.next();
    bool more = drew(*token, following ? confidence() : 1.0);
    while (more && following && draft.drawn.size() < draft.budget) {
        more = drew(*following, 1.0 - confidence());
        if (more) following = draws.next();
    }
}

void Growing::add(int64_t token) {
    draft.drawn.push_back(int32_t(token));
    draft.parents.push_back(int32_t(node));
}

// Adds a token with its confidence. Returns whether a further sibling is wanted.
bool Growing::drew(int64_t token, double confidence) {
    add(token);
    draft.confidence.push_back(confidence);
    return draft.guide && draft.guide->drew(node, confidence);
}

int64_t Growing::next_node() {
    if (draft.drawn.size() >= draft.budget) return -1;
    const int64_t next = draft.guide ? draft.guide->next_node(-1) : int64_t(draft.drawn.size()) - 1;
    if (next < 0) return -1;
    const auto& stops = draft.draw.stop_ids;
    return std::find(stops.begin(), stops.end(), draft.drawn[size_t(next)]) == stops.end() ? next : -1;
}

}  // namespace

std::vector<int> make_drafts(Model& head, const PartOfIds* part, std::vector<HeadDraft>& drafts) {
    const size_t hidden = size_t(head.spec().hidden), vocab = size_t(head.spec().vocab),
                 width = size_t(head.spec().head.width());
    size_t longest = 2;
    for (const HeadDraft& draft : drafts) longest = std::max(longest, draft.tokens.size());
    std::vector<int32_t> chain(longest), last;  // -1, 0, …: the parents of a chain; each draft's last token
    std::iota(chain.begin(), chain.end(), -1);
    for (const HeadDraft& draft : drafts) last.push_back(int32_t(draft.tokens.size()) - 1);

    std::vector<Growing> active;
    std::vector<BatchItem> items;
    std::vector<float> in;
    for (size_t i = 0; i < drafts.size(); i++) {
        HeadDraft& draft = drafts[i];
        active.push_back({draft});
        items.push_back({draft.cache, draft.tokens.data(), chain.data(), &last[i], last[i] + 1, 1});
        in.insert(in.end(), draft.states, draft.states + draft.tokens.size() * width);
    }
    std::vector<float> logits(drafts.size() * vocab), given(drafts.size() * hidden);
    std::vector<int> passes;
    for (bool fed_back = false;; fed_back = true) {
        const HeadStates states{in.data(), fed_back, given.data()};
        head.forward(items, logits.data(), nullptr, nullptr, &states);
        std::vector<Growing> growing;
        in.clear();
        for (size_t i = 0; i < active.size(); i++) {
            if (!active[i].grow(logits.data() + i * vocab, int64_t(vocab), part)) continue;
            growing.push_back(active[i]);
            in.insert(in.end(), given.data() + i * hidden, given.data() + (i + 1) * hidden);
        }
        if (growing.empty()) return passes;
        active.swap(growing);
        items.clear();
        for (const Growing& each : active)
            items.push_back({each.draft.cache, &each.input, &chain[0], &chain[1], 1, 1});
        passes.push_back(int(active.size()));
    }
}

}  // namespace outrider
