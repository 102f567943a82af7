// What an ISA provides for single rows: leaf functions without state.
#pragma once

#include <cstddef>
#include <cstdint>

namespace corepipe {

// Functions of one element; `none` leaves it as it is.
enum class Function { none, silu, gelu, gelu_tanh, relu, sigmoid, tanh, clamped_swish };

enum class NormKind { none, rms, layer, unit };

// rms: x / sqrt(mean(x^2) + eps) * gain.  layer: (x - mean) / sqrt(variance + eps) * gain + bias, each of which may
// be null.  unit: x / max(|x|, eps), of Euclidean length 1.
struct Norm {
  NormKind kind = NormKind::none;
  const float* gain = nullptr;
  const float* bias = nullptr;
  float eps = 0;
};

// What is made of the rows of a sequence: the first, the second (of one alone that), the last, their mean, their largest
// elements, their sum by the root of their number, their mean weighed by their place, from 1.
enum class Pooling { first, second, last, mean, max, mean_sqrt_len, weighted_mean };

// Results are rounded to bf16 where `round` is set.  Out may be an operand.
struct RowTable {
  void (*norm)(const Norm& norm, const float* x, int n, bool round, float* out);
  // Rotates one head.
  void (*rope)(const float* x, float* out, int head_dim, const float* cos, const float* sin, int half, bool round);
  void (*add)(const float* a, const float* b, float* out, int n, bool round);
  // out = x + a row of a table: bf16, or fp32 that is rounded first.
  void (*add_stored)(const float* x, const void* stored, bool is_bf16, float* out, int n, bool round);
  // out = function(x); function(gate) * up; x * factor.
  void (*activate)(Function function, const float* x, float* out, int n, bool round);
  void (*glu)(Function function, const float* gate, const float* up, float* out, int n, bool round);
  void (*scale)(const float* x, float factor, float* out, int n, bool round);
  void (*round)(const float* x, float* out, int n);
  void (*widen)(const uint16_t* bf16, float* out, int n);
  // One row of `rows`, which are `stride` elements apart, added up in fp32 and in their order.
  void (*pool)(Pooling pooling, const float* x, size_t stride, int rows, float* out, int n, bool round);
  // Of finite numbers.
  void (*softmax)(const float* x, float* out, int n);
  // out = the sum of weight times row, added in their order: which [count] rows of `rows`, which are `stride` elements
  // apart.
  void (*weighted_sum)(const float* rows, int64_t stride, const int32_t* which, const float* weights, int count,
                       float* out, int n, bool round);
};

}  // namespace corepipe
