// Ops on single rows.
#pragma once

#include "rows/functions.inl"
#include "rows/row_table.h"
#include "isa/simd.h"

namespace corepipe {
namespace COREPIPE_SIMD {

// Calls body(at, count) for each 16 elements of n.
template <class Body>
CP_INLINE void for_lanes(int n, Body&& body) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
  if (i < n) body(i, n - i);
}

CP_INLINE f32x16 load_part(const float* x, int n) { return n == kLanes ? load(x) : load_n(x, n); }

CP_INLINE void store_part(float* x, f32x16 a, int n, bool round) {
  if (round) a = round_bf16(a);
  if (n == kLanes) {
    store(x, a);
  } else {
    store_n(x, a, n);
  }
}

static void rope_row(const float* x, float* out, int head_dim, const float* cos, const float* sin, int half,
                     bool round) {
  for_lanes(half, [&](int i, int n) {
    const f32x16 a = load_part(x + i, n), b = load_part(x + half + i, n);
    const f32x16 c = load_part(cos + i, n), s = load_part(sin + i, n);
    store_part(out + i, a * c - b * s, n, round);
    store_part(out + half + i, b * c + a * s, n, round);
  });
  for_lanes(head_dim - 2 * half, [&](int i, int n) {
    store_part(out + 2 * half + i, load_part(x + 2 * half + i, n), n, round);
  });
}

static void add_row(const float* a, const float* b, float* out, int n, bool round) {
  for_lanes(n, [&](int i, int count) {
    store_part(out + i, load_part(a + i, count) + load_part(b + i, count), count, round);
  });
}

static void glu_row(Function function, const float* gate, const float* up, float* out, int n, bool round) {
  with_function(function, [&](auto known) {
    for_lanes(n, [&](int i, int count) {
      const f32x16 y = gated_product<known.value>(load_part(gate + i, count), load_part(up + i, count));
      store_part(out + i, y, count, round);
    });
  });
}

static void activate_row(Function function, const float* x, float* out, int n, bool round) {
  with_function(function, [&](auto known) {
    for_lanes(n, [&](int i, int count) {
      store_part(out + i, apply<known.value>(load_part(x + i, count)), count, round);
    });
  });
}

static void scale_row(const float* x, float factor, float* out, int n, bool round) {
  for_lanes(n, [&](int i, int count) {
    store_part(out + i, load_part(x + i, count) * broadcast(factor), count, round);
  });
}

static void round_row(const float* x, float* out, int n) {
  for_lanes(n, [&](int i, int count) { store_part(out + i, load_part(x + i, count), count, true); });
}

CP_INLINE f32x16 load_bf16_part(const uint16_t* x, int n) {
  if (n == kLanes) return load_bf16(x);
  uint16_t padded[kLanes] = {};
  memcpy(padded, x, (size_t)n * sizeof *x);
  return load_bf16(padded);
}

static void widen_row(const uint16_t* bf16, float* out, int n) {
  for_lanes(n, [&](int i, int count) { store_part(out + i, load_bf16_part(bf16 + i, count), count, false); });
}

static void add_stored_row(const float* x, const void* stored, bool is_bf16, float* out, int n, bool round) {
  for_lanes(n, [&](int i, int count) {
    f32x16 a;
    if (is_bf16) {
      a = load_bf16_part((const uint16_t*)stored + i, count);
    } else {
      a = load_part((const float*)stored + i, count);
      if (round) a = round_bf16(a);
    }
    store_part(out + i, load_part(x + i, count) + a, count, round);
  });
}

// ---- norms

static void rms_norm_row(const float* x, const float* gain, float eps, int n, bool round, float* out) {
  f32x16 squares[2] = {zero(), zero()};
  int i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const f32x16 a = load(x + i), b = load(x + i + kLanes);
    squares[0] = fma(a, a, squares[0]);
    squares[1] = fma(b, b, squares[1]);
  }
  for (; i < n; i += kLanes) {
    const f32x16 a = load_n(x + i, n - i < kLanes ? n - i : kLanes);
    squares[0] = fma(a, a, squares[0]);
  }
  const float mean = reduce_add(squares[0] + squares[1]) / (float)n;
  const f32x16 factor = broadcast(1.0f / __builtin_sqrtf(mean + eps));
  for (i = 0; i < n; i += kLanes) {
    const int count = n - i < kLanes ? n - i : kLanes;
    const f32x16 y = load_part(x + i, count) * factor * load_part(gain + i, count);
    store_part(out + i, y, count, round);
  }
}

// body(at, x - mean) for each 16 elements; 0 beyond n.
template <class Body>
CP_INLINE void for_centred(const float* x, int n, float mean, Body&& body) {
  for_lanes(n, [&](int i, int count) {
    const f32x16 centred = load_part(x + i, count) - broadcast(mean);
    body(i, count, count == kLanes ? centred : select(lane_index() < broadcast_i32(count), centred, zero()));
  });
}

static void layer_norm_row(const float* x, const float* gain, const float* bias, float eps, int n, bool round,
                           float* out) {
  f32x16 sum = zero(), squares = zero();
  for_lanes(n, [&](int i, int count) { sum = sum + load_part(x + i, count); });
  const float mean = reduce_add(sum) / (float)n;
  for_centred(x, n, mean, [&](int, int, f32x16 centred) { squares = fma(centred, centred, squares); });
  const f32x16 factor = broadcast(1.0f / __builtin_sqrtf(reduce_add(squares) / (float)n + eps));
  for_centred(x, n, mean, [&](int i, int count, f32x16 centred) {
    f32x16 y = centred * factor;
    if (gain != nullptr) y = y * load_part(gain + i, count);
    if (bias != nullptr) y = y + load_part(bias + i, count);
    store_part(out + i, y, count, round);
  });
}

static void unit_row(const float* x, float eps, int n, bool round, float* out) {
  f32x16 squares = zero();
  for_lanes(n, [&](int i, int count) {
    const f32x16 a = load_part(x + i, count);
    squares = fma(a, a, squares);
  });
  const float length = __builtin_sqrtf(reduce_add(squares));
  scale_row(x, 1.0f / (length > eps ? length : eps), out, n, round);
}

static void norm_row(const Norm& norm, const float* x, int n, bool round, float* out) {
  if (norm.kind == NormKind::layer) {
    layer_norm_row(x, norm.gain, norm.bias, norm.eps, n, round, out);
  } else if (norm.kind == NormKind::unit) {
    unit_row(x, norm.eps, n, round, out);
  } else {
    rms_norm_row(x, norm.gain, norm.eps, n, round, out);
  }
}

// ---- pooling

// fold(sum so far, the row's elements, its number) of 16 elements, row after row; then by the divisor.
template <class Fold>
CP_INLINE void fold_rows(const float* x, size_t stride, int rows, float* out, int n, float divisor, bool round,
                         Fold&& fold) {
  for_lanes(n, [&](int i, int count) {
    f32x16 sum = fold(zero(), load_part(x + i, count), 0);
    for (int r = 1; r < rows; ++r) sum = fold(sum, load_part(x + r * stride + i, count), r);
    store_part(out + i, sum / broadcast(divisor), count, round);
  });
}

static void pool_rows(Pooling pooling, const float* x, size_t stride, int rows, float* out, int n, bool round) {
  const auto sum = [](f32x16 a, f32x16 b, int) CP_LAMBDA { return a + b; };
  const auto weighed = [](f32x16 a, f32x16 b, int r) CP_LAMBDA { return a + b * broadcast((float)(r + 1)); };
  const auto largest = [](f32x16 a, f32x16 b, int r) CP_LAMBDA { return r == 0 ? b : max(b, a); };
  const float count = (float)rows;
  switch (pooling) {
    case Pooling::first: return fold_rows(x, stride, 1, out, n, 1.0f, round, sum);
    case Pooling::second: return fold_rows(rows > 1 ? x + stride : x, stride, 1, out, n, 1.0f, round, sum);
    case Pooling::last: return fold_rows(x + (rows - 1) * stride, stride, 1, out, n, 1.0f, round, sum);
    case Pooling::mean: return fold_rows(x, stride, rows, out, n, count, round, sum);
    case Pooling::max: return fold_rows(x, stride, rows, out, n, 1.0f, round, largest);
    case Pooling::mean_sqrt_len: return fold_rows(x, stride, rows, out, n, __builtin_sqrtf(count), round, sum);
    case Pooling::weighted_mean: {
      const float weights = count * (count + 1.0f) / 2.0f;
      return fold_rows(x, stride, rows, out, n, weights, round, weighed);
    }
  }
}

// ---- experts

static void softmax_row(const float* x, float* out, int n) {
  float most = x[0];
  for (int i = 1; i < n; ++i) most = x[i] > most ? x[i] : most;
  f32x16 sum = zero();
  for_lanes(n, [&](int i, int count) {
    const f32x16 e = exp(load_part(x + i, count) - broadcast(most));
    store_part(out + i, e, count, false);
    sum = sum + (count == kLanes ? e : select(lane_index() < broadcast_i32(count), e, zero()));
  });
  const f32x16 total = broadcast(reduce_add(sum));
  for_lanes(n, [&](int i, int count) { store_part(out + i, load_part(out + i, count) / total, count, false); });
}

static void weighted_sum_row(const float* rows, int64_t stride, const int32_t* which, const float* weights, int count,
                             float* out, int n, bool round) {
  for_lanes(n, [&](int i, int lanes) {
    f32x16 sum = load_part(rows + which[0] * stride + i, lanes) * broadcast(weights[0]);
    for (int r = 1; r < count; ++r) {
      sum = fma(load_part(rows + which[r] * stride + i, lanes), broadcast(weights[r]), sum);
    }
    store_part(out + i, sum, lanes, round);
  });
}

constexpr RowTable kRows = {norm_row,  rope_row,  add_row,   add_stored_row, activate_row, glu_row,
                            scale_row, round_row, widen_row, pool_rows,      softmax_row,  weighted_sum_row};

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
