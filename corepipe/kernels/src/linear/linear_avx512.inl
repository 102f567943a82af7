// Products with AVX-512 VNNI.  A block of R rows times a panel of 32 columns keeps its 2 R accumulators in registers;
// each output has one chain over k, the same for every R.
#pragma once

#if defined(__AVX512BF16__)
#include "linear/linear_avx512_bf16.inl"
#else
#include "linear/linear_avx512_fma.inl"
#endif

namespace corepipe {
namespace COREPIPE_SIMD {

constexpr int kInt8Rows = 7;       // 28 accumulators, half of them the fp32 sums of the groups before
constexpr int kInt8WideRows = 14;  // with those sums in memory instead

// Inline assembly: with the intrinsics GCC 12 spills accumulators.
CP_INLINE void dot_u8s8(__m512i& sum, __m512i weights, __m512i x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(x));
}

template <int kLines>
CP_INLINE void fetch_part(Fetch& ahead, int step) {
  constexpr int kIntoL2 = 2;
  for (int i = 0; i < kLines; ++i) __builtin_prefetch(ahead.from + 64 * i, 0, kIntoL2);
  ahead.from += step;
}

// ---- int8.  A block has for each group: -128 * sum(q) [R] i32, scale [R] f32, q [R][64] s8.

constexpr int kInt8RowGroup = 4 + 4 + kGroup;

// acc [R][2] += the products of four k: weights of columns 0-15 and 16-31, and a word of each row, which lie a group
// apart from q on.
template <int R>
CP_INLINE void add_words(__m512i (&acc)[R][2], __m512i w0, __m512i w1, const uint8_t* q) {
  unrolled<R>([&](int r) CP_LAMBDA {
    const __m512i v = broadcast_word(q + kGroup * r);
    dot_u8s8(acc[r][0], w0, v);
    dot_u8s8(acc[r][1], w1, v);
  });
}

// acc [R][2] += the products of kCount of k.  Unrolled as a whole, so that no counter takes a product's turn.
template <int R, int kCount, int kLines>
CP_INLINE void add_products(__m512i (&acc)[R][2], const uint8_t* w, const uint8_t* q, Fetch& ahead, int step) {
  unrolled<kCount / 4>([&](int i) CP_LAMBDA {
    const __m512i w0 = _mm512_loadu_si512(w + 128 * i), w1 = _mm512_loadu_si512(w + 128 * i + 64);
    fetch_part<kLines>(ahead, step);
    add_words(acc, w0, w1, q + 4 * i);
  });
}

// acc [R][2] = the words at x, one for each row.
template <int R>
CP_INLINE void start_from(__m512i (&acc)[R][2], const uint8_t* x) {
  unrolled<R>([&](int r) CP_LAMBDA { acc[r][0] = acc[r][1] = broadcast_word(x + 4 * r); });
}

// sum += scale * acc, of row `row`.
template <int R>
CP_INLINE void add_group(__m512 sum[2], const __m512i acc[2], const uint8_t* x, int row) {
  const __m512 scale = _mm512_castsi512_ps(broadcast_word(x + 4 * (R + row)));
  sum[0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[0]), scale, sum[0]);
  sum[1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[1]), scale, sum[1]);
}

// The sums are in registers as long as there are enough of those, else in `out`.
template <int R, int kLines>
static void multiply_int8_groups(const uint8_t* w, const uint8_t* x, int groups, float* out, Fetch ahead, int step) {
  constexpr bool kInRegisters = R <= kInt8Rows;
  __m512 sums[R][2];
  unrolled<R>([&](int r) CP_LAMBDA {
    sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    if (!kInRegisters) store_pair(out + 32 * r, sums[r]);
  });
  for (int g = 0; g < groups; ++g, w += kPanel * kGroup, x += R * kInt8RowGroup) {
    __m512i acc[R][2];
    start_from(acc, x);
    add_products<R, kGroup, kLines>(acc, w, x + 8 * R, ahead, step);
    unrolled<R>([&](int r) CP_LAMBDA {
      if (!kInRegisters) load_pair(out + 32 * r, sums[r]);
      add_group<R>(sums[r], acc[r], x, r);
      if (!kInRegisters) store_pair(out + 32 * r, sums[r]);
    });
  }
  if (kInRegisters) unrolled<R>([&](int r) CP_LAMBDA { store_pair(out + 32 * r, sums[r]); });
}

template <int R>
static void multiply_int8(const uint8_t* w, const uint8_t* x, int groups, float* out, Fetch ahead) {
  const int step = fetch_step(ahead, 128);
  if (step > 64) {
    multiply_int8_groups<R, 2>(w, x, groups, out, ahead, step);
  } else {
    multiply_int8_groups<R, 1>(w, x, groups, out, ahead, step);
  }
}

// The places of a row in a block: its int8 values, and for each of `parts` parts of group g its scale and its
// correction.
struct InterleavedRow {
  static constexpr int parts = 1;
  uint8_t* block;
  int row, rows;

  CP_INLINE uint8_t* group(const InterleavedRow& to, int g) { return to.block + g * to.rows * kInt8RowGroup; }
  CP_INLINE int8_t* q(const InterleavedRow& to, int g) {
    return (int8_t*)group(to, g) + 8 * to.rows + kGroup * to.row;
  }
  CP_INLINE void put_scale(const InterleavedRow& to, int g, int, float scale) {
    memcpy(group(to, g) + 4 * (to.rows + to.row), &scale, 4);
  }
  CP_INLINE void put_sum(const InterleavedRow& to, int g, int, int32_t sum) {
    const int32_t correction = correction_of(sum);
    memcpy(group(to, g) + 4 * to.row, &correction, 4);
  }
};

template <class Row>
CP_INLINE void put_group(const QuantizedGroup<Row::parts>& from, const Row& to, int g) {
  for (int i = 0; i < 4; ++i) store_low_bytes(Row::q(to, g) + kLanes * i, from.q[i]);
  for (int part = 0; part < Row::parts; ++part) {
    Row::put_scale(to, g, part, from.scale[part]);
    Row::put_sum(to, g, part, sum_of(from, part));
  }
}

static void prepare_int8_values(const int8_t* q, int row, int rows, void* block) {
  put_group(group_of_values(q), InterleavedRow{(uint8_t*)block, row, rows}, 0);
}

// Folds each of four vectors to one lane, by `op`.
template <class Op>
CP_INLINE __m128i fold_four(const __m512i v[4], Op op) {
  __m128i quad[4];
  unrolled<4>([&](int i) CP_LAMBDA {
    const __m256i half = op(_mm512_castsi512_si256(v[i]), _mm512_extracti64x4_epi64(v[i], 1));
    quad[i] = op(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  });
  const __m128i low = op(_mm_unpacklo_epi32(quad[0], quad[1]), _mm_unpackhi_epi32(quad[0], quad[1]));
  const __m128i high = op(_mm_unpacklo_epi32(quad[2], quad[3]), _mm_unpackhi_epi32(quad[2], quad[3]));
  return op(_mm_unpacklo_epi64(low, high), _mm_unpackhi_epi64(low, high));
}

// Largest and Sum for vectors of any width.
struct Largest {
  CP_INLINE __m128i of(__m128i a, __m128i b) { return _mm_max_epi32(a, b); }
  CP_INLINE __m256i of(__m256i a, __m256i b) { return _mm256_max_epi32(a, b); }
  CP_INLINE __m512i of(__m512i a, __m512i b) { return _mm512_max_epi32(a, b); }
};

struct Sum {
  CP_INLINE __m128i of(__m128i a, __m128i b) { return _mm_add_epi32(a, b); }
  CP_INLINE __m256i of(__m256i a, __m256i b) { return _mm256_add_epi32(a, b); }
  CP_INLINE __m512i of(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }
};

// quantize_group and put_group for four groups at once: reductions to one number a group take as many instructions for
// four groups as for one.
template <class Row>
CP_INLINE void prepare_four_groups(const float* x, const Row& to, int first) {
  const auto largest = [](auto a, auto b) CP_LAMBDA { return Largest::of(a, b); };
  const auto sum = [](auto a, auto b) CP_LAMBDA { return Sum::of(a, b); };
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512 v[4][4];
  __m512i folded[Row::parts][4], sums[Row::parts][4];
  unrolled<4>([&](int g) CP_LAMBDA {
    unrolled<4>([&](auto i) CP_LAMBDA {
      v[g][i.value] = _mm512_loadu_ps(x + kGroup * g + kLanes * i.value);
      const __m512i bits = _mm512_and_si512((__m512i)v[g][i.value], magnitude);
      constexpr int part = i.value * Row::parts / 4, begins = i.value % (4 / Row::parts) == 0;
      folded[part][g] = begins ? bits : Largest::of(folded[part][g], bits);
    });
  });
  alignas(16) float scales[Row::parts][4], inverses[Row::parts][4];
  unrolled<Row::parts>([&](int part) CP_LAMBDA {
    const __m128 scale = _mm_div_ps((__m128)fold_four(folded[part], largest), _mm_set1_ps(127.0f));
    const __mmask8 some = _mm_cmp_ps_mask(scale, _mm_set1_ps(1.17549435e-38f), _CMP_NLT_UQ);
    _mm_store_ps(scales[part], _mm_maskz_mov_ps(some, scale));
    _mm_store_ps(inverses[part], _mm_maskz_div_ps(some, _mm_set1_ps(1.0f), scale));
  });
  unrolled<4>([&](int g) CP_LAMBDA {
    int8_t* q_out = Row::q(to, first + g);
    unrolled<4>([&](auto i) CP_LAMBDA {
      constexpr int part = i.value * Row::parts / 4, begins = i.value % (4 / Row::parts) == 0;
      const __m512 inverse = _mm512_set1_ps(inverses[part][g]);
      const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(v[g][i.value], inverse));
      _mm_storeu_si128((__m128i*)(q_out + kLanes * i.value), _mm512_cvtepi32_epi8(q));
      sums[part][g] = begins ? q : Sum::of(sums[part][g], q);
    });
  });
  unrolled<Row::parts>([&](int part) CP_LAMBDA {
    alignas(16) int32_t wholes[4];
    _mm_store_si128((__m128i*)wholes, fold_four(sums[part], sum));
    for (int g = 0; g < 4; ++g) {
      Row::put_scale(to, first + g, part, scales[part][g]);
      Row::put_sum(to, first + g, part, wholes[g]);
    }
  });
}

template <class Row>
CP_INLINE void prepare_row(const float* x, int k, const Row& to) {
  float padded[kGroup];
  int g = 0;
  for (; (g + 4) * kGroup <= k; g += 4) prepare_four_groups(x + g * kGroup, to, g);
  for (; g * kGroup < k; ++g) put_group(quantize_group<Row::parts>(group_of(x, k, g, padded)), to, g);
}

static void prepare_int8_rows(const float* x, int k, int row, int rows, void* block) {
  prepare_row(x, k, InterleavedRow{(uint8_t*)block, row, rows});
}

// ---- fp32.  A block has for each group: [R][64] f32.

template <int R>
static void multiply_fp32(const uint8_t* w, const uint8_t* x, int groups, float* out, Fetch ahead) {
  constexpr int kStepBytes = 128;
  const int step = fetch_step(ahead, kStepBytes);
  __m512 sums[R][2];
  unrolled<R>([&](int r) CP_LAMBDA { sums[r][0] = sums[r][1] = _mm512_setzero_ps(); });
  for (int g = 0; g < groups; ++g) {
    for (int i = 0; i < kGroup; ++i) {
      const __m512 w0 = _mm512_loadu_ps(w), w1 = _mm512_loadu_ps(w + 64);
      fetch(ahead, step);
      unrolled<R>([&](int r) CP_LAMBDA {
        const __m512 v = _mm512_castsi512_ps(broadcast_word(x + kFloatRowGroup * r));
        sums[r][0] = _mm512_fmadd_ps(w0, v, sums[r][0]);
        sums[r][1] = _mm512_fmadd_ps(w1, v, sums[r][1]);
      });
      w += 128;
      x += 4;
    }
    x += (R - 1) * kFloatRowGroup;
  }
  unrolled<R>([&](int r) CP_LAMBDA { store_pair(out + 32 * r, sums[r]); });
}

// ---- choice of R

struct Int8Product {
  template <int R>
  static constexpr Multiply run = multiply_int8<R>;
};

struct Fp32Product {
  template <int R>
  static constexpr Multiply run = multiply_fp32<R>;
};

constexpr LinearKernel int8_kernel(int max_rows) {
  return {max_rows, kInt8RowGroup, prepare_int8_rows, multiply<kInt8WideRows, Int8Product>, prepare_int8_values};
}

constexpr LinearKernels kFp32Kernels = {
    {kFloatRows, kFloatRowGroup, prepare_float<false>, multiply<kFloatRows, Fp32Product>}};

constexpr DenseLinears dense_linears(const LinearKernels& int8, const ChainRows& chain, int unaided_rows) {
  return {
      {
          int8,
          {{kFloatRows, kBf16RowGroup, prepare_bf16, multiply<kFloatRows, Int8wProduct>}},
          {{kFloatRows, kBf16RowGroup, prepare_bf16, multiply<kFloatRows, Bf16Product>}},
          kFp32Kernels,
      },
      chain,
      unaided_rows,
      finish,
  };
}

// Measured on Zen 4.
constexpr DenseLinears amd_linears() { return dense_linears({int8_kernel(kInt8Rows)}, {56, 56, 14, 7}, 4); }

// Measured on Emerald Rapids, where a core multiplies int8 twice as fast: a chain of fewer rows than 28 waits for
// weights, also as the last of a batch.  With 64 rows the threads are better off apart than on the same weights.  Its
// hardware does not fetch soon enough by itself, not even for one row.  Up to 24 rows take longer to read the weights,
// once for each block, than to add sums in memory.
constexpr DenseLinears intel_linears() {
  return dense_linears({int8_kernel(kInt8WideRows), 25, int8_kernel(kInt8Rows)}, {28, 56, 28, 7}, 0);
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
