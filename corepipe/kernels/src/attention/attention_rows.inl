// The preparation of one head of a row, and the writing of rows into the cache.

#pragma once

#include "attention/attention_keys.inl"
#include "rows/rows.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

// ---- one head of a row: norms and rotation, of which the first two as the separate Ops do them

// Returns x if there is nothing to do, otherwise `work`, which has the result.
static const float* ready_head(const AttentionCall& call, const float* x, const Norm& norm, int position,
                               float* work) {
  if (norm.kind != NormKind::none) {
    norm_row(norm, x, call.head_dim, call.round_bf16, work);
    x = work;
  }
  const Rotation& r = call.rotation;
  if (r.cos != nullptr) {
    const size_t at = (size_t)position * r.half;
    rope_row(x, work, call.head_dim, r.cos + at, r.sin + at, r.half, call.round_bf16);
    x = work;
  }
  if (call.head_norm.kind != NormKind::none) {
    norm_row(call.head_norm, x, call.head_dim, call.round_bf16, work);
    x = work;
  }
  return x;
}

// Prefetches a row that is read soon: rows lie too far apart for the hardware's prefetchers.
CP_INLINE void fetch_row(const float* x, int elements) {
  for (int i = 0; i < elements; i += 16) __builtin_prefetch(x + i);
}

template <class Cache, class Stored>
CP_INLINE void store_head(const float* x, int head_dim, int width, Stored* out) {
  for (int d = 0; d < width; d += kLanes) {
    const int n = head_dim - d < kLanes ? head_dim - d : kLanes;
    Cache::store_row(out + d, n == kLanes ? load(x + d) : load_n(x + d, n));
  }
}

// ---- writing

CP_INLINE void put_key(const uint16_t* x, int width, int slot, char* keys) {
  for (int d = 0; d < width; d += 2) memcpy(keys + d * 32 + slot * 4, x + d, 4);
}

CP_INLINE void put_key(const float* x, int width, int slot, char* keys) {
  for (int d = 0; d < width; ++d) memcpy(keys + d * 64 + slot * 4, x + d, 4);
}

// The second slot of a pair is cleared with the first: what an earlier owner left there must not be read.
CP_INLINE void put_value(const uint16_t* x, int width, int slot, char* values) {
  char* pairs = values + (size_t)(slot / 2) * width * 4;
  if (slot % 2 == 0) {
    for (int d = 0; d < width; ++d) {
      const uint32_t pair = x[d];
      memcpy(pairs + 4 * d, &pair, sizeof pair);
    }
  } else {
    for (int d = 0; d < width; ++d) memcpy(pairs + 4 * d + 2, x + d, 2);
  }
}

CP_INLINE void put_value(const float* x, int width, int slot, char* values) {
  memcpy(values + (size_t)slot * width * 4, x, (size_t)width * 4);
}

constexpr int kRowsAhead = 2;

// Rows of elements in their places of a group's keys or values, as they are.
template <class Cache>
struct PlainRows {
  CP_INLINE void put(const AttentionCall& call, const float* key, const float* value, int slot, char* group) {
    alignas(64) typename Cache::Element elements[kMaxHeadDim];
    const int width = call.cache.width;
    store_head<Cache>(key, call.head_dim, width, elements);
    put_key(elements, width, slot, group);
    if (call.values_in_place || call.cache.shared > 0) return;
    store_head<Cache>(value, call.head_dim, width, elements);
    put_value(elements, width, slot, group + call.cache.group_bytes / 2);
  }
};

// The same as int8, of numbers that are first rounded to the type of the computation.
template <class Cache>
struct Int8Rows {
  typedef typename Cache::Element Element;

  CP_INLINE void put(const AttentionCall& call, const float* key, const float* value, int slot, char* group) {
    alignas(64) int8_t q[kMaxHeadDim];
    const int width = call.cache.width;
    if (call.cache.shared > 0) {
      ((float*)group)[slot] = quantize_head(key, call.head_dim, width, q);
      return put_bytes_of_key(q, width, slot, group + kScaleBytes, (const Element*)nullptr);
    }
    char* values = group + call.cache.group_bytes / 2;
    ((float*)group)[slot] = quantize_key(key, call.head_dim, width, q);
    put_bytes_of_key(q, width, slot, group + kScaleBytes, (const Element*)nullptr);
    ((float*)values)[slot] = quantize_head(value, call.head_dim, width, q);
    put_bytes_of_value(q, width, slot, values + kScaleBytes, (const Element*)nullptr);
  }
};

template <class Rows>
static void write_as(const AttentionCall& call, int sequence, int row, int rows, int head) {
  alignas(64) float work[kMaxHeadDim];
  for (int r = row; r < row + rows; ++r) {
    const int position = call.positions[r];
    char* group = (char*)group_at(call, sequence, head, position / kKeyGroup);
    const float* k = call.k + r * call.k_stride + (size_t)head * call.head_dim;
    const float* v = call.v + r * call.v_stride + (size_t)head * call.head_dim;
    if (r + kRowsAhead < row + rows) {
      fetch_row(k + kRowsAhead * call.k_stride, call.head_dim);
      fetch_row(v + kRowsAhead * call.v_stride, call.head_dim);
    }
    Rows::put(call, ready_head(call, k, call.k_norm, position, work), v, position % kKeyGroup, group);
  }
}

static void write_rows(const AttentionCall& call, int sequence, int row, int rows, int head) {
  if (call.wide) return write_as<PlainRows<WideBf16Cache>>(call, sequence, row, rows, head);
  if (call.cache.int8) {
    const auto write = call.cache.fp32 ? write_as<Int8Rows<Fp32Cache>> : write_as<Int8Rows<Bf16Cache>>;
    return write(call, sequence, row, rows, head);
  }
  const auto write = call.cache.fp32 ? write_as<PlainRows<Fp32Cache>> : write_as<PlainRows<Bf16Cache>>;
  write(call, sequence, row, rows, head);
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
