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

// The library's own power: x * x, which a compiler would make of it, differs in the last place once in a thousand
// times, and what was recorded with `x ** 2` would not come out again.
inline double squared(double x) {
    const volatile double two = 2.0;
    return std::pow(x, two);
}

}  // namespace outrider
