#include "lookup/gram_index.h"

#include <algorithm>

namespace outrider {

size_t GramIndex::keys_before(const int32_t* end, size_t size, Keys& keys) {
    uint64_t key = 0;
    size_t known = 0;
    for (int n = 1; size_t(n) <= size && known < kSizes.size(); n++) {
        key = (key + uint64_t(uint32_t(end[-n])) + 1) * 0x9e3779b97f4a7c15;
        key ^= key >> 32;
        if (n == kSizes[known]) keys[known++] = key;
    }
    return known;
}

void GramIndex::push(int32_t token) {
    Keys keys;
    const size_t known = keys_before(tokens_.data() + tokens_.size(), tokens_.size(), keys);
    const int64_t position = base_ + int64_t(tokens_.size());
    for (size_t s = 0; s < kSizes.size(); s++) {
        uint32_t back = 0;
        if (s < known) {
            const auto [entry, is_new] = latest_[s].try_emplace(keys[s], position);
            if (!is_new) {
                const int64_t far = position - entry->second;
                if (entry->second >= base_ && far <= UINT32_MAX) back = uint32_t(far);
                entry->second = position;
            }
        }
        before_[s].push_back(back);
    }
    tokens_.push_back(token);
}

std::vector<Match> GramIndex::find(const int32_t* end, size_t size, size_t most) const {
    std::vector<Match> found;
    Keys keys;
    const size_t known = keys_before(end, size, keys);
    // From the shortest up to the first that never occurred: longer n-grams did not occur either.
    std::array<int64_t, kSizes.size()> starts;
    size_t count = 0;
    for (; count < known; count++) {
        const auto entry = latest_[count].find(keys[count]);
        if (entry == latest_[count].end() || entry->second < base_) break;
        starts[count] = entry->second;
    }
    while (count-- > 0) {
        int64_t position = starts[count];
        for (int left = kChain; left > 0 && position >= base_; left--) {
            const size_t at = size_t(position - base_);
            if (std::none_of(found.begin(), found.end(),
                             [&](const Match& m) { return m.start == position; })) {
                const int limit = int(std::min({size_t(kMaxMatch), at, size}));
                int length = 0;
                while (length < limit && tokens_[at - size_t(length) - 1] == end[-length - 1]) length++;
                if (length >= kSizes[count]) {  // (otherwise two n-grams have the same key)
                    if (found.size() == most) return found;
                    found.push_back({position, length});
                }
            }
            const uint32_t back = before_[count][at];
            if (back == 0) break;
            position -= back;
        }
    }
    return found;
}

// Removes position `at` (an index into tokens()) from the tables of n-grams longer than `above`.
void GramIndex::erase(size_t at, size_t above) {
    Keys keys;
    const size_t known = keys_before(tokens_.data() + at, at, keys);
    for (size_t s = 0; s < known; s++) {
        if (size_t(kSizes[s]) <= above) continue;
        const auto entry = latest_[s].find(keys[s]);
        if (entry != latest_[s].end() && entry->second == base_ + int64_t(at)) latest_[s].erase(entry);
    }
}

void GramIndex::drop_oldest(size_t count) {
    count = std::min(count, tokens_.size());
    for (size_t at = 0; at < count; at++) erase(at, 0);
    // N-grams that reach across the cut could not be found later, since their key needs the dropped tokens:
    // remove their entries now.
    for (size_t at = count; at < std::min(count + size_t(kSizes.back()), tokens_.size()); at++)
        erase(at, at - count);
    tokens_.erase(tokens_.begin(), tokens_.begin() + ptrdiff_t(count));
    for (auto& before : before_) before.erase(before.begin(), before.begin() + ptrdiff_t(count));
    base_ += int64_t(count);
}

size_t GramIndex::entries() const {
    size_t sum = 0;
    for (const auto& latest : latest_) sum += latest.size();
    return sum;
}

size_t GramIndex::nbytes() const {
    constexpr size_t entry = 40;  // of a hash table: key, position, link and bucket
    return sizeof(*this) + entry * entries() + (kSizes.size() + 1) * sizeof(int32_t) * tokens_.size();
}

}  // namespace outrider
