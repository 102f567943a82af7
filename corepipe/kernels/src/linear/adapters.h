// Adapters: what they add to the results of Linears, for the rows that have one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "linear/adapter_table.h"
#include "linear/buffer.h"

namespace corepipe {

struct KernelTable;
struct Linear;

// The matrices of an adapter for all cores of a replica, in memory of its own.
class Adapter {
 public:
  struct Bytes {
    const uint8_t* data;
    size_t size;
  };
  struct Part {
    int core, number;  // of the Linear's matrix among those of the core's program
    int n, k, rank;
    float scale;
    Bytes a, b;  // as AdapterMatrices has them; they are copied
  };

  // Throws std::invalid_argument for sizes that contradict each other.
  Adapter(const std::vector<Part>& parts, bool is_bf16);

  // Null where the adapter does not change that Linear.
  const AdapterMatrices* find(int core, int number) const;
  const std::vector<std::pair<int, int>>& places() const { return places_; }
  int rank() const { return rank_; }

 private:
  Buffer memory_;                                    // in the order of the parts, in which a step reads them
  std::vector<std::vector<AdapterMatrices>> cores_;  // by number
  std::vector<std::pair<int, int>> places_;          // core and number of each part
  int rank_ = 0;                                     // the largest
};

// The rows of a batch that have an adapter, in groups with the same.
struct AdaptedRows {
  struct Group {
    const Adapter* adapter;
    std::vector<int32_t> rows;  // ascending
  };
  std::vector<Group> groups;
  std::vector<int32_t> group_of;  // [rows]; -1: it has none
  int rank = 0;                   // the largest

  // slots: of each row, -1 for none; adapters: by slot.
  static AdaptedRows of(const std::vector<int32_t>& slots, const std::vector<const Adapter*>& adapters);
};

// What adapters add to a Linear's rows [first, first + rows).  First each row of a group is multiplied by a, in items;
// then, panel by panel, by b.  Without adapted rows nothing is done.
class AdapterRun {
 public:
  AdapterRun(const KernelTable& kernels, const Linear& op, int first, int rows);

  bool any() const { return groups_ > 0; }
  size_t bytes() const;
  void place_at(uint8_t* memory);

  // Where a row's input has to be kept, if it is made on the way; rows count from `first`, as below.  Null: nowhere.
  float* input(int row) const;

  // Orders the rows of a block by their adapters.
  void order(int start, int count);

  int items() const;
  void shrink(int item) const;

  // Multiplies a block's sums [count][32] by scale, and adds the bias and what adapters add.  False where there is none
  // for that segment: then the sums are as they were.
  bool expand(int segment, int panel, int start, int count, const float* scale, float* sums) const;

 private:
  const AdapterMatrices*& matrices(int group, int segment) const;
  float* reduced(int row, int segment) const;
  int32_t* order_of(int start) const;
  std::pair<int, int> rows_of(int group) const;
  int items_of(int group) const;

  const AdapterTable& table_;
  const Linear& op_;
  const int first_, rows_;
  const int groups_;  // 0 where none of them changes the Linear
  const int stride_;  // of a row's products with a, for one segment
  uint8_t* memory_ = nullptr;
};

}  // namespace corepipe
