// bf16, and int8 weights widened on the fly, with AVX-512 BF16 and VBMI.  A block has for each group: [R][64] bf16.
#pragma once

#include "linear/linear_float.inl"
#include "linear/linear_zmm.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

constexpr int kBf16RowGroup = 2 * kGroup;

// Inline assembly: with the intrinsic GCC 12 spills accumulators.
CP_INLINE void dot_bf16(__m512& sum, __m512i weights, __m512i x) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(x));
}

// A step is two k: what one vdpbf16ps takes.
struct Bf16Pairs {
  static constexpr int kStepBytes = 128;

  CP_INLINE void load(const uint8_t* w, __m512i v[2]) {
    v[0] = _mm512_loadu_si512(w);
    v[1] = _mm512_loadu_si512(w + 64);
  }
  CP_INLINE void put_in_order(__m512[2]) {}
};

// The bytes of bf16(i), i in 0 .. 127, in two tables.
struct Bf16Bytes {
  uint8_t low[128], high[128];
};

constexpr Bf16Bytes bf16_bytes() {
  Bf16Bytes t{};
  for (int i = 1; i < 128; ++i) {
    int exponent = 0;
    while (i >> (exponent + 1) != 0) ++exponent;
    const int bits = (exponent + 127) << 7 | ((i << (7 - exponent)) & 127);
    t.low[i] = (uint8_t)bits;
    t.high[i] = (uint8_t)(bits >> 8);
  }
  return t;
}

alignas(64) constexpr Bf16Bytes kBf16Bytes = bf16_bytes();

// Int8 to bf16 by table, quicker for few rows: |w| is looked up and gets its sign.  -128 has no entry:
// quantised weights are symmetric.  Interleaving low and high bytes leaves columns 0-3, 8-11, ... in one
// vector and 4-7, 12-15, ... in the other; the sums are put in order at the end.
struct LookedUpInt8Weights {
  static constexpr int kStepBytes = 64;

  CP_INLINE void load(const uint8_t* w, __m512i v[2]) {
    constexpr int kHighOrSign = 0xf8;  // truth table of a | (b & c)
    const __m512i s = _mm512_loadu_si512(w), magnitude = _mm512_abs_epi8(s);
    const __m512i low = lookup(kBf16Bytes.low, magnitude);
    __m512i high = lookup(kBf16Bytes.high, magnitude);
    high = _mm512_ternarylogic_epi64(high, s, _mm512_set1_epi8(-128), kHighOrSign);
    v[0] = _mm512_unpacklo_epi8(low, high);
    v[1] = _mm512_unpackhi_epi8(low, high);
  }

  CP_INLINE void put_in_order(__m512 v[2]) {
    const __m512d a = _mm512_castps_pd(v[0]), b = _mm512_castps_pd(v[1]);
    v[0] = _mm512_castpd_ps(_mm512_permutex2var_pd(a, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), b));
    v[1] = _mm512_castpd_ps(_mm512_permutex2var_pd(a, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), b));
  }

 private:
  CP_INLINE __m512i lookup(const uint8_t* table, __m512i index) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), index, _mm512_load_si512(table + 64));
  }
};

constexpr int kLookUpRows = 6;

// Int8 to bf16 by way of fp32: more instructions, but on ports that vdpbf16ps leaves free.
struct ConvertedInt8Weights {
  static constexpr int kStepBytes = 64;

  CP_INLINE void load(const uint8_t* w, __m512i v[2]) {
    v[0] = convert(w);
    v[1] = convert(w + 32);
  }
  CP_INLINE void put_in_order(__m512[2]) {}

 private:
  CP_INLINE __m512i convert(const uint8_t* w) {
    const __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)w));
    const __m512i high = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(w + 16)));
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low));
  }
};

template <class Weights, int R>
static void multiply_bf16(const uint8_t* w, const uint8_t* x, int groups, float* out, Fetch ahead) {
  const int step = fetch_step(ahead, Weights::kStepBytes);
  __m512 sums[R][2];
  unrolled<R>([&](int r) CP_LAMBDA { sums[r][0] = sums[r][1] = _mm512_setzero_ps(); });
  for (int g = 0; g < groups; ++g) {
    for (int i = 0; i < kGroup / 2; ++i) {
      __m512i v[2];
      Weights::load(w, v);
      fetch(ahead, step);
      unrolled<R>([&](int r) CP_LAMBDA {
        const __m512i pair = broadcast_word(x + kBf16RowGroup * r);
        dot_bf16(sums[r][0], v[0], pair);
        dot_bf16(sums[r][1], v[1], pair);
      });
      w += Weights::kStepBytes;
      x += 4;
    }
    x += (R - 1) * kBf16RowGroup;
  }
  unrolled<R>([&](int r) CP_LAMBDA {
    Weights::put_in_order(sums[r]);
    store_pair(out + 32 * r, sums[r]);
  });
}

static void prepare_bf16(const float* x, int k, int row, int rows, void* block) {
  float padded[kGroup];
  uint16_t* to = (uint16_t*)block + kGroup * row;
  for (int g = 0; g * kGroup < k; ++g, to += kGroup * rows) {
    const float* group = group_of(x, k, g, padded);
    for (int i = 0; i < kGroup; i += kLanes) store_bf16(to + i, round_bf16(load(group + i)));
  }
}

struct Bf16Product {
  template <int R>
  static constexpr Multiply run = multiply_bf16<Bf16Pairs, R>;
};

struct Int8wProduct {
  template <int R>
  static constexpr Multiply run =
      R <= kLookUpRows ? multiply_bf16<LookedUpInt8Weights, R> : multiply_bf16<ConvertedInt8Weights, R>;
};

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
