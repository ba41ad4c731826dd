// Where the keys and values of a position lie in a cache block (HeadCache), and how they get there. Written
// once on V16 and included by each kernel file through attention.h.
#pragma once
#include <cstring>

#include "kernels/kernels.h"
#include "kernels/simd.h"

namespace outrider {
namespace {

// What is next to each other in a cache block of T: two columns of a key, and two positions of values.
template <class T>
constexpr int kTogether = sizeof(T) == 1 ? 2 : 1;

template <class T>
inline T* keys_of_block(const HeadCache& c, int slot) {
    return reinterpret_cast<T*>(static_cast<uint8_t*>(c.blocks[slot / kCacheBlock]) + c.key_offset);
}
template <class T>
inline T* values_of_block(const HeadCache& c, int slot) {
    return reinterpret_cast<T*>(static_cast<uint8_t*>(c.blocks[slot / kCacheBlock]) + c.value_offset);
}
// The first column of a slot's key; the next ones are kTogether, and then a cache block's keys, apart.
template <class T>
inline T* key_of(const HeadCache& c, int slot) {
    return keys_of_block<T>(c, slot) + kTogether<T> * (slot % kCacheBlock);
}
// The first column of a slot's values; the next one is kTogether further.
template <class T>
inline T* value_of(const HeadCache& c, int slot, int head_dim) {
    constexpr int n = kTogether<T>;
    const int at = slot % kCacheBlock;
    return values_of_block<T>(c, slot) + size_t(at / n * n) * size_t(head_dim) + at % n;
}

// Scales, which follow the integers of a block's keys, or of its values.
inline const uint16_t* key_scales(const int8_t* keys, int head_dim) {
    return reinterpret_cast<const uint16_t*>(keys + kCacheBlock * head_dim);
}
inline uint16_t* key_scales(int8_t* keys, int head_dim) {
    return reinterpret_cast<uint16_t*>(keys + kCacheBlock * head_dim);
}
inline float* value_scales(int8_t* values, int head_dim) {
    return reinterpret_cast<float*>(values + kCacheBlock * head_dim);
}
inline int key_groups(int head_dim) { return (head_dim + kKeyGroup - 1) / kKeyGroup; }

// --- Storing ---------------------------------------------------------------------------------------

// q = x * factor, of 16 or 32 columns.
inline void to_bytes(const float* x, int n, float factor, int8_t* q) {
    const V16 f = vset(factor);
    vstore_i8(q, vmul(vload(x), f), n > 16 ? vmul(vload(x + 16), f) : vset(0.0f));
}
inline float largest(const float* x, int n) {
    V16 most = vset(0.0f);
    for (int i = 0; i < n; i += 16) most = vmax(vabs(vload(x + i)), most);
    return reduce_max(most);
}

// A key's scales are rounded to binary16 before its integers are made with them.
inline void store_key(int8_t* keys, int at, int head_dim, const float* key) {
    int8_t *to = keys + 2 * at, q[kKeyGroup];
    uint16_t* scale = key_scales(keys, head_dim) + at;
    for (int first = 0; first < head_dim; first += kKeyGroup, scale += kCacheBlock) {
        const int n = imin(kKeyGroup, head_dim - first);
        *scale = float_to_half(largest(key + first, n) / 127.0f);
        const float step = half_to_float(*scale);
        to_bytes(key + first, n, step > 0.0f ? 1.0f / step : 0.0f, q);
        for (int i = 0; i < n; i += 2) std::memcpy(to + kCacheBlock * (first + i), q + i, 2);
    }
}
inline void store_value(int8_t* values, int at, int head_dim, const float* value) {
    int8_t *to = values + at / 2 * 2 * head_dim + at % 2, q[32];
    const float most = largest(value, head_dim);
    value_scales(values, head_dim)[at] = most / 127.0f;
    const float factor = most > 0x1p-100f ? 127.0f / most : 0.0f;
    for (int first = 0; first < head_dim; first += 32) {
        const int n = imin(32, head_dim - first);
        to_bytes(value + first, n, factor, q);
        for (int i = 0; i < n; i++) to[2 * (first + i)] = q[i];
    }
}

template <class T>
void store_kv_as(const HeadCache& c, int slot, int head_dim, const float* key, const float* value) {
    T *k = key_of<T>(c, slot), *v = value_of<T>(c, slot, head_dim), column[16];
    for (int d = 0; d < head_dim; d += 16) {
        vstore(column, vload(key + d));
        for (int i = 0; i < 16; i++) k[16 * (d + i)] = column[i];
        vstore(v + d, vload(value + d));
    }
}
void store_kv(const HeadCache& c, int slot, int head_dim, const float* key, const float* value) {
    switch (c.type) {
        case CacheType::f32:
            return store_kv_as<float>(c, slot, head_dim, key, value);
        case CacheType::f16:
            return store_kv_as<uint16_t>(c, slot, head_dim, key, value);
        case CacheType::q8_0:
            store_key(keys_of_block<int8_t>(c, slot), slot % kCacheBlock, head_dim, key);
            return store_value(values_of_block<int8_t>(c, slot), slot % kCacheBlock, head_dim, value);
    }
}

// --- Copying ---------------------------------------------------------------------------------------

// One position of a block's keys, or of its values, to another position, perhaps of another block.
template <class T>
void copy_key(const T* from, T* to, int head_dim) {
    constexpr int n = kTogether<T>;
    for (int d = 0; d < head_dim; d += n)
        std::memcpy(to + kCacheBlock * d, from + kCacheBlock * d, n * sizeof(T));
}
template <class T>
void copy_value(const T* from, T* to, int head_dim) {
    constexpr int n = kTogether<T>;
    if constexpr (n == 1)
        std::memcpy(to, from, sizeof(T) * size_t(head_dim));
    else
        for (int d = 0; d < head_dim; d++) to[n * d] = from[n * d];
}
// The scales of slot `from` of a cache become those of position `at` of some block's keys, or values.
inline void copy_key_scales(const HeadCache& c, int from, int8_t* keys, int at, int head_dim) {
    const uint16_t* s = key_scales(keys_of_block<int8_t>(c, from), head_dim) + from % kCacheBlock;
    uint16_t* to = key_scales(keys, head_dim) + at;
    for (int i = 0; i < kCacheBlock * key_groups(head_dim); i += kCacheBlock) to[i] = s[i];
}
inline float value_scale(const HeadCache& c, int slot, int head_dim) {
    return value_scales(values_of_block<int8_t>(c, slot), head_dim)[slot % kCacheBlock];
}

template <class T>
void copy_kv_as(const HeadCache& c, int from, int to, int head_dim) {
    copy_key(key_of<T>(c, from), key_of<T>(c, to), head_dim);
    copy_value(value_of<T>(c, from, head_dim), value_of<T>(c, to, head_dim), head_dim);
    if constexpr (std::is_same_v<T, int8_t>) {
        copy_key_scales(c, from, keys_of_block<int8_t>(c, to), to % kCacheBlock, head_dim);
        value_scales(values_of_block<int8_t>(c, to), head_dim)[to % kCacheBlock] =
            value_scale(c, from, head_dim);
    }
}
void copy_kv(const HeadCache& c, int from, int to, int head_dim) {
    switch (c.type) {
        case CacheType::f32:
            return copy_kv_as<float>(c, from, to, head_dim);
        case CacheType::f16:
            return copy_kv_as<uint16_t>(c, from, to, head_dim);
        case CacheType::q8_0:
            return copy_kv_as<int8_t>(c, from, to, head_dim);
    }
}

// Copies up to a cache block of positions that are not contiguous (a path through a draft tree).
template <class T>
void gather_keys(const HeadCache& c, const int* slots, int count, int head_dim, T* keys) {
    std::memset(keys, 0, key_bytes(c.type, head_dim));
    for (int p = 0; p < count; p++) {
        copy_key(key_of<T>(c, slots[p]), keys + kTogether<T> * p, head_dim);
        if constexpr (std::is_same_v<T, int8_t>) copy_key_scales(c, slots[p], keys, p, head_dim);
    }
}
// (Without scales, which the weights of values are multiplied by.)
template <class T>
void gather_values(const HeadCache& c, const int* slots, int count, int head_dim, T* values) {
    constexpr int n = kTogether<T>;
    if (count % n)
        std::memset(values + size_t(count / n * n) * size_t(head_dim), 0, size_t(n) * size_t(head_dim));
    for (int p = 0; p < count; p++)
        copy_value(value_of<T>(c, slots[p], head_dim), values + size_t(p / n * n) * size_t(head_dim) + p % n,
                   head_dim);
}

}  // namespace
}  // namespace outrider
