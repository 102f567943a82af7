// What products with AVX-512 have in common: a row's 32 columns in two registers.
#pragma once

#include "linear/linear.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

constexpr int kFloatRows = 14;  // 28 accumulators, two registers of weights, one or two of activations

CP_INLINE __m512i broadcast_word(const void* x) {
  int32_t word;
  memcpy(&word, x, sizeof word);
  return _mm512_set1_epi32(word);
}

CP_INLINE void load_pair(const float* x, __m512 v[2]) {
  v[0] = _mm512_loadu_ps(x);
  v[1] = _mm512_loadu_ps(x + 16);
}

CP_INLINE void store_pair(float* x, const __m512 v[2]) {
  _mm512_storeu_ps(x, v[0]);
  _mm512_storeu_ps(x + 16, v[1]);
}

// Brings in the lines of `step` bytes, at most two; a line asked for twice would take the place of another.
CP_INLINE void fetch(Fetch& ahead, int step) {
  constexpr int kIntoL2 = 2;
  __builtin_prefetch(ahead.from, 0, kIntoL2);
  if (step > 64) __builtin_prefetch(ahead.from + 64, 0, kIntoL2);
  ahead.from += step;
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
