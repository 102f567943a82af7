// The sampler's passes over a row of logits.
#pragma once

#include "rows/rows.inl"
#include "rows/sampler_table.h"

namespace corepipe {
namespace COREPIPE_SIMD {

constexpr float kNoLogit = -__builtin_inff();

// Adds 0 for each number, and NaN for what is none.
struct Numbers {
  f32x16 zeros[4] = {zero(), zero(), zero(), zero()};

  CP_INLINE void add(Numbers& n, int u, f32x16 x) { n.zeros[u] = fma(x, zero(), n.zeros[u]); }
  CP_INLINE bool all(const Numbers& n) {
    return reduce_add((n.zeros[0] + n.zeros[1]) + (n.zeros[2] + n.zeros[3])) == 0.0f;
  }
};

// Largest of x [n], NaN left out: maxps takes its second operand where the first is NaN.
CP_INLINE float max_of(const float* x, int n, Numbers& numbers) {
  f32x16 top[4];
  for (int u = 0; u < 4; ++u) top[u] = broadcast(kNoLogit);
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    unrolled<4>([&](int u) CP_LAMBDA {
      const f32x16 v = load(x + i + u * kLanes);
      top[u] = max(v, top[u]);
      Numbers::add(numbers, u, v);
    });
  }
  float last = kNoLogit;
  for (; i < n; i += kLanes) {
    const int count = n - i < kLanes ? n - i : kLanes;
    const f32x16 v = load_n(x + i, count);
    Numbers::add(numbers, 0, v);
    if (count == kLanes) {
      top[0] = max(v, top[0]);
    } else {
      for (int j = i; j < n; ++j) last = x[j] > last ? x[j] : last;
    }
  }
  const float best = reduce_max(max(max(top[0], top[1]), max(top[2], top[3])));
  return last > best ? last : best;
}

static float row_max(const float* x, int n, bool* finite) {
  Numbers numbers;
  const float best = max_of(x, n, numbers);
  *finite = Numbers::all(numbers);
  return best;
}

static void group_maxima(const float* x, int n, float* maxima) {
  for (int i = 0; i < n; i += kMaximaGroup) {
    Numbers unused;
    *maxima++ = max_of(x + i, n - i < kMaximaGroup ? n - i : kMaximaGroup, unused);
  }
}

static int argmax(const float* x, int n, bool* finite) {
  constexpr int kStretch = 1024;
  float best = kNoLogit;
  int stretch = -1;
  Numbers numbers;
  for (int i = 0; i < n; i += kStretch) {
    const float top = max_of(x + i, n - i < kStretch ? n - i : kStretch, numbers);
    if (top > best) best = top, stretch = i;
  }
  *finite = Numbers::all(numbers);
  if (stretch < 0) return 0;
  int i = stretch;
  while (!(x[i] == best)) ++i;
  return i;
}

static void divide_row(const float* x, float divisor, float* out, int n) {
  const f32x16 d = broadcast(divisor), none = broadcast(kNoLogit);
  for_lanes(n, [&](int i, int count) {
    const f32x16 y = load_part(x + i, count) / d;
    store_part(out + i, select(y == y, y, none), count, false);
  });
}

// Lanes of fp32 over 256 elements, then doubles.
static void weigh_row(const float* x, int n, float max, float* weights, double* sums) {
  constexpr int kStretch = 256;
  for (int block = 0; block < n; block += kSampleBlock) {
    const int end = n - block < kSampleBlock ? n : block + kSampleBlock;
    double total = 0;
    for (int at = block; at < end; at += kStretch) {
      f32x16 sum = zero();
      for_lanes(end - at < kStretch ? end - at : kStretch, [&](int i, int count) {
        f32x16 e = exp(load_part(x + at + i, count) - broadcast(max));
        e = select(lane_index() < broadcast_i32(count), e, zero());
        e = select(e == e, e, zero());
        if (weights != nullptr) store_part(weights + at + i, e, count, false);
        sum = sum + e;
      });
      total += (double)reduce_add(sum);
    }
    *sums++ = total;
  }
}

static int at_least(const float* x, int n, float bound, int32_t* ids) {
  int found = 0;
  for (int i = 0; i < n; i += kLanes) {
    const int count = n - i < kLanes ? n - i : kLanes;
#if defined(__AVX512F__)
    const __m512 v = (__m512)load_part(x + i, count).v[0];
    const __mmask16 lanes = (__mmask16)((1u << count) - 1u);
    const __mmask16 keep = _mm512_mask_cmp_ps_mask(lanes, v, _mm512_set1_ps(bound), _CMP_GE_OQ);
    const __m512i index = _mm512_add_epi32((__m512i)lane_index().v[0], _mm512_set1_epi32(i));
    if (keep != 0) _mm512_storeu_si512(ids + found, _mm512_maskz_compress_epi32(keep, index));
    found += __builtin_popcount(keep);
#else
    for (int j = i; j < i + count; ++j) {
      ids[found] = j;
      found += x[j] >= bound;
    }
#endif
  }
  return found;
}

static void mask_row(const float* x, const uint32_t* words, float* out, int n) {
  int32_t powers[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) powers[lane] = 1 << lane;
  const i32x16 bit = load(powers);
  const f32x16 none = broadcast(kNoLogit);
  for_lanes(n, [&](int i, int count) {
    const i32x16 bits = broadcast_i32((int32_t)(words[i >> 5] >> (i & 31) & 0xffffu));
    store_part(out + i, select((bits & bit) == bit, load_part(x + i, count), none), count, false);
  });
}

constexpr SamplerTable kSampler = {argmax, row_max, group_maxima, divide_row, weigh_row, at_least, mask_row};

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
