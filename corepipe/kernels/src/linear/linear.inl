// The steps of a Linear around its product: norm, quantisation, rounding, residual, gate.  Compiled once for each ISA;
// every function works on one row or one panel, so that a row's bits can't depend on the others.
#pragma once

#include "linear/int8.inl"
#include "linear/linear_table.h"
#include "rows/rows.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

// Modulo 2^32.
CP_INLINE int32_t reduce_add(i32x16 a) {
#if defined(__AVX512F__)
  // Not GCC's _mm512_reduce_add_epi32, which adds signed numbers.
  const __m512i x = (__m512i)a.v[0];
  const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
#elif defined(__AVX2__)
  const __m256i half = _mm256_add_epi32((__m256i)a.v[0], (__m256i)a.v[1]);
#endif
#if defined(__AVX2__)
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
#elif defined(__aarch64__)
  const NativeU sum = ((NativeU)a.v[0] + (NativeU)a.v[1]) + ((NativeU)a.v[2] + (NativeU)a.v[3]);
  return (int32_t)vaddvq_u32((uint32x4_t)sum);
#else
  int32_t lanes[kLanes];
  store(lanes, a);
  uint32_t sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += (uint32_t)lanes[i];
  return (int32_t)sum;
#endif
}

// bytes / parts, rounded up to a power of two: strides like 42 leave memory idle.
CP_INLINE int fetch_step(const Fetch& ahead, int bytes) {
  if (ahead.parts == 0) return 0;
  for (int parts = ahead.parts; parts > 1; parts /= 2) bytes /= 2;
  return bytes;
}

// The g-th group of x [k]; the last one padded with zeros in `padded`.
CP_INLINE const float* group_of(const float* x, int k, int g, float* padded) {
  const int count = k - g * kGroup;
  if (count >= kGroup) return x + g * kGroup;
  for (int i = 0; i < kGroup; ++i) padded[i] = i < count ? x[g * kGroup + i] : 0.0f;
  return padded;
}

// A group of numbers as int8 (int8.inl), each of kParts equal parts with its own scale.
template <int kParts>
struct QuantizedGroup {
  static constexpr int part_vectors = 4 / kParts;
  float scale[kParts];
  i32x16 q[4];
};

template <int kParts>
CP_INLINE QuantizedGroup<kParts> quantize_group(const float* x) {
  constexpr int kVectors = QuantizedGroup<kParts>::part_vectors;
  QuantizedGroup<kParts> group;
  for (int part = 0; part < kParts; ++part, x += kVectors * kLanes) {
    i32x16 largest = magnitude(load(x));
    for (int i = 1; i < kVectors; ++i) largest = max(largest, magnitude(load(x + kLanes * i)));
    const Int8Scale scale = int8_scale(reduce_max_bits(largest));
    group.scale[part] = scale.scale;
    for (int i = 0; i < kVectors; ++i) group.q[kVectors * part + i] = nearest(load(x + kLanes * i), scale);
  }
  return group;
}

// The sum of a part, modulo 2^32: of a NaN the q are any integers.
template <int kParts>
CP_INLINE int32_t sum_of(const QuantizedGroup<kParts>& group, int part) {
  if (kParts == 1) return reduce_add((group.q[0] + group.q[1]) + (group.q[2] + group.q[3]));
  return reduce_add(group.q[2 * part] + group.q[2 * part + 1]);
}

// The correction of a sum for the offset of int8 weights, 128.
CP_INLINE int32_t correction_of(int32_t sum) { return (int32_t)(-128u * (uint32_t)sum); }

// Takes int8 values as they are, with scale 1.
CP_INLINE QuantizedGroup<1> group_of_values(const int8_t* q) {
  int32_t values[kGroup];
  for (int i = 0; i < kGroup; ++i) values[i] = q[i];
  QuantizedGroup<1> group;
  group.scale[0] = 1.0f;
  for (int i = 0; i < 4; ++i) group.q[i] = load(values + kLanes * i);
  return group;
}

// A product of a block of R rows, which a Product has as run<R>; for `rows` rows, at most kMostRows.
using Multiply = void (*)(const uint8_t* w, const uint8_t* x, int groups, float* out, Fetch ahead);

template <int kMostRows, class Product>
static void multiply(int rows, const void* panel, const void* block, int groups, float* sums, Fetch ahead) {
  unrolled<kMostRows>([&](auto r) CP_LAMBDA {
    if (rows == r.value + 1) {
      Product::template run<r.value + 1>((const uint8_t*)panel, (const uint8_t*)block, groups, sums, ahead);
    }
  });
}

CP_INLINE f32x16 round_if(bool round, f32x16 x) { return round ? round_bf16(x) : x; }

// The scales and biases of 16 columns, the same for all rows.  Without a scale it is 1, without a bias -0: neither
// changes a bit.
struct Columns {
  f32x16 scale, bias;

  CP_INLINE Columns of(const float* scale, const float* bias, int at, int count) {
    return {scale == nullptr ? broadcast(1.0f) : load_n(scale + at, count),
            bias == nullptr ? broadcast(-0.0f) : load_n(bias + at, count)};
  }

  CP_INLINE f32x16 apply(const Columns& c, f32x16 y, bool round) { return round_if(round, y * c.scale + c.bias); }
};

// The steps after the sum of a panel, in this order; each rounds its result.
template <Function kFunction, bool kGlu = false, bool kScaled = false, bool kResidual = false, bool kOuter = false>
struct Ending {
  static constexpr Function function = kFunction;
  static constexpr bool glu = kGlu, scaled = kScaled, residual = kResidual, outer = kOuter;
};

template <bool kRound, class How>
CP_INLINE void finish_columns(const Finish& f, int at, int count) {
  const Columns main = Columns::of(f.scale, f.bias, at, count);
  const Columns gated = How::glu ? Columns::of(f.up_scale, f.up_bias, at, count) : main;
  for (int r = 0; r < f.rows; ++r) {
    f32x16 y = Columns::apply(main, load(f.sums + r * kPanel + at), kRound);
    if (How::glu) {
      const f32x16 up = Columns::apply(gated, load(f.up_sums + r * kPanel + at), kRound);
      y = round_if(kRound, gated_product<How::function>(y, up));
    } else if (How::function != Function::none) {
      y = round_if(kRound, apply<How::function>(y));
    }
    if (How::scaled) y = round_if(kRound, y * broadcast(f.factor));
    if (How::residual) y = round_if(kRound, load_part(f.residual + r * f.residual_stride + at, count) + y);
    if (How::outer) y = round_if(kRound, load_part(f.outer + r * f.outer_stride + at, count) + y);
    store_part(f.out + r * f.out_stride + at, y, count, false);
  }
}

template <class How>
static void finish_as(const Finish& f, How) {
  int at = 0;
  if (f.round_bf16) {
    for (; at + kLanes <= f.n; at += kLanes) finish_columns<true, How>(f, at, kLanes);
    if (at < f.n) finish_columns<true, How>(f, at, f.n - at);
  } else {
    for (; at + kLanes <= f.n; at += kLanes) finish_columns<false, How>(f, at, kLanes);
    if (at < f.n) finish_columns<false, How>(f, at, f.n - at);
  }
}

template <bool kScaled>
static void finish_sum(const Finish& f) {
  constexpr Function kNone = Function::none;
  if (f.outer != nullptr) {
    finish_as(f, Ending<kNone, false, kScaled, true, true>{});
  } else if (f.residual != nullptr) {
    finish_as(f, Ending<kNone, false, kScaled, true>{});
  } else {
    finish_as(f, Ending<kNone, false, kScaled>{});
  }
}

[[maybe_unused]] static void finish(const Finish& f) {
  if (f.up_sums != nullptr) {
    with_function(f.function, [&](auto known) { finish_as(f, Ending<known.value, true>{}); });
  } else if (f.function != Function::none) {
    with_function(f.function, [&](auto known) { finish_as(f, Ending<known.value>{}); });
  } else if (f.factor != 1.0f) {
    finish_sum<true>(f);
  } else {
    finish_sum<false>(f);
  }
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
