// Inputs of matrices whose columns are in another order than the input's (GPTQ's act-order).
#pragma once
#include <array>
#include <initializer_list>
#include <vector>

#include "kernels/activation_buffer.h"
#include "model/phases.h"

namespace outrider {

// A copy of an input for each order that its readers have: gathered into that order, then quantized, so that
// a group of 32 columns of the matrix and of the activations is the same one.
class OrderedInputs {
  public:
    OrderedInputs(const Kernels& kernels, Phases& phases) : kernels_(kernels), phases_(phases) {}

    // Copies all tokens of `in` for the orders of `readers`, at most three; what was copied before is lost.
    // The copy that `fine` reads, if it is a matrix of integers, gets residual rows after those of the
    // tokens.
    void gather(const Activations& in, std::initializer_list<const Matrix*> readers,
                const Matrix* fine = nullptr);
    // What `m` reads in place of `plain`: its copy, with the residual rows if `plain` has them, or `plain`.
    const Activations& of(const Matrix& m, const Activations& plain) const;

  private:
    struct Copy {
        const std::vector<int>* order = nullptr;
        ActivationBuffer buffer;
        Activations tokens;  // the buffer without the rows of residuals
    };
    void fill(Copy& copy, const Activations& in, bool residuals);

    const Kernels& kernels_;
    Phases& phases_;
    std::array<Copy, 3> copies_;  // of no more readers
    size_t used_ = 0;
};

}  // namespace outrider
