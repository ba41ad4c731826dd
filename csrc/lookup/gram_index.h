// Where the last tokens of a text stood before: an index of n-grams that grows and forgets with the text.
//
// For each size in kSizes a hash table leads to the latest place that an n-gram was followed at, and each
// place leads to the one before it (the hash chains of LZ77 coders, at several sizes). Matching goes from the
// longest size down, and measures how far each place really agrees.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace outrider {

constexpr std::array<int, 5> kSizes = {1, 2, 4, 8, 16};
constexpr int kMaxMatch = 24;  // agreement beyond this many tokens tells nothing more
constexpr int kChain = 24;     // places looked at for one size, the latest first

// A place whose tokens before it are the text's last: `start` is the index of what followed there, `length`
// how many tokens agree, 1 .. kMaxMatch.
struct Match {
    int64_t start;
    int length;
};

// Indices count from the first token ever added: `forget` drops old ones without moving the others. Adding
// and forgetting cost O(1) per token, amortized; a search costs O(kChain) however long the text is.
class GramIndex {
  public:
    const std::vector<int32_t>& tokens() const { return tokens_; }  // those not forgotten
    int64_t base() const { return base_; }                          // index of tokens()[0]

    void push(int32_t token);
    // Drops the oldest `count` tokens and every place at them.
    void forget(size_t count);
    // Up to `most` places that agree with the text that ends at `end` and has `size` tokens, of which the
    // last kMaxMatch are looked at: longer size classes first, and the latest first within a class.
    std::vector<Match> find(const int32_t* end, size_t size, size_t most) const;

    size_t entries() const;
    size_t nbytes() const;  // about

  private:
    using Keys = std::array<uint64_t, kSizes.size()>;
    // Keys of the n-grams that end there, and how many of them there are.
    static size_t keys_before(const int32_t* end, size_t size, Keys& keys);
    void drop(size_t at, size_t above);

    std::vector<int32_t> tokens_;
    int64_t base_ = 0;
    std::array<std::unordered_map<uint64_t, int64_t>, kSizes.size()> latest_;
    // By place - base: how far before it the same n-gram was followed last; 0: nowhere.
    std::array<std::vector<uint32_t>, kSizes.size()> before_;
};

}  // namespace outrider
