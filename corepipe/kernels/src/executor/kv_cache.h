// Paged keys and values of the layers of one core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "attention/attention_table.h"

namespace corepipe {

// Anonymous memory, in huge pages if requested and available; zero, and not resident before it is touched.
class Arena {
 public:
  // Throws std::bad_alloc.
  Arena(size_t bytes, bool huge_pages);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  char* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  void* mapping_;
  size_t mapped_;
  char* data_;
  size_t bytes_;
};

// One layer's groups of a cache, wherever they lie.
inline int padded_width(int elements) { return (elements + kKeyGroup - 1) / kKeyGroup * kKeyGroup; }

inline KVLayer layer_of(int head_dim, bool fp32, bool int8 = false, int shared = 0) {
  const int width = padded_width(head_dim);
  const size_t row_bytes = int8 ? width + sizeof(float) : width * size_t{fp32 ? 4u : 2u};
  return {nullptr, 0, (shared > 0 ? 1 : 2) * kKeyGroup * row_bytes, 1, width, fp32, int8, padded_width(shared)};
}

// Layout [layers][kv_heads][blocks][groups of 16 positions], so that a run of neighbouring blocks is one
// stream for each head; a group as in KVLayer.
class KVCache {
 public:
  // dtype: of the computation, and of the cache unless that is int8.  Throws std::invalid_argument for types and sizes
  // that the kernels don't take, std::bad_alloc.  shared: for latents, the number of elements that are also a value.
  KVCache(int layers, int blocks, int block_size, int kv_heads, int head_dim, const std::string& dtype,
          bool int8, int shared = 0);

  KVLayer layer(int index) const;
  const Arena& arena() const { return arena_; }

  const int layers, blocks, block_size, kv_heads, head_dim, shared;
  const bool fp32, int8;

 private:
  size_t group_bytes() const { return layer_of(head_dim, fp32, int8, shared).group_bytes; }
  size_t head_bytes() const { return static_cast<size_t>(blocks) * (block_size / kKeyGroup) * group_bytes(); }
  size_t checked_bytes() const;

  Arena arena_;
};

}  // namespace corepipe
