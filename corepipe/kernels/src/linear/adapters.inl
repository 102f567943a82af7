// Products with an adapter's matrices, by multiply-adds in fp32.  Compiled once for each ISA.
#pragma once

#include "linear/adapter_table.h"
#include "linear/linear.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

// Thirty-two elements, as two vectors.
struct Halves {
  f32x16 low, high;
};

struct Bf16Adapter {
  static constexpr int bytes = 2;
  CP_INLINE Halves load32(const uint8_t* at) {
    const i32x16 words = load((const int32_t*)at);
    i32x16 low;
    CP_PARTS(low.v[p] = words.v[p] << 16);
    return {as_f32(low), as_f32(words & broadcast_i32((int32_t)0xffff0000u))};
  }
};

struct Fp32Adapter {
  static constexpr int bytes = 4;
  CP_INLINE Halves load32(const uint8_t* at) {
    return {load((const float*)at), load((const float*)at + kLanes)};
  }
};

// R rows times J rows of a, of a tile of so many.  Lane i adds elements i, i + 16, i + 32 ... in this order; then the
// lanes are added up.
template <class Weights, int R, int J>
CP_INLINE void shrink_tile(const uint8_t* a, int tile, int k, const float* const* x, float* const* h, int j,
                           const uint8_t* next) {
  constexpr int kBytes = kAdapterStep * Weights::bytes;
  const int full = k / kAdapterStep, tail = k % kAdapterStep;
  f32x16 sums[R][J];
  unrolled<R>([&](int r) CP_LAMBDA { unrolled<J>([&](int i) CP_LAMBDA { sums[r][i] = zero(); }); });
  const auto add = [&](const float* const* from, int offset) CP_LAMBDA {
    for (int i = 0; i < J * kBytes; i += 64) __builtin_prefetch(next + i);
    next += tile * kBytes;
    unrolled<J>([&](int i) CP_LAMBDA {
      const Halves w = Weights::load32(a + i * kBytes);
      unrolled<R>([&](int r) CP_LAMBDA {
        sums[r][i] = fma(w.low, load(from[r] + offset), sums[r][i]);
        sums[r][i] = fma(w.high, load(from[r] + offset + kLanes), sums[r][i]);
      });
    });
    a += tile * kBytes;
  };
  for (int g = 0; g < full; ++g) add(x, g * kAdapterStep);
  if (tail != 0) {
    float padded[R][kAdapterStep] = {};
    const float* rows[R];
    for (int r = 0; r < R; ++r) {
      for (int i = 0; i < tail; ++i) padded[r][i] = x[r][full * kAdapterStep + i];
      rows[r] = padded[r];
    }
    add(rows, 0);
  }
  unrolled<R>([&](int r) CP_LAMBDA {
    unrolled<J>([&](int i) CP_LAMBDA { h[r][j + i] = reduce_add(sums[r][i]); });
  });
}

// As many sums at a time as registers hold, and as hide each other's latency.
template <class Weights, int R>
static void shrink_rows(const AdapterMatrices& m, const float* const* x, bool round, float* const* h,
                        const uint8_t* next) {
  constexpr int kSums = kParts == 1 ? 16 : 8 / kParts;
  constexpr int kMost = kSums / R < 1 ? 1 : kSums / R > kAdapterTile ? kAdapterTile : kSums / R;
  constexpr int kBytes = kAdapterStep * Weights::bytes;
  const int steps = (m.k + kAdapterStep - 1) / kAdapterStep;
  for (int first = 0; first < m.rank; first += kAdapterTile) {
    const int tile = m.rank - first < kAdapterTile ? m.rank - first : kAdapterTile;
    const int64_t at = int64_t{first} * steps * kBytes;
    int j = 0;
    const auto multiply = [&](auto width) CP_LAMBDA {
      const int64_t from = at + j * kBytes;
      shrink_tile<Weights, R, width.value>(m.a + from, tile, m.k, x, h, first + j, next + from);
      j += width.value;
    };
    while (j + kMost <= tile) multiply(Index<kMost>{});
    while (j < tile) multiply(Index<1>{});
  }
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < m.rank; j += kLanes) {
      store(h[r] + j, round_if(round, load(h[r] + j) * broadcast(m.scale)));
    }
  }
}

template <class Weights>
static void shrink_as(const AdapterMatrices& m, const float* const* x, int rows, bool round, float* const* h,
                      const uint8_t* next) {
  unrolled<kAdapterRows>([&](auto r) CP_LAMBDA {
    if (rows == r.value + 1) shrink_rows<Weights, r.value + 1>(m, x, round, h, next);
  });
}

static void shrink(const AdapterMatrices& m, const float* const* x, int rows, bool round, float* const* h,
                   const uint8_t* next) {
  m.is_bf16 ? shrink_as<Bf16Adapter>(m, x, rows, round, h, next) : shrink_as<Fp32Adapter>(m, x, rows, round, h, next);
}

constexpr int kExpandSums = 4;

// Sum number j % 4 takes h[j] b[j], in order of j; then the first and third, and the second and fourth are added up, and
// these to each other and to the panel's.
template <class Weights, int R>
CP_INLINE void expand_rows(const AdapterMatrices& m, int panel, const float* const* h, float* const* out) {
  constexpr int kRowBytes = kAdapterStep * Weights::bytes;
  const uint8_t* b = m.b + int64_t{panel} * m.rank * kRowBytes;
  const uint8_t* next = b + m.rank * kRowBytes;  // comes after it, but for the last
  for (int at = 0; at < m.rank * kRowBytes; at += 64) __builtin_prefetch(next + at);
  unrolled<2>([&](int half) CP_LAMBDA {
    f32x16 sums[R][kExpandSums];
    unrolled<R>([&](int r) CP_LAMBDA { unrolled<kExpandSums>([&](int s) CP_LAMBDA { sums[r][s] = zero(); }); });
    const auto add = [&](int j, int s) CP_LAMBDA {
      const Halves w = Weights::load32(b + j * kRowBytes);
      const f32x16 column = half == 0 ? w.low : w.high;
      unrolled<R>([&](int r) CP_LAMBDA { sums[r][s] = fma(column, broadcast(h[r][j]), sums[r][s]); });
    };
    int j = 0;
    for (; j + kExpandSums <= m.rank; j += kExpandSums) {
      unrolled<kExpandSums>([&](int s) CP_LAMBDA { add(j + s, s); });
    }
    unrolled<kExpandSums - 1>([&](int s) CP_LAMBDA {
      if (j + s < m.rank) add(j + s, s);
    });
    unrolled<R>([&](int r) CP_LAMBDA {
      float* to = out[r] + half * kLanes;
      store(to, load(to) + ((sums[r][0] + sums[r][2]) + (sums[r][1] + sums[r][3])));
    });
  });
}

template <class Weights>
static void expand_as(const AdapterMatrices& m, int panel, const float* const* h, int rows, float* const* out) {
  if (kParts == 1) {  // more sums fit into no fewer registers
    unrolled<kAdapterRows>([&](auto r) CP_LAMBDA {
      if (rows == r.value + 1) expand_rows<Weights, r.value + 1>(m, panel, h, out);
    });
  } else {
    for (int r = 0; r < rows; ++r) expand_rows<Weights, 1>(m, panel, h + r, out + r);
  }
}

static void expand(const AdapterMatrices& m, int panel, const float* const* h, int rows, float* const* sums) {
  m.is_bf16 ? expand_as<Bf16Adapter>(m, panel, h, rows, sums) : expand_as<Fp32Adapter>(m, panel, h, rows, sums);
}

static void scale_sums(float* sums, int rows, int n, const float* scale, const float* bias) {
  for (int at = 0; at < n; at += kLanes) {
    const Columns columns = Columns::of(scale, bias, at, n - at < kLanes ? n - at : kLanes);
    for (int r = 0; r < rows; ++r) {
      float* to = sums + r * kPanel + at;
      store(to, Columns::apply(columns, load(to), false));
    }
  }
}

constexpr AdapterTable kAdapters = {shrink, expand, scale_sums};

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
