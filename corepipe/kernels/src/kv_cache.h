// Paged keys and values of the layers of one core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "attention_table.h"

namespace corepipe {

// Anonymous memory, in huge pages if asked for and there are any; zero, and not resident before it is touched.
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
inline KVLayer layer_of(int head_dim, bool fp32) {
  const int width = (head_dim + kKeyGroup - 1) / kKeyGroup * kKeyGroup;
  return {nullptr, 0, 2 * static_cast<size_t>(kKeyGroup) * width * (fp32 ? 4 : 2), 1, width, fp32};
}

// Layout [layers][kv_heads][blocks][groups of 16 positions], so that a run of neighbouring blocks is one
// stream for each head; a group as in KVLayer.
class KVCache {
 public:
  // Throws std::invalid_argument for sizes that the kernels don't take, std::bad_alloc.
  KVCache(int layers, int blocks, int block_size, int kv_heads, int head_dim, const std::string& dtype);

  KVLayer layer(int index) const;
  const Arena& arena() const { return arena_; }

  const int layers, blocks, block_size, kv_heads, head_dim;
  const bool fp32;

 private:
  size_t group_bytes() const { return layer_of(head_dim, fp32).group_bytes; }
  size_t head_bytes() const { return static_cast<size_t>(blocks) * (block_size / kKeyGroup) * group_bytes(); }
  size_t checked_bytes() const;

  Arena arena_;
};

}  // namespace corepipe
