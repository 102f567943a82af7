// Latents, whose first elements are the values, too: the cache has them as keys, and a block of them is turned for the
// rows that are about to meet it.
#pragma once

#include "attention/attention_table.h"
#include "isa/simd.h"

namespace corepipe {
namespace COREPIPE_SIMD {

typedef uint64_t Four64 __attribute__((vector_size(32)));
typedef uint16_t Sixteen16 __attribute__((vector_size(32)));
typedef uint32_t Four32 __attribute__((vector_size(16)));

#if defined(__clang__)
#define CP_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define CP_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (decltype(a)){__VA_ARGS__})
#endif

// Turns a square of four by four: rows of `from` lie from_stride apart, those of `to` to_stride, in Words of a Vector.
template <class Vector, class Word>
CP_INLINE void turn_square(const Word* from, size_t from_stride, Word* to, size_t to_stride) {
  Vector a, b, c, d;
  memcpy(&a, from, sizeof a), memcpy(&b, from + from_stride, sizeof b);
  memcpy(&c, from + 2 * from_stride, sizeof c), memcpy(&d, from + 3 * from_stride, sizeof d);
  const Vector ab = CP_SHUFFLE(a, b, 0, 4, 2, 6), cd = CP_SHUFFLE(c, d, 0, 4, 2, 6);
  const Vector ba = CP_SHUFFLE(a, b, 1, 5, 3, 7), dc = CP_SHUFFLE(c, d, 1, 5, 3, 7);
  const Vector turned[] = {
      CP_SHUFFLE(ab, cd, 0, 1, 4, 5), CP_SHUFFLE(ba, dc, 0, 1, 4, 5),
      CP_SHUFFLE(ab, cd, 2, 3, 6, 7), CP_SHUFFLE(ba, dc, 2, 3, 6, 7)};
  for (int i = 0; i < 4; ++i) memcpy(to + i * to_stride, &turned[i], sizeof turned[i]);
}

// The first `width` elements of a group's keys as values, at `out`, which is returned.  Two elements of two keys are a
// word, in which they change places.
CP_INLINE const char* turn_keys(const char* keys, int width, uint16_t* out) {
  constexpr int kWords = kKeyGroup / 2;  // of a pair of elements; and rows of values
  const uint64_t* from = (const uint64_t*)keys;
  uint64_t* to = (uint64_t*)out;
  const size_t stride = (size_t)width / 2;
  for (size_t pair = 0; pair < stride; pair += 4) {
    for (int k = 0; k < kWords; k += 4) {
      alignas(32) uint64_t swapped[4][4];
      for (int i = 0; i < 4; ++i) {
        Sixteen16 x;
        memcpy(&x, from + (pair + i) * kWords + k, sizeof x);
        x = CP_SHUFFLE(x, x, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
        memcpy(swapped[i], &x, sizeof x);
      }
      turn_square<Four64>(&swapped[0][0], 4, to + k * stride + pair, stride);
    }
  }
  return (const char*)out;
}

CP_INLINE const char* turn_keys(const char* keys, int width, float* out) {
  for (int d = 0; d < width; d += 4) {
    for (int k = 0; k < kKeyGroup; k += 4) {
      turn_square<Four32>((const uint32_t*)keys + d * kKeyGroup + k, kKeyGroup, (uint32_t*)out + k * width + d, width);
    }
  }
  return (const char*)out;
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
