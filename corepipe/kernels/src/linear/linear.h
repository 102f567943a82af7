// One Linear of a step, with the Ops that are fused around it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "isa/isa.h"
#include "linear/adapters.h"
#include "linear/buffer.h"
#include "linear/matrix.h"
#include "executor/pool.h"

namespace corepipe {

// Pieces [begin, end) that threads take from both ends, each piece once.
class alignas(64) PieceRange {
 public:
  void set(int begin, int end) { ends_.store(pack(begin, end), std::memory_order_relaxed); }

  // Takes the first or the last remaining piece; -1 if there is none.
  int take_first() {
    return take([](int& begin, int&) { return begin++; });
  }
  int take_last() {
    return take([](int&, int& end) { return --end; });
  }

 private:
  static uint64_t pack(int begin, int end) { return static_cast<uint64_t>(end) << 32 | static_cast<uint32_t>(begin); }

  template <class Take>
  int take(Take&& one) {
    uint64_t word = ends_.load(std::memory_order_relaxed);
    while (true) {
      int begin = static_cast<int>(word & 0xffffffffu), end = static_cast<int>(word >> 32);
      if (begin >= end) return -1;
      const int piece = one(begin, end);
      if (ends_.compare_exchange_weak(word, pack(begin, end), std::memory_order_relaxed)) return piece;
    }
  }

  std::atomic<uint64_t> ends_{0};
};

// Has a cache line of its own, since each thread has one.
struct alignas(64) Count {
  int64_t value = 0;
};

// Working memory of the Linears of one pool, used by one of them at a time.  It grows outside of regions alone.
struct Scratch {
  explicit Scratch(int threads) : rows(threads), blocks(threads), panels(threads), parts(threads), weights_read(threads) {}

  // Of all threads; between regions.
  int64_t weight_bytes() const {
    int64_t bytes = 0;
    for (const Count& count : weights_read) bytes += count.value;
    return bytes;
  }

  size_t bytes() const {
    size_t found = activations.size();
    for (const auto* each : {&rows, &blocks, &panels}) {
      for (const Buffer& buffer : *each) found += buffer.size();
    }
    return found;
  }

  Buffer activations;             // all rows, prepared, of one Linear after the other
  std::vector<Buffer> rows;       // one normalised row for each thread
  std::vector<Buffer> blocks;     // the rows that a thread multiplies alone, prepared
  std::vector<Buffer> panels;     // the panels that a thread has unpacked
  std::vector<PieceRange> parts;  // the pieces of each thread
  std::vector<Count> weights_read;  // bytes of packed panels that each thread has read
};

// One matrix that x is multiplied by.
struct Segment {
  const Matrix* matrix;
  const float* bias;  // [n], or null
  float* out;         // [rows][n]
  int64_t out_stride;
};

// out = round(x @ w.T * scale + bias), for each segment; with
//   norm: x is normalised and rounded first;
//   function: out = round(function(round(...)));
//   factor: out = round(round(...) * factor);
//   residual: out = round(residual + round(...)), one segment;
//   outer: out = round(outer + that);
//   glu: two segments of equal shape, gate and up; the first's out = round(function(gate) * up);
//   adapted: what a row's adapter makes of x is added to x @ w.T * scale + bias, before that is rounded.
// Strides are in elements.  Rounding is to bf16 where round_bf16 is set, else none.  No out may overlap x.
struct Linear {
  const float* x;  // [rows][k]
  int64_t x_stride;
  const int32_t* row_of = nullptr;  // [rows]: which row of x each is, where they are not in its order
  int rows;
  int k;
  const Segment* segments;
  int segment_count;
  Norm norm = {};
  Function function = Function::none;  // without factor and residual
  float factor = 1;
  const float* residual = nullptr;  // [rows][n], or null; may be the out
  int64_t residual_stride = 0;
  const float* outer = nullptr;  // [rows][n], or null; may be the out; with a residual alone
  int64_t outer_stride = 0;
  bool glu = false;
  bool round_bf16 = false;
  // The rows that have an adapter, or null; the core, and the number of the first matrix among its program's.
  const AdaptedRows* adapted = nullptr;
  int core = 0, first_number = 0;
};

// A row of the result depends on that row of x alone, bit for bit: not on the other rows, their number,
// the threads, or on which view of a wider matrix holds the columns.
// Throws std::invalid_argument for segments that disagree, std::bad_alloc.
void linear(const KernelTable& kernels, Pool& pool, Scratch& scratch, const Linear& op);

// Runs several independent Linears, each with rows, in one region: threads take the panels of all of them.
void linears(const KernelTable& kernels, Pool& pool, Scratch& scratch, const std::vector<Linear>& ops);

// Rows [first, first + rows) of the same, on the calling thread, which is number `thread` of the pool: for use inside
// a region, after `reserve_rows` for so many rows.
void linear_rows(const KernelTable& kernels, Scratch& scratch, const Linear& op, int first, int rows,
                 int thread) noexcept;

// Reserves the memory of linear_rows for `rows` rows, on each thread.  Throws as `linear` does.
void reserve_rows(const KernelTable& kernels, Scratch& scratch, const Linear& op, int rows);

// x [rows][k] s8 -> int32 sums [groups][rows][n] of each 64 of k (tests).  Throws std::invalid_argument
// for a matrix of another kind than int8.
void int8_accumulators(const KernelTable& kernels, const int8_t* x, int rows, const Matrix& matrix, int32_t* out);

}  // namespace corepipe
