// What an ISA provides for Linears: leaf functions without state, called by linear.cpp.
#pragma once

#include <cstdint>

#include "rows/row_table.h"

namespace corepipe {

constexpr int kPanel = 32;  // columns (of n) in a panel
constexpr int kGroup = 64;  // elements of k that share one int8 activation scale; k is padded to this
constexpr int kMaxBlockRows = 32;

enum class Kind { int8, int8w, bf16, fp32, int4g32, int4g32z, int4g32m, int4g64, int4g64z, int4g64m };
constexpr int kKinds = 10;

// What a number q of four bits stands for, with its group's scale s: (q - 8) s; (q + offset) s, a zero point; or
// q s + offset, a minimum.
enum class Offsets { none, zeros, minima };

// How the numbers of a kind are stored.
struct Storage {
  const char* name;
  int bits;
  int group;  // elements of k that share a scale in the panel; 0 where there are none
  Offsets offsets;

  // Bytes of a panel's columns for kGroup of k: fp16 scales and offsets, then the numbers.
  constexpr int64_t group_bytes() const {
    const int scales = group == 0 ? 0 : kPanel * (kGroup / group) * (offsets == Offsets::none ? 1 : 2);
    return int64_t{2} * scales + int64_t{kPanel} * kGroup * bits / 8;
  }
};

constexpr Storage kStorages[kKinds] = {
    {"int8", 8, 0, Offsets::none},         {"int8w", 8, 0, Offsets::none},
    {"bf16", 16, 0, Offsets::none},        {"fp32", 32, 0, Offsets::none},
    {"int4g32", 4, 32, Offsets::none},     {"int4g32z", 4, 32, Offsets::zeros},
    {"int4g32m", 4, 32, Offsets::minima},  {"int4g64", 4, 64, Offsets::none},
    {"int4g64z", 4, 64, Offsets::zeros},   {"int4g64m", 4, 64, Offsets::minima},
};

constexpr const Storage& storage_of(Kind kind) { return kStorages[static_cast<int>(kind)]; }

// What to bring into the L2 cache during a product: one of `parts` equal parts of a panel, at `from`;
// nothing for 0 parts.
struct Fetch {
  const uint8_t* from;
  int parts;
};

// How one kind is multiplied.  Rows go in blocks of up to `max_rows`; a block holds its rows prepared and
// interleaved, in `row_group_bytes` for each row and group of k, in a layout that is the ISA's business.
struct LinearKernel {
  int max_rows;
  int row_group_bytes;

  // Converts x [k] into row `row` of a block of `rows`.
  void (*prepare)(const float* x, int k, int row, int rows, void* block);

  // sums [rows][32] = block . panel.  Rows of `sums` up to the next multiple of row_unit are overwritten too.
  void (*multiply)(int rows, const void* panel, const void* block, int groups, float* sums, Fetch ahead);

  // int8 only: puts q [64] as it is, with scale 1, into row `row` of a block of `rows` and one group (tests).
  void (*prepare_values)(const int8_t* q, int row, int rows, void* block) = nullptr;

  // Blocks are cut, and their memory is rounded up, to a multiple of this.
  int row_unit = 1;

  // Where products don't take panels as they are packed: what `unpack` makes of one, in this many bytes a group.
  int panel_group_bytes = 0;
  void (*unpack)(const void* panel, int groups, void* out) = nullptr;

  // A thread calls these, where there are any, before and after a run of products: they claim units of its core.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
};

// The kernels of one kind: `many` from so many rows on.
struct LinearKernels {
  LinearKernel few;
  int many_from = 1 << 30;
  LinearKernel many = {};

  const LinearKernel& of(int rows) const { return rows < many_from ? few : many; }
};

// How rows are cut where each thread takes some of them through several Ops; see executor.cpp.
struct ChainRows {
  int from;    // for each thread; below that, reading the weights once counts for more
  int most;    // what they make of a layer of a small model stays in the second-level cache
  int fewest;  // these keep the products busy while the weights come from the third level
  int unit;
};

// The operations on the sums [rows][32] of one panel; n of the 32 columns are stored.
struct Finish {
  int rows;
  int n;
  bool round_bf16;
  const float* sums;
  const float* scale;  // [n], or null
  const float* bias;   // [n], or null
  // Of the result, or under glu of the gate.
  Function function;
  // glu: out = function(gate) * up, where the sums above are the gate's.  Null without glu.
  const float* up_sums;
  const float* up_scale;
  const float* up_bias;
  float factor;           // factor of the result; 1 with a function
  const float* residual;  // [rows][n], or null: added to the result
  int64_t residual_stride;
  const float* outer;  // [rows][n], or null: added to that sum
  int64_t outer_stride;
  float* out;
  int64_t out_stride;
};

constexpr int kDenseKinds = static_cast<int>(Kind::int4g32), kInt4Kinds = kKinds - kDenseKinds;

// Linears except those of four bits, which are compiled separately.
struct DenseLinears {
  LinearKernels kinds[kDenseKinds];  // by Kind
  ChainRows chain;
  int unaided_rows;  // up to so many rows the hardware prefetches weights early enough by itself

  void (*finish)(const Finish&);
};

struct Int4Linears {
  LinearKernels kinds[kInt4Kinds];  // from Kind::int4g32 on
};

struct LinearTable {
  LinearKernels kinds[kKinds];  // by Kind
  ChainRows chain;
  int unaided_rows;

  void (*finish)(const Finish&);
};

}  // namespace corepipe
