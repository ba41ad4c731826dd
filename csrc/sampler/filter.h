// Which tokens of a row top_k, top_p and min_p keep, and the distribution over them.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "sampler/noise.h"
#include "sampler/row.h"
#include "sampler/sample.h"

namespace outrider {
namespace {

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

// Tokens with less than e^-50 times the best token's probability change the total by less than half a
// rounding step, and cannot win either: noise is between -3.14 and 28.5.
constexpr double kNegligibleMass = 50.0;
// Tokens with more than e^-8 times the best token's probability are examined first.
constexpr double kLikelyReach = 8.0;
// Far more than the rounding of sums.
constexpr double kRoundingMargin = 1.0 - 1e-9;

// The last token that the filters keep: they keep all that rank no lower. On ties the lower id ranks higher.
struct Cut {
    double score = -kInfinity;
    int64_t id = kAll;
    bool keeps(double s, int64_t i) const { return s > score || (s == score && i <= id); }
};

// Some of the row's tokens, by ascending id. score: log-probability up to a constant, 0 for the best.
struct Tokens {
    std::vector<double> score;
    std::vector<int64_t> id;
    std::vector<double> mass;  // e^score

    size_t size() const { return id.size(); }
    void weigh() {
        mass.resize(size());
        token_masses(score.data(), int64_t(size()), mass.data());
    }
    template <class Test>
    void keep_if(Test test) {
        size_t n = 0;
        for (size_t i = 0; i < size(); i++)
            if (test(i)) score[n] = score[i], id[n] = id[i], n++;
        score.resize(n), id.resize(n);
    }
};

double sum(const std::vector<double>& values) {  // 256 at a time, so that rounding errors stay small
    double total = 0.0;
    for (size_t at = 0; at < values.size(); at += 256) {
        double part = 0.0;
        for (size_t i = at; i < std::min(at + 256, values.size()); i++) part += values[i];
        total += part;
    }
    return total;
}

// The last of the k best, 0 < k <= size.
Cut top_k_cut(const Tokens& tokens, size_t k) {
    std::vector<Cut> order(tokens.size());
    for (size_t i = 0; i < order.size(); i++) order[i] = {tokens.score[i], tokens.id[i]};
    const auto before = [](const Cut& a, const Cut& b) {
        return a.score > b.score || (a.score == b.score && a.id < b.id);
    };
    std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), before);
    return order[k - 1];
}

// The last token of the smallest set of best tokens whose mass reaches `wanted`. Scores are sorted into bins
// of equal width, repeatedly, until few tokens are left; only those are sorted.
Cut top_p_cut(const Tokens& tokens, double wanted) {
    constexpr int bins = 512;
    std::vector<uint32_t> left(tokens.size());
    for (size_t i = 0; i < left.size(); i++) left[i] = uint32_t(i);
    double reached = 0.0;  // mass of the tokens above those left
    while (left.size() > 64) {
        double high = -kInfinity, low = kInfinity;
        for (const uint32_t i : left)
            high = std::max(high, tokens.score[i]), low = std::min(low, tokens.score[i]);
        const double scale = (bins - 1) / (high - low);
        if (!(scale < kInfinity)) break;
        const auto bin = [&](uint32_t i) {
            return std::min(bins - 1, int((high - tokens.score[i]) * scale));
        };
        double mass[bins] = {};
        uint32_t count[bins] = {};
        for (const uint32_t i : left) mass[bin(i)] += tokens.mass[i], count[bin(i)]++;
        int at = 0, last = bins - 1;
        while (!count[last]) last--;
        while (at < last && reached + mass[at] < wanted) reached += mass[at++];
        std::erase_if(left, [&](uint32_t i) { return bin(i) != at; });
    }
    const auto higher = [&](uint32_t a, uint32_t b) { return tokens.score[a] > tokens.score[b]; };
    std::stable_sort(left.begin(), left.end(), higher);
    size_t i = 0;
    while (i + 1 < left.size() && (reached += tokens.mass[left[i]]) < wanted) i++;
    return {tokens.score[left[i]], tokens.id[left[i]]};
}

// A row's scores, and the tokens that the filters keep.
template <class T>
class Filter {
  public:
    Filter(const Row<T>& row, const SampleParams& params)
        : row_(row),
          params_(params),
          limit_(params.min_p > 0.0 ? -natural_log(std::max(params.min_p, 0x1p-1022)) : kInfinity),
          reach_(std::min(limit_, kNegligibleMass)) {}

    Distribution distribution() const {
        if (whole()) return everything();
        const Tokens tokens = kept();
        const double share = 1.0 / sum(tokens.mass);
        const size_t size = tokens.size();
        Distribution out{std::make_unique_for_overwrite<int64_t[]>(size),
                         std::make_unique_for_overwrite<double[]>(size), int64_t(size), row_.best()};
        std::copy(tokens.id.begin(), tokens.id.end(), out.ids.get());
        for (size_t i = 0; i < size; i++) out.probs[i] = tokens.mass[i] * share;
        return out;
    }

    // One token's probability in it.
    double probability(int64_t token) const {
        double found = 0.0, total;
        if (whole()) {
            total = mass([&](int64_t g, const double* masses) {
                if (g == token / kNoiseGroup) found = masses[token % kNoiseGroup];
            });
        } else {
            const Tokens tokens = kept();
            const auto at = std::lower_bound(tokens.id.begin(), tokens.id.end(), token);
            if (at != tokens.id.end() && *at == token) found = tokens.mass[size_t(at - tokens.id.begin())];
            total = sum(tokens.mass);
        }
        return found * (1.0 / total);
    }

  protected:
    bool whole() const { return params_.top_k <= 0 && params_.top_p >= 1.0; }  // both filters are off

    // Ids and masses of the tokens that the filters keep.
    Tokens kept() const {
        Cut cut{-limit_, kAll};
        if (params_.top_k > 0)
            cut = top_k_top_p(cut);
        else if (params_.top_p < 1.0)
            cut = top_p();
        Tokens tokens = collect(std::min(reach_, -cut.score), -kInfinity);
        tokens.keep_if([&](size_t i) { return cut.keeps(tokens.score[i], tokens.id[i]); });
        tokens.weigh();
        return tokens;
    }

    // The probability of every token within reach.
    Distribution everything() const {
        const double least = least_within(reach_);
        int64_t room = kNoiseGroup, size = 0;
        for (int64_t g = 0; g < row_.groups(); g++) room += row_.maxima()[g] >= least ? row_.count(g) : 0;
        Distribution out{nullptr, std::make_unique_for_overwrite<double[]>(size_t(room)), 0, row_.best()};
        double* const probs = out.probs.get();
        const auto list_ids = [&] {  // ids must be listed from here on; so far none was left out
            out.ids = std::make_unique_for_overwrite<int64_t[]>(size_t(room));
            std::iota(out.ids.get(), out.ids.get() + size, 0);
        };
        const auto take = [&](int64_t g, const double* mass) {
            const int64_t first = g * kNoiseGroup, count = row_.count(g);
            int64_t kept = 0;
            for (int64_t i = 0; i < kNoiseGroup; i++) kept += mass[i] > 0.0;
            if (!out.ids && (kept < count || size < first)) list_ids();
            if (kept == count) {
                if (out.ids) std::iota(out.ids.get() + size, out.ids.get() + size + count, first);
                size += count;
                return;
            }
            for (int64_t i = 0; i < count; i++) {
                probs[size] = mass[i], out.ids[size] = first + i;
                size += mass[i] > 0.0;
            }
        };
        const double total = row_.weigh(params_.temperature, least, [&] { return probs + size; }, take);
        if (!out.ids && size < row_.size()) list_ids();
        const double share = 1.0 / total;
        for (int64_t i = 0; i < size; i++) probs[i] *= share;
        out.size = size;
        return out;
    }

    double score(double value) const { return (value - row_.best()) / params_.temperature; }

    // A logit below which every score is less than `least` <= 0, with a margin for rounding.
    double floor_of(double least) const {
        return std::nextafter(row_.best() + (least - 1e-3) * params_.temperature, -kInfinity);
    }

    // The smallest logit with a score of at least -reach, by bisection over the bits of doubles, which have
    // the same order.
    double least_within(double reach) const {
        const auto flipped = [](int64_t b) { return b < 0 ? std::numeric_limits<int64_t>::min() - b : b; };
        int64_t low = flipped(int64_t(double_bits(-kInfinity))),
                high = flipped(int64_t(double_bits(row_.best())));
        for (;;) {
            const int64_t middle = (low >> 1) + (high >> 1) + (low & high & 1);
            if (middle == low) return bits_double(uint64_t(flipped(high)));
            (score(bits_double(uint64_t(flipped(middle)))) >= -reach ? high : low) = middle;
        }
    }

    // The tokens with a score of at least -reach and a logit of at least `floor`.
    Tokens collect(double reach, double floor) const {
        Tokens found;
        floor = std::max(floor, floor_of(-reach));
        double values[kNoiseGroup];
        for (int64_t g = 0; g < row_.groups(); g++) {
            if (row_.maxima()[g] < floor) continue;
            row_.load(g, values);
            for (int64_t i = 0; i < row_.count(g); i++) {
                if (values[i] < floor) continue;
                const double s = score(values[i]);
                if (s >= -reach) found.score.push_back(s), found.id.push_back(row_.id(g, i));
            }
        }
        return found;
    }

    // The last token that top_k and top_p keep, if both are on or top_k alone is; `cut` is min_p's.
    Cut top_k_top_p(Cut cut) const {
        double floor = -kInfinity;
        if (params_.top_k < row_.groups()) {  // at least top_k tokens reach this maximum
            std::vector<double> maxima = row_.maxima();
            std::nth_element(maxima.begin(), maxima.begin() + (params_.top_k - 1), maxima.end(),
                             std::greater<>());
            floor = floor_of(score(maxima[params_.top_k - 1]));  // (smaller logits may have the same score)
        }
        Tokens tokens = collect(reach_, floor);
        if (uint64_t(params_.top_k) <= tokens.size()) {
            cut = top_k_cut(tokens, size_t(params_.top_k));
            tokens.keep_if([&](size_t i) { return cut.keeps(tokens.score[i], tokens.id[i]); });
        }
        if (params_.top_p >= 1.0) return cut;
        tokens.weigh();
        return top_p_cut(tokens, params_.top_p * sum(tokens.mass));
    }

    Tokens weighed(double reach) const {
        Tokens tokens = collect(reach, -kInfinity);
        tokens.weigh();
        return tokens;
    }

    // The mass of all tokens within reach. Calls take(g, masses) with the 256 masses of each group.
    template <class Take>
    double mass(Take take) const {
        double scratch[kNoiseGroup];
        return row_.weigh(params_.temperature, least_within(reach_), [&] { return scratch; }, take);
    }
    double mass() const {
        return mass([](int64_t, const double*) {});
    }

    // The last token that top_p keeps, without top_k. Usually the likely tokens suffice to find it.
    Cut top_p() const {
        const double wanted = params_.top_p * mass();
        const Tokens likely = weighed(std::min(kLikelyReach, reach_));
        if (sum(likely.mass) * kRoundingMargin > wanted) return top_p_cut(likely, wanted);
        return top_p_cut(weighed(reach_), wanted);
    }

    const Row<T>& row_;
    const SampleParams& params_;
    const double limit_, reach_;
};

}  // namespace
}  // namespace outrider
