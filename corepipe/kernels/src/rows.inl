// Ops on single rows.
#pragma once

#include "attention_table.h"
#include "simd.h"

namespace corepipe {
namespace COREPIPE_SIMD {

static void rope_row(const float* x, float* out, int head_dim, const float* cos, const float* sin, int half,
                     bool round) {
  for (int i = 0; i < half; i += kLanes) {
    const int n = half - i < kLanes ? half - i : kLanes;
    const f32x16 a = load_n(x + i, n), b = load_n(x + half + i, n);
    const f32x16 c = load_n(cos + i, n), s = load_n(sin + i, n);
    f32x16 first = a * c - b * s, second = b * c + a * s;
    if (round) first = round_bf16(first), second = round_bf16(second);
    store_n(out + i, first, n);
    store_n(out + half + i, second, n);
  }
  for (int i = 2 * half; i < head_dim; i += kLanes) {
    const int n = head_dim - i < kLanes ? head_dim - i : kLanes;
    f32x16 rest = load_n(x + i, n);
    if (round) rest = round_bf16(rest);
    store_n(out + i, rest, n);
  }
}

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

static void add_row(const float* a, const float* b, float* out, int n, bool round) {
  for_lanes(n, [&](int i, int count) {
    store_part(out + i, load_part(a + i, count) + load_part(b + i, count), count, round);
  });
}

static void glu_row(const float* gate, const float* up, float* out, int n, bool round) {
  for_lanes(n, [&](int i, int count) {
    store_part(out + i, silu(load_part(gate + i, count)) * load_part(up + i, count), count, round);
  });
}

static void round_row(const float* x, float* out, int n) {
  for_lanes(n, [&](int i, int count) { store_part(out + i, load_part(x + i, count), count, true); });
}

static void widen_row(const uint16_t* bf16, float* out, int n) {
  for_lanes(n, [&](int i, int count) {
    uint16_t padded[kLanes] = {};
    memcpy(padded, bf16 + i, (size_t)count * sizeof *bf16);
    store_part(out + i, load_bf16(padded), count, false);
  });
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
