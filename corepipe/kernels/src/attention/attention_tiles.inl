// Grouped-query attention over a paged cache, for the ISA of the file that includes this.
//
// Order of every sum: q.k over the head's elements; keys in blocks of 64 at absolute positions, with a
// running maximum (online softmax, Milakov & Gimelshein 2018); blocks in segments of 512 positions, each
// from scratch; segments added up in order.  It depends on a row's position and window alone, so a row
// has the same bits however rows, chunks, threads and cache blocks are arranged.  Keys that a row may
// not see are never multiplied: not even a NaN gets through.
//
// Scores, sums and outputs are fp32; probabilities are rounded to the cache's type before they meet the
// values, the denominator adds them unrounded.

#pragma once

#include "attention/attention_keys.inl"
#include "rows/functions.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

constexpr float kMinusInfinity = -__builtin_inff();
constexpr float kLog2E = 1.44269504088896341f;

// 2^x for x <= 0, within 2 ulp; 0 below fp32's normal numbers (and at -inf), NaN for NaN.
CP_INLINE f32x16 exp2_nonpositive(f32x16 x) {
#if defined(__AVX512F__)
  // Intel's scalef takes a hundred times as long where its result is subnormal: hidden keys would make it so.
  const __mmask16 normal = _mm512_cmp_ps_mask((__m512)x.v[0], _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  const __m512 n = _mm512_roundscale_ps((__m512)x.v[0], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const f32x16 r = {{x.v[0] - (NativeF)n}};
#else
  x = select(x < broadcast(-126.0f), broadcast(-127.0f), x);
  const f32x16 magic = broadcast(12582912.0f);  // 1.5 * 2^23: its low mantissa bits hold an integer
  const f32x16 shifted = x + magic;
  const f32x16 r = x - (shifted - magic);
#endif
  f32x16 y = broadcast(1.326472721e-3f);  // minimax of the relative error (9e-8) over [-1/2, 1/2]
  y = fma(y, r, broadcast(9.671512812e-3f));
  y = fma(y, r, broadcast(5.550733745e-2f));
  y = fma(y, r, broadcast(2.402224208e-1f));
  y = fma(y, r, broadcast(6.931469776e-1f));
  y = fma(y, r, broadcast(1.0f));
#if defined(__AVX512F__)
  return {{(NativeF)_mm512_maskz_scalef_ps(normal, (__m512)y.v[0], n)}};
#else
  f32x16 result;
  for (int p = 0; p < kParts; ++p) {
    const NativeI power = ((NativeI)shifted.v[p] - (0x4b400000 - 127)) << 23;
    result.v[p] = y.v[p] * (NativeF)power;
  }
  return result;
#endif
}

// ---- products

// The groups of the next block, which are prefetched into the L2 cache during the products of this one: four vectors of
// lanes a step, in order of addresses, so that the hardware's prefetchers follow.
struct Ahead {
  const char* groups[kKeyBlock / kKeyGroup];
  int count = 0;  // groups not begun
  size_t group_bytes = 0;
  const char* at = nullptr;
  const char* end = nullptr;
};

template <class Cache>
CP_INLINE void fetch(Ahead& ahead) {
  constexpr int kBytes = 4 * Cache::kLaneBytes;
  if (ahead.at >= ahead.end) {
    if (ahead.count == 0) return;
    ahead.at = ahead.groups[--ahead.count];
    ahead.end = ahead.at + ahead.group_bytes;
  }
  for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(ahead.at + i, 0, 2);
  ahead.at += kBytes;
}

// sum += x[r] . lanes, of one step: `lanes_at(v)` is where those of vector v begin.
template <class Cache, int kPass = 0, int kRows, int kVecs, class LanesAt>
CP_INLINE void add_step(f32x16 (&sum)[kRows][kVecs], const typename Cache::Factor* x, size_t stride,
                        LanesAt&& lanes_at) {
  typename Cache::Lanes lanes[kVecs];
#pragma GCC unroll 8
  for (int v = 0; v < kVecs; ++v) lanes[v] = Cache::template load_lanes<kPass>(lanes_at(v));
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const typename Cache::Lanes factor = Cache::template spread<kPass>(x + r * stride);
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) Cache::step(sum[r][v], factor, lanes[v]);
  }
  if constexpr (kPass + 1 < Cache::kPasses) {
    __asm__ volatile("" ::: "memory");  // what the next pass loads would find no free registers before
    add_step<Cache, kPass + 1>(sum, x, stride, lanes_at);
  }
}

// Keeps the compiler from moving arithmetic into or out of the scope of a Cache's Steps, which change a mode of the
// CPU.
template <class Cache, int kRows, int kVecs>
CP_INLINE void pin(f32x16 (&sum)[kRows][kVecs]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) Cache::pin(sum[r][v]);
  }
}

// out [kRows][64] = q . keys, for kVecs groups of keys.
template <class Cache, int kRows, int kVecs>
__attribute__((noinline)) static void score_tile(const typename Cache::Factor* q, int width, const char* const* keys,
                                                 float* out, Ahead& ahead) {
  f32x16 sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) sum[r][v] = zero();
  }
  const int steps = width / Cache::kDepth;
  {
    pin<Cache>(sum);
    [[maybe_unused]] const typename Cache::Steps mode;
    for (int s = 0; s < steps; ++s) {
      fetch<Cache>(ahead);
      const size_t offset = (size_t)s * Cache::kLaneBytes;
      add_step<Cache>(sum, q + s * Cache::kDepth, (size_t)width, [&](int v) CP_LAMBDA { return keys[v] + offset; });
    }
    pin<Cache>(sum);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) store(out + r * kKeyBlock + v * kLanes, sum[r][v]);
  }
}

// sums[r][16 kVecs] = sums * decay[r] + p[r] . values, over steps [first, last) of the block.
template <class Cache, int kRows, int kVecs>
__attribute__((noinline)) static void value_tile(const typename Cache::Factor* p, const char* const* values,
                                                 size_t offset, int first, int last, const float* decay,
                                                 float* sums, size_t stride, Ahead& ahead) {
  f32x16 sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const f32x16 factor = broadcast(decay[r]);
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) sum[r][v] = load(sums + r * stride + v * kLanes) * factor;
  }
  {
    pin<Cache>(sum);
    [[maybe_unused]] const typename Cache::Steps mode;
    for (int s = first; s < last; ++s) {
      fetch<Cache>(ahead);
      const char* row = values[s] + offset;
      const auto lanes_at = [&](int v) CP_LAMBDA { return row + v * Cache::kLaneBytes; };
      add_step<Cache>(sum, p + s * Cache::kDepth, kKeyBlock, lanes_at);
    }
    pin<Cache>(sum);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) store(sums + r * stride + v * kLanes, sum[r][v]);
  }
}

// The tile for `rows` and `vecs`, known only at run time.
template <class Cache, int kRows = Cache::kHeight, int kVecs = Cache::kVecs, class... Args>
CP_INLINE void score(int rows, int vecs, Args&&... args) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return score<Cache, kRows - 1, kVecs>(rows, vecs, args...);
  }
  if constexpr (kVecs > 1) {
    if (vecs < kVecs) return score<Cache, kRows, kVecs - 1>(rows, vecs, args...);
  }
  score_tile<Cache, kRows, kVecs>(args...);
}

template <class Cache, int kRows = Cache::kHeight, int kVecs = Cache::kVecs, class... Args>
CP_INLINE void weigh_values(int rows, int vecs, Args&&... args) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return weigh_values<Cache, kRows - 1, kVecs>(rows, vecs, args...);
  }
  if constexpr (kVecs > 1) {
    if (vecs < kVecs) return weigh_values<Cache, kRows, kVecs - 1>(rows, vecs, args...);
  }
  value_tile<Cache, kRows, kVecs>(args...);
}

// scores [rows][64] of the key groups [begin, end).
template <class Cache>
CP_INLINE void score_block(const typename Cache::Factor* q, int rows, int width, const KeyBlock& block, int begin,
                           int end, float* scores, Ahead& ahead) {
  for (int g = begin; g < end; g += Cache::kVecs) {
    const int vecs = end - g < Cache::kVecs ? end - g : Cache::kVecs;
    score<Cache>(rows, vecs, q, width, block.keys + g, scores + g * kLanes, ahead);
  }
}

// sums [rows][width] = sums * decay + p . values, over the keys of `seen`.
template <class Cache>
CP_INLINE void weigh_block(const typename Cache::Factor* p, int rows, int width, const KeyBlock& block, Span seen,
                           const float* decay, float* sums, size_t stride, Ahead& ahead) {
  const int first = seen.begin / Cache::kDepth, last = (seen.end + Cache::kDepth - 1) / Cache::kDepth;
  const int columns = width / kLanes;
  for (int v = 0; v < columns; v += Cache::kVecs) {
    const int vecs = columns - v < Cache::kVecs ? columns - v : Cache::kVecs;
    const size_t offset = (size_t)v * Cache::kLaneBytes;
    weigh_values<Cache>(rows, vecs, p, block.values, offset, first, last, decay, sums + v * kLanes, stride, ahead);
  }
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe

#if defined(__AMX_BF16__)
#include "attention/attention_amx.inl"
#endif

namespace corepipe {
namespace COREPIPE_SIMD {

// ---- online softmax

CP_INLINE float finite_or_zero(float maximum) { return maximum == kMinusInfinity ? 0.0f : maximum; }

// x of the keys that are seen, else `hidden`.
CP_INLINE f32x16 masked(f32x16 x, int group, Span span, float hidden = kMinusInfinity) {
  const i32x16 key = lane_index() + broadcast_i32(group * kLanes);
  const i32x16 seen = (key > broadcast_i32(span.begin - 1)) & (key < broadcast_i32(span.end));
  return select(seen, x, broadcast(hidden));
}

// Products with keys of int8 [rows][64], of the key groups [begin, end), times the keys' scales.
CP_INLINE void scale_scores(const KeyBlock& block, int rows, int begin, int end, float* scores) {
  for (int g = begin; g < end; ++g) {
    const f32x16 scale = load(block.key_scales[g]);
    for (int r = 0; r < rows; ++r) {
      float* x = scores + r * kKeyBlock + g * kLanes;
      store(x, load(x) * scale);
    }
  }
}

// The keys of a block that each row of a tile sees, and those that any of them sees.
template <class Cache>
struct Sight {
  Span rows[Cache::kRows];
  Span all;

  CP_INLINE int first_group(const Sight& s) { return s.all.begin / kLanes; }
  CP_INLINE int end_group(const Sight& s) { return (s.all.end + kLanes - 1) / kLanes; }
};

// Probabilities times the scales of int8 values; the scale of a hidden value may be NaN, and is masked.
template <bool kWhole>
CP_INLINE f32x16 weighed(f32x16 e, const KeyBlock& block, int group, const Span& seen) {
  const f32x16 product = e * load(block.value_scales[group]);
  return kWhole ? product : masked(product, group, seen, 0.0f);
}

// Turns scores [rows][64] into probabilities relative to the new maxima; decay is what the sums so far
// shrink by.  Keys that a row does not see get 0.  Maxima are kept times `scale`, which is positive.  The scales of
// int8 values go with the probabilities that they are about to meet.
template <class Cache, bool kWhole>
CP_INLINE void softmax(const float* scores, int rows, const Sight<Cache>& sight, const KeyBlock& block, float scale,
                       float* state, size_t stride, typename Cache::Factor* p, float* decay) {
  const int begin = kWhole ? 0 : Sight<Cache>::first_group(sight);
  const int end = kWhole ? kKeyBlock / kLanes : Sight<Cache>::end_group(sight);
  float bases[Cache::kRows];
  for (int r = 0; r < rows; ++r) {
    f32x16 top = broadcast(kMinusInfinity);
    for (int g = begin; g < end; ++g) {
      const f32x16 x = load(scores + r * kKeyBlock + g * kLanes);
      top = max(kWhole ? x : masked(x, g, sight.rows[r]), top);
    }
    float& maximum = state[r * stride + kLanes];
    const float old = maximum, fresh = reduce_max(top) * scale;
    maximum = fresh > old ? fresh : old;
    bases[r] = finite_or_zero(maximum);
    decay[r] = old - bases[r];
  }
  store(decay, exp2_nonpositive(load(decay)));
  for (int r = 0; r < rows; ++r) {
    const f32x16 base = broadcast(-bases[r]);
    f32x16 sum = zero();
    for (int g = begin; g < end; ++g) {
      const int at = r * kKeyBlock + g * kLanes;
      const f32x16 x = load(scores + at);
      const f32x16 e = exp2_nonpositive(fma(kWhole ? x : masked(x, g, sight.rows[r]), broadcast(scale), base));
      sum = sum + e;
      Cache::store_row(p + at, block.scaled ? weighed<kWhole>(e, block, g, sight.rows[r]) : e);
    }
    float* lanes = state + r * stride;
    store(lanes, load(lanes) * broadcast(decay[r]) + sum);
  }
}

// The changes of scores q.k beyond a factor: `cap` * tanh(product * scale / cap), less a head's slope for each position
// that the key lies back, or with a head's bias by how far on it lies.
struct Bend {
  float scale, cap;      // 0: no cap
  const float* slopes;   // [group], or null
  const float* biases;   // [group][2 reach + 1], or null
  int reach;
  int group, position;   // of an item's rows: heads of a token, and the first token's position

  bool needed() const { return cap > 0.0f || slopes != nullptr || biases != nullptr; }
};

struct Shape {
  int width, value_width;
  size_t stride;  // of a row's state, in floats
  float scale;    // includes log2(e)
  Bend bend;
};

// Bends scores [rows][64] of the key groups [begin, end), of the item's rows from `row` on.
static void bend_scores(const Bend& bend, int row, int rows, const KeyBlock& block, int begin, int end, float* scores) {
  static const float kLaneNumbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const f32x16 cap = broadcast(bend.cap), inside = broadcast(bend.cap > 0.0f ? bend.scale / bend.cap : 0.0f);
  for (int r = row; r < row + rows; ++r, scores += kKeyBlock) {
    const float slope = bend.slopes == nullptr ? 0.0f : bend.slopes[r % bend.group];
    const int back = bend.position + r / bend.group - block.start;
    const size_t first = (size_t)(r % bend.group) * (2 * bend.reach + 1) + bend.reach;
    const float* bias = bend.biases == nullptr ? nullptr : bend.biases + first - back;
    for (int g = begin; g < end; ++g) {
      f32x16 x = load(scores + g * kLanes);
      x = bend.cap > 0.0f ? cap * tanh(x * inside) : x * broadcast(bend.scale);
      if (bend.biases != nullptr) x = x + load(bias + g * kLanes);
      const f32x16 distance = broadcast((float)(back - g * kLanes)) - load(kLaneNumbers);
      store(scores + g * kLanes, bend.slopes == nullptr ? x : x - broadcast(slope) * distance);
    }
  }
}

// One block of keys for up to Cache::kRows of an item's rows, from `row` on; q and state are the item's.  Values that
// some of them do not see meet a probability of 0.  `sight` is not looked at where they see all of it.
template <class Cache, bool kWhole>
CP_INLINE void meet(const Shape& shape, const typename Cache::Factor* q, float* state, int row, int rows,
                    const KeyBlock& block, const Sight<Cache>& sight, Ahead& ahead) {
  q += (size_t)row * shape.width;
  state += row * shape.stride;
  alignas(64) float scores[Cache::kRows * kKeyBlock];
  alignas(64) typename Cache::Factor p[Cache::kRows * kKeyBlock];
  alignas(64) float decay[kLanes] = {};
  const int begin = kWhole ? 0 : Sight<Cache>::first_group(sight);
  const int end = kWhole ? kKeyBlock / kLanes : Sight<Cache>::end_group(sight);
  if constexpr (Cache::kTiled) {
    score_block_tiled(q, shape.width, block, begin, end, scores, ahead);
  } else {
    score_block<Cache>(q, rows, shape.width, block, begin, end, scores, ahead);
  }
  if (block.scaled) scale_scores(block, rows, begin, end, scores);
  if (shape.bend.needed()) bend_scores(shape.bend, row, rows, block, begin, end, scores);
  softmax<Cache, kWhole>(scores, rows, sight, block, shape.scale, state, shape.stride, p, decay);
  const Span seen = kWhole ? Span{0, kKeyBlock} : sight.all;
  if constexpr (Cache::kTiled) {
    weigh_block_tiled(p, rows, shape.value_width, block, seen, decay, state + 2 * kLanes, shape.stride, ahead);
  } else {
    weigh_block<Cache>(p, rows, shape.value_width, block, seen, decay, state + 2 * kLanes, shape.stride, ahead);
  }
}

// Splits n rows into tiles of nearly equal height and calls body(first, rows).
template <class Cache, class Body>
CP_INLINE void for_tiles(int n, Body&& body) {
  const int tiles = (n + Cache::kRows - 1) / Cache::kRows;
  for (int t = 0; t < tiles; ++t) {
    const int first = n * t / tiles;
    body(first, n * (t + 1) / tiles - first);
  }
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
