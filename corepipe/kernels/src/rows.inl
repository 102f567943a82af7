// Ops on single rows.
#pragma once

#include "attention_table.h"
#include "simd.h"

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
