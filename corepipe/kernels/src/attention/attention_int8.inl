// A cache of int8: a byte for each element, with a scale for each key and value of a head; keys are rotated before.
// Bytes lie in the order of the elements that they are widened to: in place, as they are loaded, where few rows meet
// them, and otherwise once for all.  The products with them are scaled afterwards.
#pragma once

#include "attention/attention_caches.inl"
#include "attention/attention_table.h"
#include "linear/int8.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

constexpr size_t kScaleBytes = kKeyGroup * sizeof(float);  // of a group's keys or values, before their bytes

// Row j of Sylvester's Hadamard matrices of `order`, along a diagonal of 16 lanes: 1 or -1 by the common bits of row
// and lane.
struct Signs {
  float of[kLanes][kLanes];
};

constexpr Signs signs_of(int order) {
  Signs signs{};
  for (int j = 0; j < kLanes; ++j) {
    for (int i = j / order * order; i < (j / order + 1) * order; ++i) {
      float sign = 1;
      for (int bit = 1; bit < order; bit *= 2) sign = (i & j & bit) != 0 ? -sign : sign;
      signs.of[j][i] = sign;
    }
  }
  return signs;
}

constexpr Signs kSigns[] = {signs_of(1), signs_of(2), signs_of(4), signs_of(8), signs_of(16)};

// Elements of a head that are rotated together: the largest power of two that divides its size.
constexpr int rotated_together(int head_dim) { return head_dim & -head_dim; }

// out [width] = x [n], its parts of `rotated_together` elements times a Hadamard matrix: they are turned, and longer by
// the square root of that number.  Twice is that number times x.  An outlier spreads over its part, which int8 then has
// smaller steps for.  Sums are those of numerics.hadamard, in its order.  `out` may be x.
static void rotate_head(const float* x, int n, int width, float* out) {
  const int together = rotated_together(n);
  int size = 0;
  while (size < 4 && (1 << size) < together) ++size;
  for (int d = 0; d < width; d += kLanes) {
    const int count = n - d < kLanes ? n - d : kLanes;
    f32x16 sum = zero();
    for (int j = 0; j < count; ++j) sum = fma(broadcast(x[d + j]), load(kSigns[size].of[j]), sum);
    store(out + d, sum);
  }
  for (int half = kLanes; half < together; half *= 2) {
    for (int d = 0; d < n; d += 2 * half) {
      for (int i = d; i < d + half; i += kLanes) {
        const f32x16 a = load(out + i), b = load(out + i + half);
        store(out + i, a + b);
        store(out + i + half, a - b);
      }
    }
  }
}

// x [n], a key or a value of a head, as int8 in out [width]; returns the scale.
CP_INLINE float quantize_head(const float* x, int n, int width, int8_t* out) {
  const auto part = [&](int d) CP_LAMBDA { return n - d < kLanes ? load_n(x + d, n - d) : load(x + d); };
  i32x16 largest = broadcast_i32(0);
  for (int d = 0; d < width; d += kLanes) largest = max(largest, magnitude(part(d)));
  const Int8Scale scale = int8_scale(reduce_max_bits(largest));
  for (int d = 0; d < width; d += kLanes) store_low_bytes(out + d, nearest(part(d), scale));
  return scale.scale;
}

// A key, rotated; the scale makes a product with a rotated query the product with the query.
CP_INLINE float quantize_key(const float* x, int n, int width, int8_t* out) {
  alignas(64) float rotated[kMaxHeadDim];
  rotate_head(x, n, width, rotated);
  return quantize_head(rotated, n, width, out) / (float)rotated_together(n);
}

// Bytes of a key among a group's, in the order of bf16 and of fp32.
CP_INLINE void put_bytes_of_key(const int8_t* q, int width, int slot, char* keys, const uint16_t*) {
  for (int d = 0; d < width; d += 2) memcpy(keys + d * kKeyGroup + slot * 2, q + d, 2);
}

CP_INLINE void put_bytes_of_key(const int8_t* q, int width, int slot, char* keys, const float*) {
  for (int d = 0; d < width; ++d) keys[d * kKeyGroup + slot] = (char)q[d];
}

CP_INLINE void put_bytes_of_value(const int8_t* q, int width, int slot, char* values, const uint16_t*) {
  char* pairs = values + (size_t)(slot / 2) * width * 2 + slot % 2;
  for (int d = 0; d < width; ++d) pairs[2 * d] = (char)q[d];
}

CP_INLINE void put_bytes_of_value(const int8_t* q, int width, int slot, char* values, const float*) {
  memcpy(values + (size_t)slot * width, q, (size_t)width);
}

// ---- reading: whole numbers, which bf16 holds

// Sixteen bytes.
CP_INLINE f32x16 load_bytes(const char* x) {
#if defined(__AVX512F__)
  return to_f32({{(NativeI)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)x))}});
#else
  typedef int8_t Bytes __attribute__((vector_size(kNativeLanes)));
  f32x16 r;
  CP_PARTS(Bytes bytes; memcpy(&bytes, x + p * kNativeLanes, sizeof bytes);
           r.v[p] = __builtin_convertvector(__builtin_convertvector(bytes, NativeI), NativeF));
  return r;
#endif
}

#if defined(__AVX512BF16__)
// 32 bytes as bf16.
CP_INLINE __m512i bf16_of_bytes(const char* x) {
  const f32x16 low = load_bytes(x), high = load_bytes(x + kLanes);
  return (__m512i)_mm512_cvtne2ps_pbh((__m512)high.v[0], (__m512)low.v[0]);
}
#endif

// The even or the odd bytes of sixteen pairs.
template <int kOdd>
CP_INLINE f32x16 load_pairs(const char* x) {
  i32x16 pairs = as_i32(load_bf16((const uint16_t*)x));  // bytes 2 and 3 of each lane
  CP_PARTS(pairs.v[p] = (kOdd ? pairs.v[p] : pairs.v[p] << 8) >> 24);
  return to_f32(pairs);
}

// A Cache that finds bytes where its elements would be.
template <class Cache>
struct InPlace;

template <>
struct InPlace<Fp32Cache> : Fp32Cache {
  static constexpr int kLaneBytes = kLanes;
  template <int kPass>
  CP_INLINE Lanes load_lanes(const char* x) {
    return load_bytes(x);
  }
};

#if defined(__AVX512F__)
template <class Order>
struct InPlace<FmaBf16Cache<Order>> : FmaBf16Cache<Order> {
  static constexpr int kLaneBytes = 2 * kLanes;
  template <int kPass>
  CP_INLINE f32x16 load_lanes(const char* x) {
    return load_pairs<Order::element(kPass)>(x);
  }
};
#endif

#if !defined(__AVX512F__) || defined(__AVX512BF16__)
template <>
struct InPlace<Bf16Cache> : Bf16Cache {
  static constexpr int kLaneBytes = 2 * kLanes;
  template <int kPass>
  CP_INLINE Lanes load_lanes(const char* x) {
#if defined(__AVX512BF16__)
    return {bf16_of_bytes(x)};
#else
    return {load_pairs<0>(x), load_pairs<1>(x)};
#endif
  }
};
#endif

template <class Cache>
constexpr bool kInPlace = false;
template <class Cache>
constexpr bool kInPlace<InPlace<Cache>> = true;

// n bytes, a multiple of 32, as elements at `out`, which is returned.
CP_INLINE const char* widen_bytes(const char* bytes, int n, uint16_t* out) {
  for (int i = 0; i < n; i += 2 * kLanes) {
#if defined(__AVX512BF16__)
    _mm512_storeu_si512(out + i, bf16_of_bytes(bytes + i));
#else
    const i32x16 low = as_i32(load_pairs<0>(bytes + i)), high = as_i32(load_pairs<1>(bytes + i));
    i32x16 both;
    CP_PARTS(both.v[p] = (NativeI)((NativeU)low.v[p] >> 16) | high.v[p]);
    store((int32_t*)(out + i), both);
#endif
  }
  return (const char*)out;
}

CP_INLINE const char* widen_bytes(const char* bytes, int n, float* out) {
  for (int i = 0; i < n; i += kLanes) store(out + i, load_bytes(bytes + i));
  return (const char*)out;
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
