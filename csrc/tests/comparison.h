// What kernels_check's comparisons share.
#pragma once
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/activation_buffer.h"
#include "kernels/kernels.h"

namespace outrider {

extern std::string g_flip;  // the operation of which one result is changed

int pick(int low, int high);
float normal();

// Like activations: mostly normally distributed, some outliers, some zeros of either sign.
std::vector<float> floats(size_t n, float scale = 1.0f);

std::string digits(double x);

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Throws Failure at the first value that is not `wanted`, bit for bit. The first word of `what` is the
// operation.
template <class T>
void same(const std::string& what, const std::vector<T>& wanted, std::vector<T> got) {
    const std::string op = what.substr(0, what.find(' '));
    if (op == g_flip && !got.empty()) {
        auto* bytes = reinterpret_cast<uint8_t*>(got.data() + pick(0, int(got.size()) - 1));
        bytes[0] ^= 1;  // little-endian: the lowest bit
    }
    for (size_t i = 0; i < wanted.size(); i++)
        if (std::memcmp(&wanted[i], &got[i], sizeof(T)) != 0)
            throw Failure(what + ": value " + std::to_string(i) + " of " + std::to_string(wanted.size()) +
                          " is " + digits(double(got[i])) + ", not " + digits(double(wanted[i])));
}

struct Buffer : ActivationBuffer {
    Buffer(int tokens, int columns, ActivationFormat format, const Kernels& kernels,
           const std::vector<float>& values) {
        shape(tokens, columns, format, kernels);
        clear();
        std::copy_n(values.begin(), size_t(tokens) * columns, row(0));
    }
};

// Compares the products of all weight types.
void check_matmuls(const Kernels& oracle, const Kernels& kernels);

}  // namespace outrider
