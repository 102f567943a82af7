// fp32 numbers as int8 with one scale: scale = amax / 127 in fp32 (0 where that is below fp32's normal numbers),
// q = rint(x * (1 / scale)), ties to even, or 0 for scale 0.  |q| <= 127.  A NaN among x makes the scale NaN.
#pragma once

#include "isa/simd.h"

namespace corepipe {
namespace COREPIPE_SIMD {

CP_INLINE i32x16 max(i32x16 a, i32x16 b) {
  i32x16 r;
  CP_PARTS(r.v[p] = a.v[p] > b.v[p] ? a.v[p] : b.v[p]);
  return r;
}

// As integers the bits of |x| order like the values, NaN above all.
CP_INLINE i32x16 magnitude(f32x16 x) { return as_i32(abs(x)); }

struct Int8Scale {
  float scale, inverse;
};

CP_INLINE Int8Scale int8_scale(float amax) {
  const float scale = amax / 127.0f;
  return scale < 1.17549435e-38f ? Int8Scale{0.0f, 0.0f} : Int8Scale{scale, 1.0f / scale};
}

CP_INLINE i32x16 nearest(f32x16 x, Int8Scale scale) {
  const f32x16 magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  return as_i32(x * broadcast(scale.inverse) + magic) - as_i32(magic);
}

// The low byte of each lane.
CP_INLINE void store_low_bytes(int8_t* x, i32x16 a) {
#if defined(__AVX512F__)
  _mm_storeu_si128((__m128i*)x, _mm512_cvtepi32_epi8((__m512i)a.v[0]));
#elif defined(__aarch64__)
  const int16x8_t low = vcombine_s16(vmovn_s32((int32x4_t)a.v[0]), vmovn_s32((int32x4_t)a.v[1]));
  const int16x8_t high = vcombine_s16(vmovn_s32((int32x4_t)a.v[2]), vmovn_s32((int32x4_t)a.v[3]));
  vst1q_s8(x, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
#else
  int32_t lanes[kLanes];
  store(lanes, a);
  for (int i = 0; i < kLanes; ++i) x[i] = (int8_t)lanes[i];
#endif
}

CP_INLINE f32x16 to_f32(i32x16 a) {
  f32x16 r;
  CP_PARTS(r.v[p] = __builtin_convertvector(a.v[p], NativeF));
  return r;
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
