// Where the last tokens of a text occurred before: an index of n-grams that grows with the text, and from
// whose beginning tokens can be dropped.
//
// For each size in kSizes a hash table maps an n-gram to the position after its latest occurrence, and each
// position links to the one before it (the hash chains of LZ77 coders, for several sizes). A search goes from
// the longest size down, and measures the full length of each match.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace outrider {

constexpr std::array<int, 5> kSizes = {1, 2, 4, 8, 16};
constexpr int kMaxMatch = 24;  // longer matches predict no better
constexpr int kChain = 24;     // positions examined for one size, the latest first

// An earlier occurrence of the text's last `length` tokens, 1 .. kMaxMatch. `start` is the index of the token
// that followed it.
struct Match {
    int64_t start;
    int length;
};

// Indices count from the first token ever added, so dropping old tokens does not change the others'. Adding
// and dropping cost O(1) per token, amortized; a search costs O(kChain) for a text of any length.
class GramIndex {
  public:
    const std::vector<int32_t>& tokens() const { return tokens_; }  // those not dropped
    int64_t base() const { return base_; }                          // index of tokens()[0]

    void push(int32_t token);
    // Drops the oldest `count` tokens and all positions at them.
    void drop_oldest(size_t count);
    // Up to `most` matches of the end of the text [end - size, end), of which at most kMaxMatch tokens are
    // compared: longer size classes first, and the latest first within a class.
    std::vector<Match> find(const int32_t* end, size_t size, size_t most) const;

    size_t entries() const;
    size_t nbytes() const;  // approximately

  private:
    using Keys = std::array<uint64_t, kSizes.size()>;
    // Keys of the n-grams that end at `end`; returns how many there are.
    static size_t keys_before(const int32_t* end, size_t size, Keys& keys);
    void erase(size_t at, size_t above);

    std::vector<int32_t> tokens_;
    int64_t base_ = 0;
    std::array<std::unordered_map<uint64_t, int64_t>, kSizes.size()> latest_;
    // For each position: the distance to the previous one after the same n-gram; 0: none.
    std::array<std::vector<uint32_t>, kSizes.size()> before_;
};

}  // namespace outrider
