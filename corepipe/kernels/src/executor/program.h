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

// A batch on its way through the Ops.
struct Run {
  const KernelTable& kernels;
  Pool& pool;
  Scratch& scratch;
  Attention& attention;
  Experts& experts;
  Latents& latents;
  const Batch& batch;

  int rows(Rows kind) const { return kind == Rows::tokens ? batch.rows() : batch.logits(); }

  // body(row) for each row, on several threads where that is worth while; `width` elements a row.
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
  Rows rows;  // what it holds at this point of the program

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

// What is fused around a Linear, as `Linear` has it; values by index, -1 for none.  A gated result goes to the first
// segment's out.
struct LinearSurroundings {
  NormSpec norm;
  Function function = Function::none;
  bool glu = false;
  float factor = 1;
  int residual = -1, outer = -1;
};

// What is fused around attention, and what becomes of its scores.
struct AttentionOptions {
  float scale = 1;
  int window = kNoWindow;
  bool chunked = false;  // a row sees from the last multiple of `window` on
  int table = 0;       // which of a sequence's block tables: layers that keep as many positions share one
  bool causal = true;  // otherwise a row sees as far ahead as back, and nothing is kept
  float softcap = 0;
  Vector slopes;
  Vector biases;  // [heads][2 reach + 1]
  Vector sinks;   // [heads]
  RopeTable rope;
  NormSpec q_norm, k_norm;
  NormSpec head_norm;  // of both, once they are rotated
  Vector tempers;      // [positions]: what queries are multiplied by in the end
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

// By what a token finds its row of a table.
enum class RowIndex { position, type };

// A table of which each token takes a row: fp32, or bf16.
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

// What cores that have some of a mixture's experts each go by when they put their results together: the scores, and the
// first expert of each core and the end of the last one's.
struct Slots {
  Value scores;
  std::vector<int> bounds;
  Routing routing;
};

// One Op.  `run` computes; a step that meets other cores has its data here instead.  `run_rows`, where there
// is one, computes those rows alone, of which each depends on the same row of its operands only, or (`whole_sequences`)
// on those of its sequence, all of which are among them; it runs inside a region, for which `reserve_rows` reserves what
// so many rows need.
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

// The methods append Ops and throw std::invalid_argument for indices and shapes that don't fit.  What
// they point to must outlive the Program.
class Program {
 public:
  Program(std::vector<int> widths, int max_rows, bool round_bf16);

  void embed(int out, const StoredTable& table);
  // What the batch brings for each row, as wide as `out`.
  void patches(int out);
  // Rows at the first positions of a sequence are those of `rows`, [count, width], instead of what they were.
  void first_rows(int out, Vector rows);
  void add_embedding(int x, int out, const StoredTable& table, RowIndex by, int offset);
  // groups: of how many equal parts of what is as wide as the gain each is normalised by itself.
  void norm(int x, int out, const NormSpec& norm, int groups = 1);
  void linear(int x, const std::vector<LinearSegment>& segments, const LinearSurroundings& around);
  void rope(int x, int out, int head_dim, RopeTable table);
  // cache: of what is kept; null where that is nothing.
  void attention(int q, int k, int v, int out, const KVCache* cache, int layer, int heads,
                 const AttentionOptions& options);
  // Of latents: `out` has each head's value_up's n elements; what q, latent and key_rope are, `LatentAttention` says.
  void latent_attention(int q, int latent, int key_rope, int out, const KVCache& cache, int layer,
                        std::vector<LatentHead> heads, float scale, int table);
  void activate(Function function, int x, int out);
  void glu(Function function, int gate, int up, int out);
  // x where it is within -limit .. limit, else that bound.
  void clamp(int x, float limit, int out);
  // by: a value of width 1 whose rows x's are multiplied by, too; -1 for none.
  void scale(int x, float factor, int by, int out);
  // first: of a core that has only some of those that there are scores for; `out` then has its results, by row and place.
  void experts(int x, int scores, int out, std::vector<Expert> experts, const Routing& routing, Function function,
               std::optional<int> first = std::nullopt);
  // The sum of the results that the group's cores have of their experts: from one of `bounds` to the next.
  void gather_slots(int x, int scores, int out, std::vector<int> group, std::vector<int> bounds, const Routing& routing);
  // weights: [taps][x's width].
  void convolve(int x, int out, Vector weights, Vector bias, Function function, StatePart part);
  void scan(const ScanValues& values, int out, const ScanOptions& options, StatePart part);
  void add(int a, int b, int out);
  void select_rows(int x, int out);
  // One row of each sequence's; a batch then has one logit row of each.
  void pool(Pooling pooling, int x, int out);
  void all_reduce(int x, int out, std::vector<int> group);
  void all_gather(int x, int out, std::vector<int> group, std::vector<int> widths);
  void send(int x, int peer, Rows rows);
  void receive(int out, int peer, Rows rows);

  // No Op is added from now on: an Executor has laid out its course.
  void freeze() { frozen_ = true; }

  const std::vector<Step>& steps() const { return steps_; }
  const Value& value(int index) const;
  int values() const { return static_cast<int>(values_.size()); }

  const int max_rows;
  const bool round_bf16;

  // What batches are checked against; the largest int where there is no limit.
  int token_limit, position_limit, type_limit, block_size = 0;
  std::vector<int> block_limits;  // of each of the block tables that a sequence has
  int patch_width = 0;  // 0: none are read
  bool reads_types = false;
  bool whole_sequences = false;  // each begins at position 0
  bool one_logit_row = false;    // of each sequence

 private:
  Value& at(int index);
  Value& write(int index, Rows rows, int64_t width);
  Step& append(std::function<void(const Run&)> run);
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
  bool frozen_ = false;
};

}  // namespace corepipe
