// Compares every kernel table that this processor can run with the portable one, bit for bit.
//
//   kernels_check             exits 0 and says what was compared, or 1 at the first difference
//   kernels_check --flip OP   flips the last bit of one result of OP, to test the comparison: must exit 1
//
// OP is matmul, rms_norm, quantize, quantize_residual, silu_mul, rope, store_kv, copy_kv or attention;
// or tile: emulated tiles of AMX forget a column, and only they are compared.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/comparison.h"
#include "tests/emulated.h"

using namespace outrider;

namespace outrider {

static std::mt19937 g_random(20240607);
std::string g_flip;

int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(g_random); }
float normal() { return std::normal_distribution<float>()(g_random); }

std::vector<float> floats(size_t n, float scale) {
    std::vector<float> v(n);
    for (float& x : v) {
        const int percent = pick(0, 99);
        x = percent == 0 ? 0.0f : percent == 1 ? -0.0f : (percent < 4 ? 60.0f : 1.0f) * scale * normal();
    }
    return v;
}

std::string digits(double x) {
    char text[64];
    std::snprintf(text, sizeof text, "%.9g", x);
    return text;
}

}  // namespace outrider

namespace {

using outrider::same;  // (those below would hide it)

template <class T>
std::vector<T> values(const T* first, size_t count) {
    return first ? std::vector<T>(first, first + count) : std::vector<T>();
}

void same(const std::string& what, const Activations& wanted, const Activations& got) {
    const size_t cells = wanted.cells();
    const auto both = [&](const char* of, auto member, size_t count) {
        same(what + " " + of, values(wanted.*member, count), values(got.*member, count));
    };
    both("integers", &Activations::q, cells * kGroup);
    both("scales", &Activations::scale, cells);
    both("sums", &Activations::sum, cells);
    both("scaled sums", &Activations::scaled_sum, cells);
    if (!wanted.superblocks) return;
    both("superblocks' scales", &Activations::superblock_scale, cells / kSuperblockGroups);
    both("shifts", &Activations::shifts, 2 * cells);
    both("roundings", &Activations::rounding, cells);
    both("centred starts", &Activations::centred_start, 2 * cells);
    both("sums for minimums", &Activations::min_sums_q3, cells);
    both("sums of halves", &Activations::half_sums_q4, 2 * cells);
}

void check_vectors(const Kernels& oracle, const Kernels& kernels) {
    for (int n : {1, 15, 16, 17, 64, 100, 576, 1536}) {
        const std::vector<float> x = floats(size_t(n)), weight = floats(size_t(n));
        const auto norm = [&](const Kernels& table, int half) {  // in two parts, the second one first
            std::vector<float> y(x.size());
            table.rms_norm(x.data(), weight.data(), 1e-6f, n, half, n, y.data());
            table.rms_norm(x.data(), weight.data(), 1e-6f, n, 0, half, y.data());
            return y;
        };
        same("rms_norm " + std::to_string(n), norm(oracle, 0), norm(kernels, n / 32 * 16));
        const std::vector<float> wide = floats(size_t(n), 20.0f);
        for (const auto& [name, op] :
             {std::pair{"silu_mul", &Kernels::silu_mul}, {"gelu_mul", &Kernels::gelu_mul}}) {
            const auto gate = [&](const Kernels& table) {
                std::vector<float> y(wide.size());
                (table.*op)(wide.data(), weight.data(), n, y.data());
                return y;
            };
            same(name + (" " + std::to_string(n)), gate(oracle), gate(kernels));
        }
        for (const float cap : {0.0f, 5.0f}) {
            const auto capped = [&](const Kernels& table) {
                std::vector<float> y = wide;
                table.scale_and_cap(y.data(), n, 0.25f, cap);
                return y;
            };
            same("scale_and_cap " + std::to_string(n), capped(oracle), capped(kernels));
        }
    }
    for (int dim : {2, 16, 40, 64, 128})
        for (const auto rope : {&Kernels::rope_halves, &Kernels::rope_pairs}) {
            const std::vector<float> head = floats(size_t(dim)), cos = floats(size_t(dim)),
                                     sin = floats(size_t(dim));
            const auto rotate = [&](const Kernels& table) {
                std::vector<float> y = head;
                (table.*rope)(y.data(), cos.data(), sin.data(), dim);
                return y;
            };
            same("rope " + std::to_string(dim), rotate(oracle), rotate(kernels));
        }
}

void check_quantize(const Kernels& oracle, const Kernels& kernels, int columns, float scale,
                    ActivationFormat format) {
    const int tokens = 3;
    std::vector<float> x = floats(size_t(2) * tokens * columns, scale);
    for (size_t at = 0; at < x.size();
         at += kGroup)  // scales as far apart as shifts can express, and further
        for (int i = 0, down = pick(0, 16); i < kGroup; i++)
            x[at + size_t(i)] = std::ldexp(x[at + size_t(i)], -down);
    std::fill(x.begin() + columns, x.begin() + columns + 32, 0.0f);  // a group of zeros
    for (int i = 0; i < 32; i++) x[size_t(i)] = scale * (float(i) - 15.5f) * (127.0f / 15.5f);  // ties
    const auto run = [&](const Kernels& table, bool residual) {
        Buffer b(2 * tokens, columns, format, kernels, x);
        Activations& a = b.view();
        const int parts = a.superblocks ? kSuperblockGroups : 1, half = a.groups() / parts / 2 * parts;
        for (int t = 0; t < tokens; t++)
            for (const auto& [first, last] : {std::pair{half, a.groups()}, std::pair{0, half}})
                residual ? table.quantize_residual(a, t, tokens + t, first, last)
                         : table.quantize(a, t, first, last);
        return b;
    };
    same("quantize", run(oracle, false).view(), run(kernels, false).view());
    same("quantize_residual", run(oracle, true).view(), run(kernels, true).view());
}

void check_quantize(const Kernels& oracle, const Kernels& kernels) {
    for (float scale : {1e-38f, 1e-20f, 1e-3f, 1.0f, 1e4f, 1e30f, 1e36f}) {
        for (int columns : {32, 64, 96, 256, 1536})
            check_quantize(oracle, kernels, columns, scale, ActivationFormat::int8);
        for (int columns : {256, 1536})
            for (auto format : {ActivationFormat::int8_superblocks, ActivationFormat::int8_half_sums})
                check_quantize(oracle, kernels, columns, scale, format);
    }
}

// A cache of one layer and head.
struct Head {
    std::vector<std::vector<uint16_t>> blocks;
    std::vector<void*> pointers;
    HeadCache cache;

    Head(int positions, int head_dim, CacheType type) {
        const size_t keys = key_bytes(type, head_dim), bytes = keys + value_bytes(type, head_dim);
        blocks.assign(size_t(positions + 15) / 16, std::vector<uint16_t>(bytes / sizeof(uint16_t)));
        for (auto& b : blocks) pointers.push_back(b.data());
        cache = {pointers.data(), 0, keys, type};
    }
};

void same(const std::string& what, const Head& wanted, const Head& got) {
    for (size_t i = 0; i < wanted.blocks.size(); i++) same(what, wanted.blocks[i], got.blocks[i]);
}

void check_attention(const Kernels& oracle, const Kernels& kernels, int positions, int head_dim, int group,
                     CacheType type, int window = 0, float softcap = 0) {
    constexpr const char* names[] = {"float", "half", "bytes"};
    const std::string shape = std::to_string(positions) + " positions, head of " + std::to_string(head_dim) +
                              ", group of " + std::to_string(group) + ", " + names[int(type)] + ", window " +
                              std::to_string(window);
    const int slots = positions + 24;
    Head wanted(slots, head_dim, type), got(slots, head_dim, type);
    for (int slot = 0; slot < slots; slot++) {
        const float scale = slot % 16 == 7 ? 0.0f : slot % 16 == 9 ? 1e-35f : 1.0f;
        const std::vector<float> key = floats(size_t(head_dim), scale),
                                 value = floats(size_t(head_dim), scale);
        oracle.store_kv(wanted.cache, slot, head_dim, key.data(), value.data());
        kernels.store_kv(got.cache, slot, head_dim, key.data(), value.data());
    }
    same("store_kv " + shape, wanted, got);
    for (int i = 0; i < 5; i++) {
        const int from = pick(0, slots - 1), to = pick(0, slots - 1);
        if (from == to) continue;
        oracle.copy_kv(wanted.cache, from, to, head_dim);
        kernels.copy_kv(got.cache, from, to, head_dim);
    }
    same("copy_kv " + shape, wanted, got);

    // Some tokens, the last of which sees all positions: all in order, or from `direct` on through `tail`.
    const int tokens = pick(1, 5), spans = (positions + kSpan - 1) / kSpan;
    const std::vector<float> q = floats(size_t(tokens) * group * head_dim, 0.3f);
    const size_t row = partial_floats(head_dim), stride = row * size_t(group),
                 step = positions > 64 ? 112 : 16;
    // What the windows of all tokens have passed is not there, and must not be read.
    const int first_shown = first_in_window(std::max(1, positions - tokens + 1), window);
    for (int b = 0; b < first_shown / kCacheBlock; b++) wanted.pointers[size_t(b)] = nullptr;
    for (int direct = 0; direct <= positions;
         direct += int(step)) {  // none, some and all positions in a tail
        std::vector<int> tail;
        for (int p = direct; p < positions; p++) tail.push_back(pick(p, slots - 1));
        for (const bool straight : {true, false}) {
            if (!straight && tail.empty()) continue;
            std::vector<Visible> visible;
            for (int t = tokens - 1; t >= 0; t--) {
                const int seen = std::max(1, positions - t);
                visible.push_back({seen, straight || direct >= seen ? seen : direct, tail.data()});
            }
            const auto run = [&](const Kernels& table, int first, int count) {
                const Queries queries{q.data() + size_t(first) * group * head_dim,
                                      size_t(group) * head_dim,
                                      visible.data() + first,
                                      count,
                                      group,
                                      head_dim,
                                      window,
                                      softcap};
                std::vector<float> scratch(attend_scratch(queries)), out(size_t(count) * group * head_dim);
                std::vector<std::vector<float>> found(size_t(spans),
                                                      std::vector<float>(stride * size_t(count)));
                for (int s = 0; s < spans;
                     s++) {  // (prefetching must not change results; the last span has no next one)
                    const NextKeys next{wanted.cache, s + 1, first_shown, positions};
                    table.attend(wanted.cache, queries, s, next, scratch.data(), found[size_t(s)].data(),
                                 stride);
                }
                for (int r = 0; r < count * group; r++) {
                    const int start = queries.first_seen(r / group) / kSpan;
                    float* all = found[size_t(start)].data() + row * size_t(r);
                    for (int s = start + 1; s * kSpan < visible[size_t(first + r / group)].positions; s++)
                        table.merge_spans(all, found[size_t(s)].data() + row * size_t(r), head_dim);
                    table.finish_spans(all, head_dim, out.data() + size_t(r) * head_dim);
                }
                return out;
            };
            const std::string what = "attention " + shape + ", " + std::to_string(tokens) +
                                     " tokens, direct " + std::to_string(straight ? positions : direct);
            const std::vector<float> together = run(oracle, 0, tokens);
            same(what, together, run(kernels, 0, tokens));
            std::vector<float> apart;
            for (int t = 0; t < tokens; t++)
                for (float x : run(kernels, t, 1)) apart.push_back(x);
            same(what + ", one by one", together, apart);
        }
    }
}

void check(const Kernels& kernels) {
    const Kernels& oracle = *portable_kernels();
    check_matmuls(oracle, kernels);
    if (kernels.name == std::string("amx")) {
        // All other operations are those of AVX-512. Where tiles do not pay, its products read token tiles
        // of AMX's width.
        Kernels mixed = kernels;
        mixed.matmul = avx512_kernels()->matmul;
        return check_matmuls(oracle, mixed);
    }
    check_vectors(oracle, kernels);
    check_quantize(oracle, kernels);
    for (const CacheType type : {CacheType::f16, CacheType::f32, CacheType::q8_0}) {
        for (int positions : {1, 15, 16, 17, 50})
            for (int head_dim : {16, 64, 128})
                for (int group : {1, 2, 3, 4, 7})
                    check_attention(oracle, kernels, positions, head_dim, group, type);
        for (int positions : {256, 258, 600})
            check_attention(oracle, kernels, positions, 48, positions % 5 + 4, type);
        for (int window : {1, 7, 16, 40, 256, 300})
            for (int positions : {17, 50, 300, 600})
                check_attention(oracle, kernels, positions, 48, window % 3 + 1, type, window,
                                window % 2 * 3.0f);
    }
}

// Null for kernels that this processor cannot run.
const Kernels* usable(const std::string& name) {
    try {
        return &choose_kernels(name.c_str());
    } catch (const std::invalid_argument&) {
        return nullptr;
    }
}

}  // namespace

int main(int count, char** arguments) {
    if (count == 3 && std::string(arguments[1]) == "--flip")
        g_flip = arguments[2];
    else if (count != 1) {
        std::fprintf(stderr, "usage: kernels_check [--flip OP]\n");
        return 2;
    }
    g_emulated_tiles_drop_a_column = g_flip == "tile";
    for (const std::string name : {"portable", "avx2", "avxvnni", "avx512", "amx", "neon"}) {
        if (g_flip == "tile" && name != "amx") continue;
        const Kernels* kernels = usable(name);
        const bool emulated = !kernels;
        if (emulated && name == "avxvnni" && usable("avx2")) kernels = emulated_avxvnni_kernels();
        if (emulated && name == "amx" && amx_kernels() && usable("avx512") && emulate_tiles())
            kernels = amx_kernels();
        if (!kernels) continue;
        const std::string label = name + (emulated ? " with its instructions emulated" : "");
        try {
            check(*kernels);
        } catch (const Failure& failure) {
            std::printf("%s: %s\n", label.c_str(), failure.what());
            return 1;
        }
        std::printf("%s: the same bits\n", label.c_str());
    }
    return 0;
}
