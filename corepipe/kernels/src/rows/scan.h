// States of recurrent layers: one of fixed size per sequence, however long the sequence is.
#pragma once

#include <cstddef>

#include "executor/kv_cache.h"
#include "rows/scan_table.h"

namespace corepipe {

// `blocks` blocks of `elements` fp32 numbers, for all of a core's recurrent layers.  Block i of a sequence's table has
// the state after its `block_size` positions, or after the sequence's last one; a sequence needs its last block only.
// Neighbours in a table may be one block, which then has the latest state.
class StateCache {
 public:
  // table: the number of the sequence's block table with its blocks.  Throws std::invalid_argument, std::bad_alloc.
  StateCache(int blocks, int block_size, size_t elements, int table = 0);

  float* block(int index) const {
    return reinterpret_cast<float*>(arena_.data()) + static_cast<size_t>(index) * elements;
  }
  const Arena& arena() const { return arena_; }

  const int blocks, block_size, table;
  const size_t elements;

 private:
  Arena arena_;
};

// Where a layer's part of each block begins.
struct StatePart {
  const StateCache* cache;
  size_t offset;
};

}  // namespace corepipe
