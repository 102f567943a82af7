// Products for AVX2 and for any other vector ISA, on the vectors of simd.h.  A block of R rows times a
// panel of 32 columns keeps its accumulators in registers; each output has one chain over k.
#pragma once

#include "linear/linear_float.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

// A block has as many rows as sums fit into registers: of AVX2's 16 registers 12, of NEON's 32 24, with 32 columns of
// 3 rows.  In int8 it may have twice as many, which are multiplied with 16 columns at a time.
#if defined(__AVX2__) || defined(__aarch64__)
constexpr int kBlockRows = 3, kInt8BlockRows = 6;
#else
constexpr int kBlockRows = 1, kInt8BlockRows = 1;
#endif

// ---- int8.  A block has for each group: -128 * sum(q) [R] i32, scale [R] f32, and q as the products take it; 0
// instead of that sum where products take weights without their offset.

constexpr int kInt8StepBytes = 128;  // 32 columns x 4 k

// Per 32-bit lane: the product of the low s16 plus that of the high s16.
CP_INLINE i32x16 multiply_add_pairs(i32x16 a, i32x16 b) {
  i32x16 r;
#if defined(__AVX2__)
  CP_PARTS(r.v[p] = (NativeI)_mm256_madd_epi16((__m256i)a.v[p], (__m256i)b.v[p]));
#elif defined(__SSE2__)
  CP_PARTS(r.v[p] = (NativeI)_mm_madd_epi16((__m128i)a.v[p], (__m128i)b.v[p]));
#elif defined(__aarch64__)
  CP_PARTS(const int16x8_t x = (int16x8_t)a.v[p]; const int16x8_t y = (int16x8_t)b.v[p];
           r.v[p] = (NativeI)vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
#else
  CP_PARTS(r.v[p] = ((a.v[p] << 16) >> 16) * ((b.v[p] << 16) >> 16) + (a.v[p] >> 16) * (b.v[p] >> 16));
#endif
  return r;
}

// sum += them.  Where registers are few the order of the additions is kept: GCC adds two products first, and spills.
CP_INLINE void add_products(i32x16& sum, i32x16 a, i32x16 b) {
#if defined(__AVX2__)
  const i32x16 products = multiply_add_pairs(a, b);
  CP_PARTS(asm("vpaddd %1, %0, %0" : "+x"(sum.v[p]) : "x"(products.v[p])));
#else
  sum = sum + multiply_add_pairs(a, b);
#endif
}

// The lower or the upper byte of each 16-bit lane.
template <int kUpper>
CP_INLINE i32x16 half_of_bytes(const uint8_t* w) {
  typedef uint16_t NativeH __attribute__((vector_size(kNativeBytes)));
  const i32x16 bytes = load((const int32_t*)w);
  if (!kUpper) return bytes & broadcast_i32(0x00ff00ff);
  i32x16 r;
  CP_PARTS(r.v[p] = (NativeI)((NativeH)bytes.v[p] >> 8));
  return r;
}

CP_INLINE i32x16 broadcast_word(const void* x) {
  int32_t word;
  memcpy(&word, x, sizeof word);
  return broadcast_i32(word);
}

// {q0, q2, q1, q3} of each four q.
CP_INLINE void store_pairs(int16_t* to, i32x16 q) {
#if defined(__AVX2__)
  __m256i words[2];
  for (int p = 0; p < 2; ++p) {
    const __m256i upper = _mm256_slli_epi32(_mm256_shuffle_epi32((__m256i)q.v[p], 0xee), 16);
    words[p] = _mm256_blend_epi16((__m256i)q.v[p], upper, 0xaa);  // in the lower half of each 128 bits
  }
  const __m256i joined = _mm256_permute4x64_epi64(_mm256_unpacklo_epi64(words[0], words[1]), 0xd8);
  _mm256_storeu_si256((__m256i*)to, joined);
#else
  int32_t lanes[kLanes];
  store(lanes, q);
  for (int i = 0; i < kLanes; i += 4) {
    to[i] = (int16_t)lanes[i];
    to[i + 1] = (int16_t)lanes[i + 2];
    to[i + 2] = (int16_t)lanes[i + 1];
    to[i + 3] = (int16_t)lanes[i + 3];
  }
#endif
}

// By s16 products of pairs, added in s32, so that nothing saturates: of the four k in a 32-bit word, bytes 0 and 2
// meet, then 1 and 3.  q [R][16] of {q0, q2, q1, q3} s16.
struct PairProducts {
  static constexpr int kValueBytes = 2 * kGroup;  // of a row's group
  static constexpr bool kKeepsOffset = true;
  static constexpr bool kTakesPacked = false;  // of four bits

  CP_INLINE void store_values(const i32x16 (&q)[4], uint8_t* to) {
    for (int i = 0; i < 4; ++i) store_pairs((int16_t*)to + kLanes * i, q[i]);
  }

  // acc [R][C] += the products of `count` of k with C halves of a panel from w on.
  template <int R, int C>
  CP_INLINE void add(i32x16 (&acc)[R][C], const uint8_t* w, const uint8_t* q, int count, Fetch& ahead, int step) {
    for (int i = 0; i < count / 4; ++i, w += kInt8StepBytes, q += 8) {
      fetch(ahead, step, 64 * C);
      unrolled<2>([&](auto odd) CP_LAMBDA {
        i32x16 weights[C];
        unrolled<C>([&](int c) CP_LAMBDA { weights[c] = half_of_bytes<odd.value>(w + 64 * c); });
        unrolled<R>([&](int r) CP_LAMBDA {
          const i32x16 v = broadcast_word(q + kValueBytes * r + 4 * odd.value);
          unrolled<C>([&](int c) CP_LAMBDA { add_products(acc[r][c], weights[c], v); });
        });
      });
    }
  }
};

#if defined(__AVX2__)
// The low bytes of 32 lanes, in order.
CP_INLINE void store_bytes(uint8_t* to, i32x16 a, i32x16 b) {
  const i32x16 low = broadcast_i32(0xff), x = a & low, y = b & low;
  const __m256i words[2] = {_mm256_packus_epi32((__m256i)x.v[0], (__m256i)x.v[1]),
                            _mm256_packus_epi32((__m256i)y.v[0], (__m256i)y.v[1])};
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing goes by halves of a register
  const __m256i bytes = _mm256_packus_epi16(words[0], words[1]);
  _mm256_storeu_si256((__m256i*)to, _mm256_permutevar8x32_epi32(bytes, order));
}

// q [64] s8.
CP_INLINE void store_group_bytes(const i32x16 (&q)[4], uint8_t* to) {
  for (int i = 0; i < 4; i += 2) store_bytes(to + kLanes * i, q[i], q[i + 1]);
}

// Four k of 16 C columns of a panel of four bits, unpacked.
struct UnpackedNibbles {
  static constexpr int kStepBytes = kInt8StepBytes;
  template <int C>
  CP_INLINE void take(const uint8_t* w, i32x16 (&to)[C]) {
    unrolled<C>([&](int c) CP_LAMBDA { to[c] = load((const int32_t*)(w + 64 * c)); });
  }
};

// The same from the panel as it is packed, from the half `kFirst` on.
template <int kFirst>
struct PackedNibbles {
  static constexpr int kStepBytes = kInt8StepBytes / 2;
  template <int C>
  CP_INLINE void take(const uint8_t* w, i32x16 (&to)[C]) {
    const i32x16 both = load((const int32_t*)w);
    unrolled<C>([&](int c) CP_LAMBDA {
      i32x16 half = both;
      if (kFirst + c == 1) CP_PARTS(half.v[p] = both.v[p] >> 4);
      to[c] = half & broadcast_i32(0x0f0f0f0f);
    });
  }
};

// Products of bytes, for weights below 16: a pair of products is at most 2 * 15 * 127, and s16 holds the sum of eight
// pairs. q [R][64] s8.
struct NibbleProducts {
  static constexpr int kValueBytes = kGroup;
  static constexpr bool kKeepsOffset = true;
  static constexpr bool kTakesPacked = true;

  CP_INLINE void store_values(const i32x16 (&q)[4], uint8_t* to) { store_group_bytes(q, to); }

  template <int R, int C>
  CP_INLINE void add(i32x16 (&acc)[R][C], const uint8_t* w, const uint8_t* q, int count, Fetch&, int) {
    add_of<UnpackedNibbles>(acc, w, q, count);
  }

  // The same with numbers as they are packed, of the halves from `kFirst` on.
  template <int kFirst, int R, int C>
  CP_INLINE void add_packed(i32x16 (&acc)[R][C], const uint8_t* w, const uint8_t* q, int count) {
    add_of<PackedNibbles<kFirst>>(acc, w, q, count);
  }

 private:
  static constexpr int kWords = 8, kInlineSums = 4;

  template <class Weights, int R, int C>
  CP_INLINE void add_of(i32x16 (&acc)[R][C], const uint8_t* w, const uint8_t* q, int count) {
    for (int k = 0; k < count; k += 4 * kWords, w += kWords * Weights::kStepBytes, q += 4 * kWords) {
      i32x16 sums[R][C];
      if constexpr (R * C <= kInlineSums) {
        unrolled<R * C>([&](int i) CP_LAMBDA { sums[i / C][i % C] = broadcast_i32(0); });
        unrolled<kWords>([&](int i) CP_LAMBDA { add_word<Weights>(sums, w + Weights::kStepBytes * i, q + 4 * i); });
      } else {
        sum_words<Weights>(w, q, sums);
      }
      unrolled<R * C>([&](int i) CP_LAMBDA {
        add_products(acc[i / C][i % C], sums[i / C][i % C], broadcast_i32(0x00010001));
      });
    }
  }

  template <class Weights, int R, int C>
  CP_INLINE void add_word(i32x16 (&sums)[R][C], const uint8_t* w, const uint8_t* q) {
    i32x16 weights[C];
    Weights::take(w, weights);
    unrolled<R>([&](int r) CP_LAMBDA {
      const i32x16 v = broadcast_word(q + kValueBytes * r);
      unrolled<C>([&](int c) CP_LAMBDA { add_bytes(sums[r][c], weights[c], v); });
    });
  }

  // Not inlined, so that the caller's values take no registers from the sums.
  template <class Weights, int R, int C>
  __attribute__((noinline)) static void sum_words(const uint8_t* w, const uint8_t* q, i32x16 (&to)[R][C]) {
    i32x16 sums[R][C] = {};
#pragma GCC unroll 1
    for (int i = 0; i < kWords; ++i, w += Weights::kStepBytes, q += 4) add_word<Weights>(sums, w, q);
    unrolled<R * C>([&](int i) CP_LAMBDA { to[i / C][i % C] = sums[i / C][i % C]; });
  }

  CP_INLINE void add_bytes(i32x16& sum, i32x16 weights, i32x16 x) {
    CP_PARTS(const __m256i products = _mm256_maddubs_epi16((__m256i)weights.v[p], (__m256i)x.v[p]);
             asm("vpaddw %1, %0, %0" : "+x"(sum.v[p]) : "x"(products)));
  }
};
using FourBitProducts = NibbleProducts;
#else
using FourBitProducts = PairProducts;
#endif

#if defined(__AVX2__)
// By AVX-VNNI, as bytes: q [R][64] s8.
struct VnniProducts {
  static constexpr int kValueBytes = kGroup;
  static constexpr bool kKeepsOffset = true;
  static constexpr bool kTakesPacked = false;

  CP_INLINE void store_values(const i32x16 (&q)[4], uint8_t* to) { store_group_bytes(q, to); }

  template <int R, int C>
  CP_INLINE void add(i32x16 (&acc)[R][C], const uint8_t* w, const uint8_t* q, int count, Fetch& ahead, int step) {
    for (int i = 0; i < count / 4; ++i, w += kInt8StepBytes, q += 4) {
      fetch(ahead, step, 64 * C);
      i32x16 weights[C];
      unrolled<C>([&](int c) CP_LAMBDA { weights[c] = load((const int32_t*)(w + 64 * c)); });
      unrolled<R>([&](int r) CP_LAMBDA {
        const i32x16 v = broadcast_word(q + kValueBytes * r);
        unrolled<C>([&](int c) CP_LAMBDA { dot_u8s8(acc[r][c], weights[c], v); });
      });
    }
  }

 private:
  // Inline assembly, which takes no flag of the compiler's.  Without {vex} it would be AVX-512's instruction.
  CP_INLINE void dot_u8s8(i32x16& sum, i32x16 weights, i32x16 x) {
    CP_PARTS(asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.v[p]) : "x"(weights.v[p]), "x"(x.v[p])));
  }
};
#endif

template <class Products>
constexpr int kInt8RowGroup = 4 + 4 + Products::kValueBytes;

// Puts one row's group among the `rows` of a block's group.
template <class Products>
CP_INLINE void store_int8_group(const QuantizedGroup<1>& from, int row, int rows, uint8_t* group) {
  const int32_t correction = Products::kKeepsOffset ? correction_of(sum_of(from, 0)) : 0;
  memcpy(group + 4 * row, &correction, 4);
  memcpy(group + 4 * (rows + row), from.scale, 4);
  Products::store_values(from.q, group + 8 * rows + Products::kValueBytes * row);
}

template <class Products>
static void prepare_int8(const float* x, int k, int row, int rows, void* block) {
  float padded[kGroup];
  uint8_t* group = (uint8_t*)block;
  for (int g = 0; g * kGroup < k; ++g, group += rows * kInt8RowGroup<Products>) {
    store_int8_group<Products>(quantize_group<1>(group_of(x, k, g, padded)), row, rows, group);
  }
}

template <class Products>
static void prepare_int8_values(const int8_t* q, int row, int rows, void* block) {
  store_int8_group<Products>(group_of_values(q), row, rows, (uint8_t*)block);
}

// acc [R][C] = the words at x, one for each row.
template <int R, int C>
CP_INLINE void start_from(i32x16 (&acc)[R][C], const uint8_t* x) {
  unrolled<R * C>([&](int i) CP_LAMBDA { acc[i / C][i % C] = broadcast_word(x + 4 * (i / C)); });
}

// out [R][32], of which 16 C columns, += `groups` groups of the panel's halves from w on times the rows.
template <class Products, int R, int C>
__attribute__((noinline)) static void multiply_halves(const uint8_t* w, const uint8_t* x, int groups, float* out, Fetch ahead, int step) {
  for (int g = 0; g < groups; ++g, w += kPanel * kGroup, x += R * kInt8RowGroup<Products>) {
    i32x16 acc[R][C];
    start_from(acc, x);
    Products::add(acc, w, x + 8 * R, kGroup, ahead, step);
    unrolled<R * C>([&](auto i) CP_LAMBDA {
      constexpr int r = i.value / C, c = i.value % C;
      const f32x16 scale = as_f32(broadcast_word(x + 4 * (R + r)));
      float* sum = out + kPanel * r + kLanes * c;
      store(sum, fma(to_f32(acc[r][c]), scale, load(sum)));
    });
  }
}

// A panel from memory is read group by group, both halves of each, so that memory is read in order and without a pause;
// a panel that is in the cache already is read half by half.
template <class Products, int R>
static void multiply_int8(const uint8_t* w, const uint8_t* x, int groups, float* out, Fetch ahead) {
  constexpr int kHalves = R > 2 ? 1 : 2;  // the sums of 3 rows and 32 columns would leave too few for the weights
  const int step = fetch_step(ahead, kInt8StepBytes), run = ahead.parts > 1 ? groups : 1;
  unrolled<2 * R>([&](int i) CP_LAMBDA { store(out + kLanes * i, zero()); });
  for (int g = 0; g < groups; g += run, w += run * kPanel * kGroup, x += run * R * kInt8RowGroup<Products>) {
    for (int c = 0; c < 2; c += kHalves) {
      const Fetch part = {ahead.from + 64 * c, ahead.parts};
      multiply_halves<Products, R, kHalves>(w + 64 * c, x, run, out + kLanes * c, part, step);
    }
    ahead.from += run * (kGroup / 4) * step;
  }
}

// ---- choice of R

template <class Products>
struct Int8Product {
  template <int R>
  static constexpr Multiply run = multiply_int8<Products, R>;
};

template <class Products>
constexpr DenseLinears dense_linears(const ChainRows& chain, int unaided_rows) {
  return {
      {
          {{kInt8BlockRows, kInt8RowGroup<Products>, prepare_int8<Products>,
            multiply<kInt8BlockRows, Int8Product<Products>>, prepare_int8_values<Products>}},
          {{kBlockRows, kFloatRowGroup, prepare_float<true>, multiply<kBlockRows, FloatProduct<Int8Weights>>}},
          {{kBlockRows, kFloatRowGroup, prepare_float<true>, multiply<kBlockRows, FloatProduct<Bf16Weights>>}},
          {{kBlockRows, kFloatRowGroup, prepare_float<false>, multiply<kBlockRows, FloatProduct<Fp32Weights>>}},
      },
      chain,
      unaided_rows,
      finish,
  };
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
