// The Ops of one core, in order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "attention/attention.h"
#include "executor/batch.h"
#include "linear/experts.h"
#include "isa/isa.h"
#include "executor/kv_cache.h"
#include "attention/latents.h"
#include "linear/linear.h"
#include "linear/matrix.h"
#include "executor/pool.h"
#include "rows/scan.h"

namespace corepipe {

enum class Rows { tokens, logits };

// A batch during its run through the Ops.
struct Run {
  const KernelTable& kernels;
  Pool& pool;
  Scratch& scratch;
  Attention& attention;
  Experts& experts;
  Latents& latents;
  const Batch& batch;
  // Of rows of tokens and of logits; null where no row has an adapter.
  const AdaptedRows* adapted_tokens = nullptr;
  const AdaptedRows* adapted_logits = nullptr;

  const AdaptedRows* adapted(Rows kind) const { return kind == Rows::tokens ? adapted_tokens : adapted_logits; }
  int rows(Rows kind) const { return kind == Rows::tokens ? batch.rows() : batch.logits(); }

  // Runs body(row) for each row, on several threads if the work is large enough; `width` elements per row.
  template <class Body>
  void for_rows(int count, int width, Body&& body) const noexcept {
    static_assert(std::is_nothrow_invocable_v<Body&, int>, "a region can't throw: declare its body noexcept");
    constexpr int kElementsOfItem = 16384;
    const int chunk = kElementsOfItem / std::max(width, 1) + 1;
    pool.parallel((count + chunk - 1) / chunk, [&](int item, int) noexcept {
      for (int r = item * chunk; r < std::min(count, (item + 1) * chunk); ++r) body(r);
    });
  }
};

// Rows of fp32, the start of each aligned to 64 bytes.
struct Value {
  float* data;
  int width;
  size_t stride;
  Rows rows;  // the rows that it holds at this point of the program

  float* row(int r) const { return data + r * stride; }
};

struct Vector {
  const float* data = nullptr;
  int size = 0;
};

struct NormSpec {
  NormKind kind = NormKind::none;
  Vector gain, bias;
  float eps = 0;
};

struct RopeTable {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int positions = 0;
  int half = 0;
};

struct LinearSegment {
  const Matrix* matrix;
  Vector bias;
  int out;
};

// The Ops that are fused around a Linear, as in `Linear`; values by index, -1 for none.  A gated result goes to the
// first segment's out.
struct LinearSurroundings {
  NormSpec norm;
  Function function = Function::none;
  bool glu = false;
  float factor = 1;
  int residual = -1, outer = -1;
};

// The Ops that are fused around attention, and the options of its scores.
struct AttentionOptions {
  float scale = 1;
  int window = kNoWindow;
  bool chunked = false;  // a row attends from the last multiple of `window` on
  int table = 0;       // number of the sequence's block table: layers that keep as many positions share one
  bool causal = true;  // otherwise a row attends as far ahead as back, and nothing is kept
  float softcap = 0;
  Vector slopes;
  Vector biases;  // [heads][2 reach + 1]
  Vector sinks;   // [heads]
  RopeTable rope;
  NormSpec q_norm, k_norm;
  NormSpec head_norm;  // of queries and keys, after their rotation
  Vector tempers;      // [positions]: final factors of queries
};

// The operands of a scan, by index.
struct ScanValues {
  int x, b, c, dt;
};

struct ScanOptions {
  Vector rates, dt_bias, skip;  // [heads]
  float dt_least, dt_most;
  int states;
};

// The index by which a token's row of a table is looked up.
enum class RowIndex { position, type };

// A table with a row per token or position: fp32, or bf16.
struct StoredTable {
  const void* data;
  int rows, width;
  bool is_bf16;

  const void* row(size_t r) const {
    return static_cast<const char*>(data) + r * width * (is_bf16 ? sizeof(uint16_t) : sizeof(float));
  }
};

// Some rows of a batch, for one thread of the pool.
struct RowRange {
  int first, rows, thread;
};

// The routing by which cores combine the results of their own experts: the scores, the first expert of each core and
// the end of the last core's.
struct Slots {
  Value scores;
  std::vector<int> bounds;
  Routing routing;
};

// One Op.  `run` computes it; an exchange with other cores has its data here instead.  `run_rows`, if set, computes
// only the given rows: each depends on the same row of its operands only, or (`whole_sequences`) on the rows of its
// sequence, which are all given; it runs inside a region, for which `reserve_rows` reserves the memory of so many rows.
struct Step {
  enum class Kind { compute, send, receive, all_reduce, all_gather, gather_slots };
  Kind kind = Kind::compute;
  std::function<void(const Run&)> run;
  std::function<void(const Run&, const RowRange&)> run_rows;
  std::function<void(const Run&, int rows)> reserve_rows;
  bool whole_sequences = false;
  Value x{}, out{};
  int peer = -1;
  std::vector<int> group, widths;
  Slots slots{};
};

// The methods append Ops and throw std::invalid_argument for indices and shapes that don't fit.  What they point to
// must outlive the Program, which may `hold` it.
class Program {
 public:
  Program(std::vector<int> widths, int max_rows, bool round_bf16);

  void embed(int out, const StoredTable& table);
  // out = the batch's patch of each row, as wide as `out`.
  void patches(int out);
  // Replaces the rows at the first positions of a sequence by `rows`, [count, width].
  void first_rows(int out, Vector rows);
  void add_embedding(int x, int out, const StoredTable& table, RowIndex by, int offset);
  // groups: number of equal parts of the gain's width, each normalised by itself.
  void norm(int x, int out, const NormSpec& norm, int groups = 1);
  void linear(int x, const std::vector<LinearSegment>& segments, const LinearSurroundings& around);
  void rope(int x, int out, int head_dim, RopeTable table);
  // cache: of the keys and values; null for an attention without one.
  void attention(int q, int k, int v, int out, const KVCache* cache, int layer, int heads,
                 const AttentionOptions& options);
  // Attention over latents: `out` has each head's n elements of value_up; for q, latent and key_rope see
  // `LatentAttention`.
  void latent_attention(int q, int latent, int key_rope, int out, const KVCache& cache, int layer,
                        std::vector<LatentHead> heads, float scale, int table);
  void activate(Function function, int x, int out);
  void glu(Function function, int gate, int up, int out);
  // x limited to -limit .. limit.
  void clamp(int x, float limit, int out);
  // by: a value of width 1 whose rows also multiply the rows of x; -1 for none.
  void scale(int x, float factor, int by, int out);
  // first: the first expert of a core that has only some; `out` then has its results, by row and place.
  void experts(int x, int scores, int out, std::vector<Expert> experts, const Routing& routing, Function function,
               std::optional<int> first = std::nullopt);
  // The sum of the results of the group's cores; each has the experts from one of `bounds` to the next.
  void gather_slots(int x, int scores, int out, std::vector<int> group, std::vector<int> bounds, const Routing& routing);
  // weights: [taps][x's width].
  void convolve(int x, int out, Vector weights, Vector bias, Function function, StatePart part);
  void scan(const ScanValues& values, int out, const ScanOptions& options, StatePart part);
  void add(int a, int b, int out);
  void select_rows(int x, int out);
  // Pools each sequence into one row; a batch then has one logit row per sequence.
  void pool(Pooling pooling, int x, int out);
  void all_reduce(int x, int out, std::vector<int> group);
  void all_gather(int x, int out, std::vector<int> group, std::vector<int> widths);
  void send(int x, int peer, Rows rows);
  void receive(int out, int peer, Rows rows);

  // Keeps an object that Ops point into for as long as the Program lives.
  void hold(std::shared_ptr<void> object) { held_.push_back(std::move(object)); }

  // Forbids further Ops: an Executor has planned its run, in which this is the Program with this number.
  void freeze(int number) {
    frozen_ = true;
    number_ = number;
  }

  // Columns and elements of the matrices of `linear`, as adapters number them: as they were appended.
  const std::vector<std::pair<int, int>>& linear_shapes() const { return linear_shapes_; }

  const std::vector<Step>& steps() const { return steps_; }
  const Value& value(int index) const;
  int values() const { return static_cast<int>(values_.size()); }

  const int max_rows;
  const bool round_bf16;

  // Limits of batches; the largest int where there is none.
  int token_limit, position_limit, type_limit, block_size = 0;
  std::vector<int> block_limits;  // per block table of a sequence
  int patch_width = 0;  // 0: no patches are read
  bool reads_types = false;
  bool whole_sequences = false;  // each begins at position 0
  bool one_logit_row = false;    // of each sequence

 private:
  Value& at(int index);
  Value& write(int index, Rows rows, int64_t width);
  Step& append(std::function<void(const Run&)> run);
  Step& append_exchange(Step::Kind kind, const Value& x, const Value& out);
  template <class Body>
  void append_rows(Rows rows, int width, Body body);
  void keep(const StatePart& part, size_t elements);
  // The blocks of a cache are found in this table.
  void use_table(int table, int size_of_block, int blocks);
  KVLayer memory_of(const Value& q, const Value& k, const KVCache* cache, int layer, int heads, int table);
  Value addend(int index, const Value& x, int width);
  std::vector<Segment> segments_of(const Value& x, const std::vector<LinearSegment>& specs, bool glu);
  void limit_positions(const RopeTable& table, int head_dim);

  std::vector<Value> values_;
  std::unique_ptr<Arena> arena_;
  std::vector<Step> steps_;
  std::vector<std::shared_ptr<void>> held_;
  std::vector<std::pair<int, int>> linear_shapes_;
  bool frozen_ = false;
  int number_ = 0;
};

}  // namespace corepipe
