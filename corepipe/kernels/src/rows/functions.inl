// Functions of one element, as numerics.apply defines them.
#pragma once

#include "rows/row_table.h"
#include "isa/simd.h"

namespace corepipe {
namespace COREPIPE_SIMD {

// x / (1 + e^-y), within 5 ulp where y > -4 and 9 where y > -10; further down the error of -y / ln 2 grows with |y|.
CP_INLINE f32x16 times_sigmoid(f32x16 x, f32x16 y) {
#if defined(__AVX512BF16__)  // tables with bits of their own
  // The floor of t, which scalef takes by itself, leaves a remainder in [0, 1].
  const f32x16 t = max(broadcast(-126.0f), y * broadcast(-1.44269504088896341f));
  const __m512 whole = _mm512_roundscale_ps((__m512)t.v[0], _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  const f32x16 r = {{t.v[0] - (NativeF)whole}};
  f32x16 e = broadcast(1.877576695e-3f);  // minimax of the relative error (1e-7) over [0, 1]
  e = fma(e, r, broadcast(8.989339694e-3f));
  e = fma(e, r, broadcast(5.582631752e-2f));
  e = fma(e, r, broadcast(2.401536107e-1f));
  e = fma(e, r, broadcast(6.931530833e-1f));
  e = fma(e, r, broadcast(1.0f));
  const __m512 divisor = 1.0f + _mm512_scalef_ps((__m512)e.v[0], (__m512)t.v[0]);
  // A reciprocal of 14 bits and a step of Newton's take a third of a division.
  const __m512 guess = _mm512_rcp14_ps(divisor);
  const __m512 error = _mm512_fnmadd_ps(divisor, guess, _mm512_set1_ps(1.0f));
  const __m512 inverse = _mm512_fmadd_ps(guess, error, guess);
  const __mmask16 some = _mm512_cmp_ps_mask((__m512)t.v[0], _mm512_set1_ps(126.0f), _CMP_NGT_UQ);
  return {{(NativeF)_mm512_maskz_mul_ps(some, (__m512)x.v[0], inverse)}};
#else
  return x / (broadcast(1.0f) + exp(zero() - y));
#endif
}

// Within 2e-7 of the value: below 5/8 an odd polynomial (4e-9, minimax), above it 1 - 2 / (e^2x + 1).
CP_INLINE f32x16 tanh(f32x16 x) {
  const f32x16 size = abs(x), square = x * x;
  f32x16 y = broadcast(-5.717028398e-3f);
  y = fma(y, square, broadcast(2.065057307e-2f));
  y = fma(y, square, broadcast(-5.374349281e-2f));
  y = fma(y, square, broadcast(1.333149076e-1f));
  y = fma(y, square, broadcast(-3.333328366e-1f));
  const f32x16 small = fma(y * square, x, x);
  const f32x16 large = broadcast(1.0f) - times_sigmoid(broadcast(2.0f), broadcast(-2.0f) * size);
  const i32x16 sign = as_i32(x) & broadcast_i32((int32_t)0x80000000u);
  return select(size > broadcast(0.625f), as_f32(as_i32(large) | sign), small);
}

// x * (1 + erf(x / sqrt 2)) / 2.  Below 0 that is x * t with t = erfc(|x| / sqrt 2) / 2, above it x * (1 - t);
// t = e^(-x^2 / 2) times a polynomial in 1 / (1 + 0.3 |x|), minimax of t's relative error (1.5e-7).
CP_INLINE f32x16 gelu(f32x16 x) {
  const f32x16 u = broadcast(1.0f) / fma(abs(x), broadcast(0.3f), broadcast(1.0f));
  f32x16 y = broadcast(3.567506373e-2f);
  y = fma(y, u, broadcast(-1.572042108e-1f));
  y = fma(y, u, broadcast(2.063552886e-1f));
  y = fma(y, u, broadcast(-5.368511379e-2f));
  y = fma(y, u, broadcast(1.285623014e-1f));
  y = fma(y, u, broadcast(9.991332144e-2f));
  y = fma(y, u, broadcast(1.207539812e-1f));
  y = fma(y, u, broadcast(1.196293011e-1f));
  // Far out e^-80 stands for less, so that nothing becomes subnormal, which is slow.
  const f32x16 tail = y * u * exp(max(broadcast(-80.0f), x * x * broadcast(-0.5f)));
  return x * select(x < zero(), tail, broadcast(1.0f) - tail);
}

// x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2 = x * sigmoid(2 sqrt(2 / pi) * (x + 0.044715 x^3)).
CP_INLINE f32x16 gelu_tanh(f32x16 x) {
  return times_sigmoid(x, x * fma(x * x, broadcast(7.135481627e-2f), broadcast(1.595769122f)));
}

constexpr float kSwishLimit = 7.0f;

// y * sigmoid(1.702 y), y being x up to the limit.
CP_INLINE f32x16 clamped_swish(f32x16 x) {
  const f32x16 y = min(broadcast(kSwishLimit), x);
  return times_sigmoid(y, y * broadcast(1.702f));
}

template <Function kFunction>
CP_INLINE f32x16 apply(f32x16 x) {
  if constexpr (kFunction == Function::silu) return times_sigmoid(x, x);
  if constexpr (kFunction == Function::gelu) return gelu(x);
  if constexpr (kFunction == Function::gelu_tanh) return gelu_tanh(x);
  if constexpr (kFunction == Function::relu) return max(zero(), x);
  if constexpr (kFunction == Function::sigmoid) return times_sigmoid(broadcast(1.0f), x);
  if constexpr (kFunction == Function::tanh) return tanh(x);
  if constexpr (kFunction == Function::clamped_swish) return clamped_swish(x);
  return x;
}

// What a gate and its other factor make.
template <Function kFunction>
CP_INLINE f32x16 gated_product(f32x16 gate, f32x16 up) {
  if constexpr (kFunction == Function::clamped_swish) {
    up = max(broadcast(-kSwishLimit), min(broadcast(kSwishLimit), up)) + broadcast(1.0f);
  }
  return apply<kFunction>(gate) * up;
}

// body(Known<function>), for what is known at run time alone.
template <Function kFunction>
struct Known {
  static constexpr Function value = kFunction;
};

template <class Body>
CP_INLINE void with_function(Function function, Body&& body) {
  switch (function) {
    case Function::none: return body(Known<Function::none>{});
    case Function::silu: return body(Known<Function::silu>{});
    case Function::gelu: return body(Known<Function::gelu>{});
    case Function::gelu_tanh: return body(Known<Function::gelu_tanh>{});
    case Function::relu: return body(Known<Function::relu>{});
    case Function::sigmoid: return body(Known<Function::sigmoid>{});
    case Function::tanh: return body(Known<Function::tanh>{});
    case Function::clamped_swish: return body(Known<Function::clamped_swish>{});
  }
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
