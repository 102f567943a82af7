// Checks of input from outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace corepipe {

inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument(what);
}

[[noreturn]] inline void too_large(const char* what) {
  throw std::invalid_argument(std::string(what) + " is larger than memory can be");
}

// The product of `factors`, of `what` in bytes or elements.  Throws std::invalid_argument where a pointer could not
// step over so many.
inline size_t checked_product(const char* what, std::initializer_list<size_t> factors) {
  size_t product = 1;
  for (size_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product) || product > PTRDIFF_MAX) too_large(what);
  }
  return product;
}

// The same of a sum.
inline size_t checked_sum(const char* what, size_t a, size_t b) {
  size_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum) || sum > PTRDIFF_MAX) too_large(what);
  return sum;
}

}  // namespace corepipe
