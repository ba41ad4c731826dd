// The operations of a forward pass, compiled once for each instruction set and chosen at run time.
#pragma once
#include <string>

#include "kernels/activations.h"
#include "kernels/matrix.h"

namespace outrider {

// Positions of the sequence in one block of its key-value cache.
constexpr int kCacheBlock = 16;

// Which keys one query token attends to. Positions [0, direct) are at cache slots of the same number. The
// others, [direct, positions), are at slots tail[0], tail[1], … (a path through a draft tree). `direct` is a
// multiple of kCacheBlock whenever direct < positions.
struct Visible {
    int positions;
    int direct;
    const int* tail;
};

// The first of `positions` that a window shows: 0 without one.
inline int first_in_window(int positions, int window) {
    return window > 0 && positions > window ? positions - window : 0;
}

// What keys and values are held in.
enum class CacheType : uint8_t { f32, f16, q8_0 };
CacheType cache_type_by_name(const std::string& name);  // throws std::invalid_argument

constexpr int kKeyGroup = 32;  // columns of a key that share a scale in CacheType::q8_0

// Keys and values are stored in cache blocks. For one block, layer and key-value head, keys are
// [head_dim][kCacheBlock] and values are [kCacheBlock][head_dim], in float32 or binary16.
//
// CacheType::q8_0 holds bytes, with the two next to each other that one instruction multiplies and adds: keys
// are [head_dim / 2][kCacheBlock][2], and after them scales in binary16, [groups][kCacheBlock]; values are
// [kCacheBlock / 2][head_dim][2], and after them a scale of each position in float32, [kCacheBlock].
struct HeadCache {
    void* const* blocks;              // of each cache block of the sequence; null where nobody looks any more
    size_t key_offset, value_offset;  // in bytes, of this layer and head inside a cache block
    CacheType type;
};

// Bytes of one head's keys, and of its values, in a cache block: whole lines of memory in CacheType::q8_0.
static inline size_t key_bytes(CacheType type, int head_dim) {
    const size_t count = size_t(kCacheBlock) * size_t(head_dim);
    if (type != CacheType::q8_0) return count * (type == CacheType::f16 ? 2 : 4);
    const size_t groups = size_t(head_dim + kKeyGroup - 1) / kKeyGroup;
    return (count + groups * kCacheBlock * sizeof(uint16_t) + 63) / 64 * 64;
}
static inline size_t value_bytes(CacheType type, int head_dim) {
    const size_t count = size_t(kCacheBlock) * size_t(head_dim);
    return type == CacheType::q8_0 ? count + kCacheBlock * sizeof(float) : key_bytes(type, head_dim);
}

// Attention processes a sequence in spans of this many positions, and merges their results in order.
constexpr int kSpan = 256;

// Queries of some tokens of one sequence, of the heads that share one key-value head. With a window a token
// sees its own position and those before it, so many in all. With a softcap scores are
// softcap * tanh(score / softcap).
struct Queries {
    const float* q;          // of the first token's first head; a token's heads are head_dim apart
    size_t stride;           // in floats, from token to token
    const Visible* visible;  // [tokens]
    int tokens, group, head_dim;
    int window = 0;     // 0: none
    float softcap = 0;  // 0: none

    int first_seen(int t) const { return first_in_window(visible[t].positions, window); }
};

// The keys to prefetch while these are processed: those of one span, of the positions [first, positions).
// None if the latter is 0.
struct NextKeys {
    HeadCache cache{};
    int span = 0, first = 0, positions = 0;
};

// A partial result of attention: head_dim sums of values weighted by e^(score - top), then `top`, then the
// sum of e^(score - top). The remaining floats are padding.
static inline size_t partial_floats(int head_dim) { return size_t(head_dim) + 16; }
// Scores of each row, a gathered block of keys or values, and each row's query in 16 bits with its scale.
static inline size_t attend_scratch(const Queries& q) {
    const size_t rows = size_t(q.tokens) * size_t(q.group);
    return rows * kSpan + size_t(kCacheBlock) * size_t(q.head_dim) + rows * (size_t(q.head_dim) / 2 + 1);
}

// Kernels may multiply so many panels at once in passes of so many tokens (avx512_wide.h), so products are
// best asked for in multiples of them. (From how many tokens on two panels are quicker: cost curves of the
// 1.5B and the 0.5B on a Zen 5, by turns with one panel at a time; docs/notes/kernels-log.md.)
constexpr int kPairPanels = 2, kPairTokens = 48;

struct MatmulOut {
    float* out;         // [tokens][stride]
    size_t stride;      // in floats
    const float* bias;  // [rows] or null
    bool add;           // out += result
    int first_row = 0;  // the matrix's row that out[0] belongs to
};

struct Kernels {
    const char* name;
    // Widths of token tiles (Activations::shape): of a batch that makes one or two tiles, and of larger ones.
    int token_tile, usual_token_tile;

    // Multiplies the rows of panels [p0, p1) by all tokens of `a`.
    void (*matmul)(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out);
    // y = x / rms(x) * weight, for one token. Writes only the columns [first, last), multiples of 16 or n.
    void (*rms_norm)(const float* x, const float* weight, float eps, int n, int first, int last, float* y);
    // Quantizes the groups [first, last) of token t from a.x into the other arrays of `a`. With
    // a.superblocks, both are multiples of kSuperblockGroups.
    void (*quantize)(Activations& a, int t, int first, int last);
    // The same, and quantizes what rounding left over into token `residual_row`, so that the two rows'
    // products add up to a product with activations of 15 bits.
    void (*quantize_residual)(Activations& a, int t, int residual_row, int first, int last);
    // out = silu(gate) * up
    void (*silu_mul)(const float* gate, const float* up, int n, float* out);
    // The same with the tanh form of GELU (Hendrycks and Gimpel 2016).
    void (*gelu_mul)(const float* gate, const float* up, int n, float* out);
    // x = scale * x, then softcap * tanh(x / softcap) unless softcap is 0.
    void (*scale_and_cap)(float* x, int n, float scale, float softcap);
    // Rotates the first `dim` values of one head in place, by pairs. Of values i and i + dim / 2: cos and sin
    // hold dim / 2 values. Of neighbours: they hold (cos, sin) and (-sin, cos) for each pair.
    void (*rope_halves)(float* head, const float* cos, const float* sin, int dim);
    void (*rope_pairs)(float* head, const float* cos_sin, const float* sin_cos, int dim);
    void (*store_kv)(const HeadCache& cache, int slot, int head_dim, const float* key, const float* value);
    void (*copy_kv)(const HeadCache& cache, int from, int to, int head_dim);
    // Attention of each query over the positions [kSpan * span, kSpan * (span + 1)): writes a partial result
    // to out + out_stride * token + partial_floats(head_dim) * head. What is written for tokens that see none
    // of these positions must not be used. scratch: attend_scratch() floats.
    void (*attend)(const HeadCache& cache, const Queries& q, int span, const NextKeys& next, float* scratch,
                   float* out, size_t out_stride);
    // Merges partial result b, of later positions, into a.
    void (*merge_spans)(float* a, const float* b, int head_dim);
    // out = the attention that partial result `a` stands for: its values divided by its sum
    void (*finish_spans)(const float* a, int head_dim, float* out);
};

// Whether the processor may drop software prefetches while all of its miss buffers are in use
// (avx512.cpp, docs/notes/kernels-log.md).
extern const bool kDropsPrefetches;

// Some kernels with other products, which want token tiles of these widths.
static inline Kernels with_products(Kernels kernels, const char* name, int token_tile, int usual_token_tile,
                                    decltype(Kernels::matmul) matmul) {
    kernels.name = name;
    kernels.token_tile = token_tile;
    kernels.usual_token_tile = usual_token_tile;
    kernels.matmul = matmul;
    return kernels;
}

const Kernels* portable_kernels();
const Kernels* avx2_kernels();     // null when not compiled for this architecture
const Kernels* avxvnni_kernels();  // also null when the compiler does not know AVX-VNNI
const Kernels* avx512_kernels();   // needs AVX-512 F, BW, DQ, VL and VNNI
const Kernels* amx_kernels();      // avx512 but for wide passes; also needs AMX's tiles and INT8 products
// The same where a measurement, made once, found tiles to be quicker; null if it found so nowhere. Only where
// amx_kernels() can run.
const Kernels* measured_amx_kernels();
const Kernels* neon_kernels();  // needs the dot products of ARMv8.2

// `name` is "auto", "portable", "avx2", "avxvnni", "avx512", "amx" or "neon". Throws std::invalid_argument
// for one that this CPU lacks, or that its system does not let this process use.
const Kernels& choose_kernels(const char* name);

}  // namespace outrider
