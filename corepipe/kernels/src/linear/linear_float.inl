// Products of the float kinds by multiply-adds in fp32, on the vectors of simd.h, in order of k.  A block has for each
// group: [R][64] f32; the weights of two k are widened to fp32 as they come.
#pragma once

#include "linear/linear.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

// Brings in 1 / parts of the `bytes` that a step takes of the panel.
CP_INLINE void fetch(Fetch& ahead, int step, int bytes) {
  constexpr int kIntoL2 = 2;
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(ahead.from + i, 0, kIntoL2);
  ahead.from += step;
}

constexpr int kFloatRowGroup = 4 * kGroup;

struct Pair {
  f32x16 even, odd;  // 16 columns at k and k + 1
};

struct Fp32Weights {
  static constexpr int kStepBytes = 256;  // bytes of 32 columns x 2 k
  CP_INLINE Pair half(const uint8_t* w, int c) {
    return {load((const float*)(w + 64 * c)), load((const float*)(w + 128 + 64 * c))};
  }
};

struct Bf16Weights {
  static constexpr int kStepBytes = 128;
  CP_INLINE Pair half(const uint8_t* w, int c) {
    const i32x16 words = load((const int32_t*)(w + 64 * c));
    i32x16 even;
    CP_PARTS(even.v[p] = words.v[p] << 16);
    return {as_f32(even), as_f32(words & broadcast_i32((int32_t)0xffff0000u))};
  }
};

struct Int8Weights {
  static constexpr int kStepBytes = 64;
  CP_INLINE Pair half(const uint8_t* w, int c) {
    const f32x16 words = load_bf16((const uint16_t*)(w + 32 * c));  // byte 2: even k, byte 3: odd k
    i32x16 even, odd;
    CP_PARTS(even.v[p] = ((NativeI)words.v[p] << 8) >> 24; odd.v[p] = (NativeI)words.v[p] >> 24);
    return {to_f32(even), to_f32(odd)};
  }
};

template <class Weights, int R>
static void multiply_float(const uint8_t* w, const uint8_t* x, int groups, float* out, Fetch ahead) {
  const int step = fetch_step(ahead, Weights::kStepBytes);
  f32x16 sums[R][2];
  unrolled<R>([&](int r) CP_LAMBDA { sums[r][0] = sums[r][1] = zero(); });
  for (int g = 0; g < groups; ++g) {
    for (int i = 0; i < kGroup; i += 2) {
      fetch(ahead, step, Weights::kStepBytes);
      unrolled<2>([&](int c) CP_LAMBDA {
        const Pair pair = Weights::half(w, c);
        unrolled<R>([&](int r) CP_LAMBDA {
          const float* v = (const float*)(x + kFloatRowGroup * r);
          f32x16& sum = sums[r][c];
          sum = fma(pair.even, broadcast(v[0]), sum);
          sum = fma(pair.odd, broadcast(v[1]), sum);
        });
      });
      w += Weights::kStepBytes;
      x += 8;
    }
    x += (R - 1) * kFloatRowGroup;
  }
  unrolled<R>([&](int r) CP_LAMBDA {
    store(out + kPanel * r, sums[r][0]);
    store(out + kPanel * r + kLanes, sums[r][1]);
  });
}

template <class Weights>
struct FloatProduct {
  template <int R>
  static constexpr Multiply run = multiply_float<Weights, R>;
};

template <bool kRound>
static void prepare_float(const float* x, int k, int row, int rows, void* block) {
  float padded[kGroup];
  float* to = (float*)block + kGroup * row;
  for (int g = 0; g * kGroup < k; ++g, to += kGroup * rows) {
    const float* group = group_of(x, k, g, padded);
    for (int i = 0; i < kGroup; i += kLanes) store(to + i, round_if(kRound, load(group + i)));
  }
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
