// Multiply-adds that round once, where the CPU has no instruction for them.  Included by simd.h.
#pragma once

namespace corepipe {
namespace COREPIPE_SIMD {

// a * b + c of fp32 numbers, such that rounding it to fp32 is the only rounding: the product is exact, and the sum is
// rounded to odd (Boldo & Melquiond 2008).
CP_INLINE __m128d multiply_add_to_odd(__m128d a, __m128d b, __m128d c) {
  const __m128d product = a * b, sum = product + c, added = sum - product;
  const __m128d error = (product - (sum - added)) + (c - added);  // Knuth's TwoSum
  const __m128i bits = (__m128i)sum, one = _mm_set1_epi64x(1);
  const __m128d size = _mm_andnot_pd(_mm_set1_pd(-0.0), error);
  const __m128i inexact = (__m128i)_mm_cmpgt_pd(size, _mm_setzero_pd());  // and no NaN
  const __m128i even = _mm_sub_epi64(_mm_and_si128(bits, one), one);
  const __m128i less = _mm_srli_epi64(_mm_xor_si128(bits, (__m128i)error), 63);
  const __m128i step = _mm_sub_epi64(one, _mm_add_epi64(less, less));
  return (__m128d)_mm_add_epi64(bits, _mm_and_si128(step, _mm_and_si128(inexact, even)));
}

// Not inlined: a table that is made of these would take three times as long to compile.
__attribute__((noinline, unused)) static __m128 multiply_add(__m128 a, __m128 b, __m128 c) {
  const __m128d low = multiply_add_to_odd(_mm_cvtps_pd(a), _mm_cvtps_pd(b), _mm_cvtps_pd(c));
  const __m128d high = multiply_add_to_odd(_mm_cvtps_pd(_mm_movehl_ps(a, a)), _mm_cvtps_pd(_mm_movehl_ps(b, b)),
                                           _mm_cvtps_pd(_mm_movehl_ps(c, c)));
  return _mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
