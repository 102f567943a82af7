// Products of int8 for ARM's dot products of bytes (FEAT_DotProd) and products of matrices of bytes (FEAT_I8MM); what
// else a Linear does is NEON's, as portable has it.
#pragma once

#include <arm_neon.h>

#include "linear/linear_generic.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

// Sums of columns times rows: four k of four columns by four k of a row, whose place among sixteen is kLane.

// For weights below 128, which are the same as signed numbers.
struct SignedDot {
  static constexpr bool kKeepsOffset = true;
  template <int kLane>
  CP_INLINE int32x4_t add(int32x4_t sum, uint8x16_t weights, int8x16_t x) {
    return vdotq_laneq_s32(sum, vreinterpretq_s8_u8(weights), x, kLane);
  }
};

// For weights whose offset of 128 is removed before the product.
struct FlippedDot {
  static constexpr bool kKeepsOffset = false;
  template <int kLane>
  CP_INLINE int32x4_t add(int32x4_t sum, uint8x16_t weights, int8x16_t x) {
    return SignedDot::add<kLane>(sum, veorq_u8(weights, vdupq_n_u8(0x80)), x);
  }
};

#if defined(__ARM_FEATURE_MATMUL_INT8)
// For unsigned weights.
struct MixedDot {
  static constexpr bool kKeepsOffset = true;
  template <int kLane>
  CP_INLINE int32x4_t add(int32x4_t sum, uint8x16_t weights, int8x16_t x) {
    return vusdotq_laneq_s32(sum, weights, x, kLane);
  }
};
#endif

// q [R][64] s8, of which a register holds sixteen of a row.
template <class Dot>
struct DotProducts {
  static constexpr int kValueBytes = kGroup;
  static constexpr bool kKeepsOffset = Dot::kKeepsOffset;
  static constexpr bool kTakesPacked = false;

  CP_INLINE void store_values(const i32x16 (&q)[4], uint8_t* to) {
    for (int i = 0; i < 4; ++i) store_low_bytes((int8_t*)to + kLanes * i, q[i]);
  }

  template <int R, int C>
  CP_INLINE void add(i32x16 (&acc)[R][C], const uint8_t* w, const uint8_t* q, int count, Fetch& ahead, int step) {
#pragma GCC unroll 1  // unrolled, GCC would keep in memory what registers have room for
    for (int i = 0; i < count / 16; ++i, q += 16) {
      int8x16_t x[R];
      unrolled<R>([&](int r) CP_LAMBDA { x[r] = vld1q_s8((const int8_t*)q + kValueBytes * r); });
      unrolled<4>([&](auto lane) CP_LAMBDA {
        fetch(ahead, step, 64 * C);
        unrolled<4 * C>([&](auto four) CP_LAMBDA {
          constexpr int c = four.value / 4, p = four.value % 4;
          const uint8x16_t weights = vld1q_u8(w + 16 * four.value);
          __asm__ volatile("" ::: "memory");  // what is loaded sooner takes registers from the sums
          unrolled<R>([&](int r) CP_LAMBDA {
            NativeI& sum = acc[r][c].v[p];
            sum = (NativeI)Dot::template add<lane.value>((int32x4_t)sum, weights, x[r]);
          });
        });
        w += kInt8StepBytes;
      });
    }
  }
};

// The numbers of rows of a chain are AVX2's, and with i8mm those of whole blocks; they were not measured on ARM.

#if !defined(__ARM_FEATURE_MATMUL_INT8)
using FourBitDot = SignedDot;

constexpr DenseLinears neon_linears() { return dense_linears<DotProducts<FlippedDot>>({56, 56, 14, 7}, 0); }
#else

// ---- products of matrices: eight k of two columns by eight k of two rows.  A block, of an even number of rows, has
// for each group: -128 * sum(q) [R] i32, scale [R] f32, and q [R / 2][8][2][8] s8.

constexpr int kMatrixRows = 8, kMatrixColumns = 8;
constexpr int kMatrixRowGroup = 4 + 4 + kGroup;

struct MatrixBlock {
  uint8_t* group;
  int rows;  // with one more where their number is odd: of that one nothing is stored, and nothing is read
  static MatrixBlock of(void* block, int rows) { return {(uint8_t*)block, rows + rows % 2}; }
  static void next(MatrixBlock& block) { block.group += block.rows * kMatrixRowGroup; }
};

static void store_matrix_group(const QuantizedGroup<1>& from, int row, const MatrixBlock& block) {
  const int32_t correction = correction_of(sum_of(from, 0));
  memcpy(block.group + 4 * row, &correction, 4);
  memcpy(block.group + 4 * (block.rows + row), from.scale, 4);
  int8_t q[kGroup];
  for (int i = 0; i < 4; ++i) store_low_bytes(q + kLanes * i, from.q[i]);
  uint8_t* to = block.group + 8 * block.rows + 2 * kGroup * (row / 2) + 8 * (row % 2);
  for (int i = 0; i < kGroup; i += 8) memcpy(to + 2 * i, q + i, 8);
}

static void prepare_matrices(const float* x, int k, int row, int rows, void* block) {
  float padded[kGroup];
  MatrixBlock to = MatrixBlock::of(block, rows);
  for (int g = 0; g * kGroup < k; ++g, MatrixBlock::next(to)) {
    store_matrix_group(quantize_group<1>(group_of(x, k, g, padded)), row, to);
  }
}

static void prepare_matrix_values(const int8_t* q, int row, int rows, void* block) {
  store_matrix_group(group_of_values(q), row, MatrixBlock::of(block, rows));
}

// Of P pairs of rows and kMatrixColumns; each {column 0 row 0, column 0 row 1, column 1 row 0, column 1 row 1}.
template <int P>
struct MatrixSums {
  int32x4_t of[P][kMatrixColumns / 2];

  // Both columns begin with their rows' corrections.
  CP_INLINE void start(MatrixSums& sums, const uint8_t* corrections) {
    unrolled<P>([&](int p) CP_LAMBDA {
      const int32x2_t two = vld1_s32((const int32_t*)corrections + 2 * p);
      unrolled<kMatrixColumns / 2>([&](int j) CP_LAMBDA { sums.of[p][j] = vcombine_s32(two, two); });
    });
  }

  // Eight k of the columns from w on.
  CP_INLINE void add(MatrixSums& sums, const uint8_t* w, const uint8_t* q) {
    uint8x16_t columns[kMatrixColumns / 2];
    unrolled<kMatrixColumns / 4>([&](int four) CP_LAMBDA {
      const uint32x4_t first = vld1q_u32((const uint32_t*)(w + 16 * four));
      const uint32x4_t second = vld1q_u32((const uint32_t*)(w + kInt8StepBytes + 16 * four));
      columns[2 * four] = vreinterpretq_u8_u32(vzip1q_u32(first, second));
      columns[2 * four + 1] = vreinterpretq_u8_u32(vzip2q_u32(first, second));
    });
    unrolled<P>([&](int p) CP_LAMBDA {
      const int8x16_t rows = vld1q_s8((const int8_t*)q + 2 * kGroup * p);
      unrolled<kMatrixColumns / 2>([&](int j) CP_LAMBDA {
        sums.of[p][j] = vusmmlaq_s32(sums.of[p][j], columns[j], rows);
      });
    });
  }

  // out [2 P][32], of which these columns, += each row's sums times its scale.
  CP_INLINE void finish(const MatrixSums& sums, const float* scales, float* out) {
    unrolled<P>([&](int p) CP_LAMBDA {
      unrolled<kMatrixColumns / 4>([&](int four) CP_LAMBDA {
        const int32x4_t left = sums.of[p][2 * four], right = sums.of[p][2 * four + 1];
        float* to = out + 2 * kPanel * p + 4 * four;
        add_scaled(vuzp1q_s32(left, right), scales[2 * p], to);
        add_scaled(vuzp2q_s32(left, right), scales[2 * p + 1], to + kPanel);
      });
    });
  }

 private:
  CP_INLINE void add_scaled(int32x4_t sums, float scale, float* out) {
    vst1q_f32(out, vfmaq_n_f32(vld1q_f32(out), vcvtq_f32_s32(sums), scale));
  }
};

template <int P>
static void multiply_matrices(const uint8_t* w, const uint8_t* x, int groups, float* out, Fetch ahead) {
  constexpr int kRows = 2 * P, kStepBytes = 8 * kMatrixColumns;
  const int step = fetch_step(ahead, kStepBytes);
  for (int i = 0; i < kRows * kPanel; i += kLanes) store(out + i, zero());
  for (int g = 0; g < groups; ++g, w += kPanel * kGroup, x += kRows * kMatrixRowGroup) {
    for (int c = 0; c < kPanel; c += kMatrixColumns) {
      MatrixSums<P> sums;
      MatrixSums<P>::start(sums, x);
#pragma GCC unroll 1
      for (int i = 0; i < kGroup / 8; ++i) {
        fetch(ahead, step, kStepBytes);
        MatrixSums<P>::add(sums, w + 2 * kInt8StepBytes * i + 4 * c, x + 8 * kRows + 16 * i);
      }
      MatrixSums<P>::finish(sums, (const float*)x + kRows, out + c);
    }
  }
}

static void multiply_by_matrices(int rows, const void* panel, const void* block, int groups, float* sums, Fetch ahead) {
  unrolled<kMatrixRows / 2>([&](auto i) CP_LAMBDA {
    constexpr int P = i.value + 1;
    if ((rows + 1) / 2 == P) multiply_matrices<P>((const uint8_t*)panel, (const uint8_t*)block, groups, sums, ahead);
  });
}

using FourBitDot = MixedDot;

// A single row would use half of each product, so it goes by dot products.
constexpr DenseLinears neon_linears() {
  DenseLinears linears = dense_linears<DotProducts<MixedDot>>({56, 56, 16, kMatrixRows}, 0);
  LinearKernels& int8 = linears.kinds[(int)Kind::int8];
  int8.many_from = 2;
  int8.many = {kMatrixRows,           kMatrixRowGroup, prepare_matrices, multiply_by_matrices,
               prepare_matrix_values, 2};
  return linears;
}
#endif

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
