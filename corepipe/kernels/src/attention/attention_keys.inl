// Where the keys and values of one block of 64 lie in a paged cache, and which of them a token sees.
#pragma once

#include "attention/attention_int8.inl"
#include "attention/attention_latents.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

struct KeyBlock {
  const char* keys[kKeyBlock / kKeyGroup];
  const char* values[kKeyBlock];  // a row of values for each step: two keys (bf16) or one
  int groups;
  int start;  // position of the first key
  bool scaled;  // by what follows: of each group [16]
  const float* key_scales[kKeyBlock / kKeyGroup];
  const float* value_scales[kKeyBlock / kKeyGroup];
};

struct Span {
  int begin, end;
};

// What a token may see: from `window` - 1 positions before its own, or of `chunked` from the last multiple of `window`,
// to `ahead` after it, below `end`.
struct Reach {
  int window, ahead, end;
  bool chunked;

  CP_INLINE int oldest(const Reach& r, int position) {
    if (r.chunked) return position - position % r.window;
    return r.window <= position ? position - r.window + 1 : 0;
  }
  // The first position from which a key is seen no more.
  CP_INLINE int64_t blind(const Reach& r, int64_t key) {
    return r.chunked ? key - key % r.window + r.window : key + r.window;
  }
  CP_INLINE int newest(const Reach& r, int position) {
    return r.ahead < r.end - position ? position + r.ahead : r.end - 1;
  }
};

// Keys of the block at `start` that a token at `position` sees, within the block.
CP_INLINE Span visible(int position, const Reach& reach, int start) {
  const int begin = Reach::oldest(reach, position) - start, end = Reach::newest(reach, position) - start + 1;
  return {begin > 0 ? begin : 0, end < kKeyBlock ? end : kKeyBlock};
}

CP_INLINE const char* group_at(const AttentionCall& call, int sequence, int head, int group) {
  const KVLayer& cache = call.cache;
  const int32_t* table = call.tables + (size_t)sequence * call.table_width;
  const size_t block = (size_t)table[group / cache.groups_per_block];
  const size_t index = block * cache.groups_per_block + group % cache.groups_per_block;
  return cache.base + head * cache.head_stride + index * cache.group_bytes;
}

// n pairs of bf16 numbers, runs of 16 of them: a run's first numbers at `first`, its second ones at `second`, and the next
// run's `step` on.
CP_INLINE void widen_pairs(const char* pairs, int n, float* first, float* second, int step) {
  for (int i = 0; i < n; i += kLanes, pairs += 4 * kLanes, first += step, second += step) {
    const i32x16 words = load((const int32_t*)pairs);
    i32x16 low;
    CP_PARTS(low.v[p] = words.v[p] << 16);
    store(first, as_f32(low));
    store(second, as_f32(words & broadcast_i32((int32_t)0xffff0000u)));
  }
}

// A group's keys [width / 2][16][2] as [width][16], its values [8][width][2] as [16][width].
CP_INLINE const char* widen_keys(const char* keys, int width, float* out) {
  widen_pairs(keys, kKeyGroup * width / 2, out, out + kKeyGroup, 2 * kKeyGroup);
  return (const char*)out;
}

CP_INLINE const char* widen_values(const char* values, int width, float* out) {
  for (int key = 0; key < kKeyGroup; key += 2, values += 4 * width) {
    widen_pairs(values, width, out + key * width, out + (key + 1) * width, kLanes);
  }
  return (const char*)out;
}

// room: for what a cache of int8 or bf16 has, widened, where it is not read in place, and for the values of latents.
template <class Cache>
CP_INLINE KeyBlock key_block(const AttentionCall& call, int sequence, int head, Span groups,
                             typename Cache::Element* room) {
  KeyBlock block;
  block.groups = groups.end - groups.begin;
  block.start = groups.begin * kKeyGroup;
  block.scaled = call.cache.int8;
  const bool latents = call.cache.shared > 0;
  const size_t row_bytes = (size_t)call.cache.value_width() / kLanes * Cache::kLaneBytes;
  constexpr int kSteps = kKeyGroup / Cache::kDepth;
  for (int g = 0; g < block.groups; ++g) {
    const char* group = group_at(call, sequence, head, groups.begin + g);
    const char* values = latents ? group : group + call.cache.group_bytes / 2;
    size_t stride = row_bytes;
    if (block.scaled) {
      block.key_scales[g] = (const float*)group;
      block.value_scales[g] = (const float*)values;
      group += kScaleBytes, values += kScaleBytes;
      if constexpr (!kInPlace<Cache>) {
        const int elements = kKeyGroup * call.cache.width;
        group = widen_bytes(group, elements, room + 2 * g * elements);
        if (!latents) values = widen_bytes(values, elements, room + (2 * g + 1) * elements);
      }
    }
    if constexpr (kWidensBlocks<Cache>) {
      float* wide = room + 2 * g * kKeyGroup * call.cache.width;
      group = widen_keys(group, call.cache.width, wide);
      values = widen_values(values, call.cache.width, wide + kKeyGroup * call.cache.width);
    } else if constexpr (!kInPlace<Cache>) {
      if (latents) values = turn_keys(group, call.cache.shared, room + (2 * g + 1) * kKeyGroup * call.cache.width);
    }
    if (call.values_in_place) {
      const size_t first = (size_t)(groups.begin + g) * kKeyGroup;
      values = (const char*)(call.v + first * call.v_stride + (size_t)head * call.head_dim);
      stride = call.v_stride * sizeof(float);
    }
    block.keys[g] = group;
    for (int s = 0; s < kSteps; ++s) block.values[g * kSteps + s] = values + s * stride;
  }
  return block;
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
