// What recurrent layers keep of sequences: one state each, however long they are.
#pragma once

#include <cstddef>

#include "executor/kv_cache.h"
#include "rows/scan_table.h"

namespace corepipe {

// `blocks` blocks of `elements` fp32 numbers, those of all of a core's recurrent layers.  Block i of a sequence's table
// has what is left of positions up to its end, or as far as the sequence goes: `block_size` positions of which a
// sequence needs the last alone.  Neighbours in a table may be one block, which has what is left of the latest then.
class StateCache {
 public:
  // table: which of a sequence's block tables has its blocks.  Throws std::invalid_argument, std::bad_alloc.
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
