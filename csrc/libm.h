// The C library's functions, which answer what has no number with an exception, as Python's `math` does.
#pragma once
#include <cmath>
#include <stdexcept>

namespace outrider {

inline double checked_exp(double x) {
    const double value = std::exp(x);
    if (std::isinf(value) && std::isfinite(x)) throw std::overflow_error("math range error");
    return value;
}

// log(a / b)
inline double log_ratio(double a, double b) {
    const double ratio = a / b;
    if (b == 0.0 || ratio <= 0.0) throw std::domain_error("math domain error");
    return std::log(ratio);
}

inline double squared(double x) { return x * x; }

}  // namespace outrider
