// A view of a packed weight matrix; see _native.pyi for the layouts.  Owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "linear/linear_table.h"

namespace corepipe {

class Matrix {
 public:
  // A whole packed [n, k] matrix.  scale [n] for the int8 kinds, null for the others.
  // Throws std::invalid_argument for an unknown kind, missing or needless scales, or too few bytes.
  Matrix(const std::string& kind, const uint8_t* data, size_t bytes, const float* scale, int n, int k);

  // Rows [n0, n0 + n) and columns [k0, k0 + k), n0 a multiple of 32 and k0 of 64.
  // Throws std::invalid_argument for anything else.
  Matrix view(int n0, int n, int k0, int k) const;

  int panels() const { return n / kPanel + (n % kPanel != 0); }
  int groups() const { return k / kGroup + (k % kGroup != 0); }
  const uint8_t* panel(int index) const { return data + index * panel_stride; }

  Kind kind;
  const uint8_t* data;   // of panel 0 at k0
  int64_t panel_stride;  // bytes from a panel to the next
  const float* scale;    // [n], or null
  int n;
  int k;

 private:
  Matrix() = default;
};

}  // namespace corepipe
