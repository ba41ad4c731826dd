// The operations of a forward pass, compiled once for each instruction set and chosen at run time.
#pragma once
#include "kernels/layout.h"

namespace outrider {

// How one query token sees its keys. Positions [0, direct) lie at cache slots of the same number;
// the ones from there on, [direct, positions), lie at slots tail[0], tail[1], … (a path through a draft
// tree). `direct` is a multiple of 16 whenever direct < positions.
struct Visible {
    int positions;
    int direct;
    const int* tail;
};

// Keys and values live in blocks of 16 positions. For one block, layer and key-value head, keys are
// [head_dim][16] and values are [16][head_dim], in binary16 or float32.
struct HeadCache {
    void* const* blocks;              // one pointer for each 16 positions
    size_t key_offset, value_offset;  // in bytes, of this layer and head inside a block
    bool half;
};

// Attention takes this many positions together, and adds up what they give in order.
constexpr int kSpan = 256;

// Queries of some tokens of one sequence, of the heads that share one key-value head.
struct Queries {
    const float* q;          // of the first token's first head; a token's heads lie head_dim apart
    size_t stride;           // in floats, from token to token
    const Visible* visible;  // [tokens]
    int tokens, group, head_dim;
};

// Which keys the caller is likely to need after those at hand: a span's, up to `positions`. None when that is
// 0.
struct NextKeys {
    HeadCache cache{};
    int span = 0, positions = 0;
};

// A partial result of attention: head_dim sums of values by e^(score - top), then `top`, then the sum of
// e^(score - top); the rest is free.
static inline size_t partial_floats(int head_dim) { return size_t(head_dim) + 16; }
static inline size_t attend_scratch(const Queries& q) {
    return size_t(q.tokens) * q.group * kSpan + size_t(16) * q.head_dim;
}

struct MatmulOut {
    float* out;         // [tokens][stride]
    size_t stride;      // in floats
    const float* bias;  // [rows] or null
    bool add;           // out += result
    int first = 0;      // the row that `out` begins with
};

struct Kernels {
    const char* name;
    // Rows of panels [p0, p1) for all tokens of `a`.
    void (*matmul)(const Matrix& m, const Activations& a, int p0, int p1, const MatmulOut& out);
    // y = x / rms(x) * weight, for one token; of y only the columns [first, last), both multiples of 16 or n
    void (*rms_norm)(const float* x, const float* weight, float eps, int n, int first, int last, float* y);
    // fills what `a` has of the groups [first, last) of row t, from a.x; whole superblocks if it has those
    void (*quantize)(Activations& a, int t, int first, int last);
    // the same, and into row `rest` what rounding left over, so that the two rows' products add up to a
    // product with activations of 15 bits
    void (*quantize_fine)(Activations& a, int t, int rest, int first, int last);
    // out = silu(gate) * up
    void (*silu_mul)(const float* gate, const float* up, int n, float* out);
    // rotates one head in place; cos and sin hold dim / 2 values
    void (*rope)(float* head, const float* cos, const float* sin, int dim, bool interleaved);
    void (*store_kv)(const HeadCache& cache, int slot, int head_dim, const float* key, const float* value);
    void (*copy_kv)(const HeadCache& cache, int from, int to, int head_dim);
    // What the positions [kSpan * span, kSpan * (span + 1)) give to each query: a partial result, at
    // out + out_stride * token + partial_floats(head_dim) * head. Tokens that see none of them get nothing
    // that counts. scratch: attend_scratch() floats.
    void (*attend)(const HeadCache& cache, const Queries& q, int span, const NextKeys& next, float* scratch,
                   float* out, size_t out_stride);
    // a = a and b together, where b is of later positions
    void (*join_spans)(float* a, const float* b, int head_dim);
    // out = the attention that partial result `a` stands for
    void (*end_spans)(const float* a, int head_dim, float* out);
};

// Whether the processor may forget what memory is asked for ahead while as much as it can keep in mind is
// under way (kernels_avx512.cpp, docs/kernels.md).
extern const bool kForgets;

const Kernels* portable_kernels();
const Kernels* avx2_kernels();    // null when not compiled for this architecture
const Kernels* avx512_kernels();  // needs AVX-512 F, BW, DQ, VL and VNNI
const Kernels* neon_kernels();    // needs the dot products of ARMv8.2

// `name` is "auto", "portable", "avx2", "avx512" or "neon". Throws std::invalid_argument for one that this
// CPU lacks.
const Kernels& choose_kernels(const char* name);

}  // namespace outrider
