// What an ISA provides for the sampler: passes over one row of logits, without state.
#pragma once

#include <cstdint>

namespace corepipe {

constexpr int kSampleBlock = 1024;  // elements whose weights are added up apart
constexpr int kMaximaGroup = 64;

struct SamplerTable {
  // Lowest index of the largest element; NaN counts as -inf; 0 where nothing is above -inf.  `finite`: whether x
  // has neither NaN nor infinities.
  int (*argmax)(const float* x, int n, bool* finite);
  // The largest element, NaN left out; -inf where there is none.  `finite` as above.
  float (*max)(const float* x, int n, bool* finite);
  // maxima[i] = max of x[64 i .. 64 i + 64), the last one of what is left.
  void (*group_maxima)(const float* x, int n, float* maxima);
  // out = x / divisor, NaN as -inf.
  void (*divide)(const float* x, float divisor, float* out, int n);
  // weights = exp(x - max), 0 for NaN; and their sum for each kSampleBlock elements.  weights may be null.
  void (*weigh)(const float* x, int n, float max, float* weights, double* sums);
  // Indices of the elements >= bound, ascending; returns how many (`ids` has room for n + 16).
  int (*at_least)(const float* x, int n, float bound, int32_t* ids);
  // out = x where the mask has a bit, -inf elsewhere.  out may be x.
  void (*mask)(const float* x, const uint32_t* words, float* out, int n);
};

}  // namespace corepipe
