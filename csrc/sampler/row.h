// A row of logits: the maximum of each group of 256 ids, and the masses of its tokens.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "sampler/noise.h"
#include "sampler/sample.h"

namespace outrider {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Bytes of the widest vectors that the processor has, at most `width`.
inline int usable_width([[maybe_unused]] int64_t width) {
#if defined(__x86_64__)
    if (width >= 64 && __builtin_cpu_supports("avx512f")) return 64;
    if (width >= 32 && __builtin_cpu_supports("avx2")) return 32;
#endif
    return 16;
}

// The maximum of `size` values; NaN if any is NaN. A maximum does not depend on the order, so any vector
// width gives the same result.
template <class T, int bytes>
[[gnu::always_inline]] inline double maximum_by(const T* values, int64_t size) {
    typedef T Lanes __attribute__((vector_size(bytes)));
    constexpr int lanes = bytes / int(sizeof(T)), unrolled = 4;
    Lanes most[unrolled];
    decltype(most[0] != most[0]) nan_lanes = {};
    for (Lanes& m : most) m = Lanes{} - T(kInfinity);
    int64_t i = 0;
    for (; i + unrolled * lanes <= size; i += unrolled * lanes)
        for (int j = 0; j < unrolled; j++) {
            Lanes v;
            std::memcpy(&v, values + i + j * lanes, sizeof v);
            nan_lanes |= v != v;
            most[j] = v > most[j] ? v : most[j];
        }
    for (int j = 1; j < unrolled; j++) most[0] = most[j] > most[0] ? most[j] : most[0];
    double top = -kInfinity;
    bool any_nan = false;
    for (int l = 0; l < lanes; l++) top = std::max(top, double(most[0][l])), any_nan |= nan_lanes[l] != 0;
    for (; i < size; i++) top = std::max(top, double(values[i])), any_nan |= values[i] != values[i];
    return any_nan ? std::numeric_limits<double>::quiet_NaN() : top;
}

#if defined(__x86_64__)
template <class T>
[[gnu::target("avx2")]] double maximum_avx2(const T* values, int64_t size) {
    return maximum_by<T, 32>(values, size);
}
#endif

template <class T>
double maximum(const T* values, int64_t size, [[maybe_unused]] int width) {
#if defined(__x86_64__)
    if (width >= 32) return maximum_avx2(values, size);
#endif
    return maximum_by<T, 16>(values, size);
}

// Writes the masses of a group's 256 values to `out` and returns their sum. The mass of v is
// e^((v - best) * sharpness), or 0 if v < least. The sum has eight lanes for every vector width.
template <class T, int bytes>
[[gnu::always_inline]] inline double group_masses_by(const T* values, double best, double sharpness,
                                                     double least, double* out) {
    using Lanes = typename Packed<bytes>::Reals;
    using Bits = typename Packed<bytes>::Bits;
    constexpr int lanes = bytes / 8, vectors = 8 / lanes;
    constexpr int together = bytes < 64 ? 2 : 4;  // as many as the registers hold
    double doubles[kNoiseGroup];
    for (int64_t i = 0; i < kNoiseGroup; i++) doubles[i] = values[i];
    Lanes sums[vectors] = {};
    for (int64_t i = 0; i < kNoiseGroup; i += together * lanes) {
        Lanes mass[together];
        for (int j = 0; j < together; j++) {
            std::memcpy(&mass[j], doubles + i + j * lanes, sizeof mass[j]);
            mass[j] = (mass[j] - best) * sharpness;
        }
        replace_by_exp<Packed<bytes>>(mass);  // meaningless below `least`; set to 0 next
        for (int j = 0; j < together; j++) {
            Lanes v;
            std::memcpy(&v, doubles + i + j * lanes, sizeof v);
            mass[j] = Lanes(Bits(mass[j]) & Bits(v >= least));
            sums[(i / lanes + j) % vectors] += mass[j];
            std::memcpy(out + i + j * lanes, &mass[j], sizeof mass[j]);
        }
    }
    double s[8];
    std::memcpy(s, sums, sizeof s);
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

#if defined(__x86_64__)
template <class T>
[[gnu::target("avx2")]] double group_masses_avx2(const T* values, double best, double sharpness, double least,
                                                 double* out) {
    return group_masses_by<T, 32>(values, best, sharpness, least, out);
}
template <class T>
[[gnu::target("avx512f")]] double group_masses_avx512(const T* values, double best, double sharpness,
                                                      double least, double* out) {
    return group_masses_by<T, 64>(values, best, sharpness, least, out);
}
#endif

template <class T>
double group_masses(const T* values, double best, double sharpness, double least, double* out,
                    [[maybe_unused]] int width) {
#if defined(__x86_64__)
    if (width >= 64) return group_masses_avx512(values, best, sharpness, least, out);
    if (width >= 32) return group_masses_avx2(values, best, sharpness, least, out);
#endif
    return group_masses_by<T, 16>(values, best, sharpness, least, out);
}

// A row, read in groups: those of its values whose ids are in the same 256. Groups without any are left out.
template <class T>
class Row {
  public:
    // Value i is of the id i, or of part->ids[i]; all others are then taken as -inf.
    Row(const T* values, int64_t size, int width, const PartOfIds* part = nullptr)
        : values_(values), size_(size), width_(width), part_(part) {
        maxima_.resize(part ? part->groups.size() : size_t((size + kNoiseGroup - 1) / kNoiseGroup));
        for (int64_t g = 0; g < groups(); g++) maxima_[g] = maximum(values + begin(g), count(g), width);
        best_ = maximum(maxima_.data(), groups(), width);
    }
    // The value at this place has changed.
    void changed(int64_t place) {
        const int64_t g = part_ ? part_->group_of(place) : place / kNoiseGroup;
        maxima_[g] = maximum(values_ + begin(g), count(g), width_);
        best_ = maximum(maxima_.data(), groups(), width_);
    }

    int64_t size() const { return size_; }
    int64_t groups() const { return int64_t(maxima_.size()); }
    int64_t begin(int64_t g) const { return part_ ? part_->begins[size_t(g)] : g * kNoiseGroup; }
    int64_t count(int64_t g) const {
        return part_ ? part_->begins[size_t(g) + 1] - begin(g) : std::min(kNoiseGroup, size_ - begin(g));
    }
    // Which 256 ids the group is of, and the id of its value i.
    uint32_t number(int64_t g) const { return part_ ? part_->groups[size_t(g)] : uint32_t(g); }
    int64_t id(int64_t g, int64_t i) const {
        return part_ ? part_->ids[size_t(begin(g) + i)] : g * kNoiseGroup + i;
    }
    const std::vector<double>& maxima() const { return maxima_; }
    double best() const { return best_; }
    void load(int64_t g, double* out) const {
        const T* from = values_ + begin(g);
        std::copy(from, from + count(g), out);
    }

    // The sum of the masses of all values of at least `least`. For each group that has such values, its 256
    // masses (0 for the other values) are written to place(), then take(g, masses) is called.
    template <class Place, class Take>
    double weigh(double temperature, double least, Place place, Take take) const {
        const double sharpness = std::min(1.0 / temperature, std::numeric_limits<double>::max());
        double total = 0.0;
        for (int64_t g = 0; g < groups(); g++) {
            if (maxima_[g] < least) continue;
            const T* from = values_ + begin(g);
            T padded[kNoiseGroup];
            if (count(g) < kNoiseGroup) {
                std::fill(std::copy(from, from + count(g), padded), padded + kNoiseGroup, -T(kInfinity));
                from = padded;
            }
            double* const mass = place();
            total += group_masses(from, best_, sharpness, least, mass, width_);
            take(g, mass);
        }
        return total;
    }

  private:
    const T* values_;
    int64_t size_;
    int width_;
    const PartOfIds* part_;
    std::vector<double> maxima_;  // the largest value of each group
    double best_;
};

}  // namespace
}  // namespace outrider
