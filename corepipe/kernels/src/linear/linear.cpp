#include "linear/linear.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "executor/division.h"

namespace corepipe {

namespace {

constexpr int kBytesAhead = 7168;  // measured on Zen 4 and a Xeon with AMX

void check(const Linear& op) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(std::string("linear: ") + what);
  };
  require(op.segment_count >= 1, "needs a matrix");
  const Matrix& first = *op.segments[0].matrix;
  for (int s = 0; s < op.segment_count; ++s) {
    require(op.segments[s].matrix->kind == first.kind, "matrices differ in kind");
    require(op.segments[s].matrix->k == op.k, "a matrix's k is not the width of x");
  }
  require(op.residual == nullptr || (op.segment_count == 1 && !op.glu), "a residual goes with one matrix");
  require(op.outer == nullptr || op.residual != nullptr, "an outer residual goes with a residual");
  require(op.function == Function::none || (op.residual == nullptr && op.factor == 1.0f),
          "a function goes without a factor and a residual");
  require(!op.glu || (op.segment_count == 2 && op.segments[1].matrix->n == first.n), "glu takes two equal matrices");
}

// `rows` rows of a Linear, from `first` on; blocks count from there.
class LinearRun {
 public:
  LinearRun(const KernelTable& kernels, Scratch& scratch, const Linear& op, int first, int rows)
      : table_(kernels.linear),
        norm_(kernels.rows.norm),
        op_(op),
        scratch_(scratch),
        first_(first),
        rows_(rows),
        kind_(op.segments[0].matrix->kind),
        kernel_(table_.kinds[static_cast<int>(kind_)].of(rows)),
        groups_(op.segments[0].matrix->groups()),
        panel_bytes_(groups_ * storage_of(kind_).group_bytes()),
        blocks_((rows + kernel_.max_rows - 1) / kernel_.max_rows),
        adapters_(kernels, op, first, rows) {}

  // Where threads share the panels: how, and the numbers of the first block and piece among those of all runs.
  Division division{};
  int first_block = 0, first_piece = 0;
  const LinearKernel& kernel() const { return kernel_; }
  int blocks() const { return blocks_; }
  const AdapterRun& adapters() const { return adapters_; }
  // Of the prepared rows, and after these of what adapters need.
  size_t memory_bytes() const { return prepared_bytes() + adapters_.bytes(); }
  void place_at(uint8_t* memory) {
    prepared_ = memory;
    adapters_.place_at(memory + prepared_bytes());
  }
  int panel_count() const {
    int panels = 0;
    for (int s = 0; s < walked(); ++s) panels += op_.segments[s].matrix->panels();
    return panels;
  }

  void reserve_for(int thread) {
    scratch_.rows[thread].reserve(sizeof(float) * op_.k);
    scratch_.panels[thread].reserve(2 * unpacked_bytes());  // under glu there are two at a time
  }

  void prepare_block(int block, int thread) {
    const int start = block_start(block), count = block_start(block + 1) - start;
    for (int r = 0; r < count; ++r) {
      const int row = first_ + start + r;
      const float* x = op_.x + (op_.row_of == nullptr ? row : op_.row_of[row]) * op_.x_stride;
      if (op_.norm.kind != NormKind::none) {
        float* normed = adapters_.input(start + r);
        if (normed == nullptr) normed = reinterpret_cast<float*>(scratch_.rows[thread].data());
        norm_(op_.norm, x, op_.k, op_.round_bf16, normed);
        x = normed;
      }
      kernel_.prepare(x, op_.k, r, count, prepared_ + start * row_bytes());
    }
    adapters_.order(start, count);
  }

  void multiply_piece(int piece, int thread) {
    const Place place = place_of(piece / division.parts);
    const int part = piece % division.parts;
    multiply_panel(place, division.first_block(part), division.first_block(part + 1), thread);
  }

  // The memory that execute_on writes to, for any thread.
  void reserve_alone() {
    for (size_t t = 0; t < scratch_.blocks.size(); ++t) {
      scratch_.blocks[t].reserve(memory_bytes());
      reserve_for(static_cast<int>(t));
    }
  }

  // On the calling thread alone, inside a region.
  void execute_on(int thread) noexcept {
    place_at(scratch_.blocks[thread].data());
    for (int block = 0; block < blocks_; ++block) prepare_block(block, thread);
    for (int item = 0; item < adapters_.items(); ++item) adapters_.shrink(item);
    const Turn turn(kernel_.begin, kernel_.end);
    for (int panel = 0; panel < panel_count(); ++panel) multiply_panel(place_of(panel), 0, blocks_, thread);
  }

 private:
  // Blocks of nearly equal size: the first `units % blocks` have one unit more.
  int block_start(int block) const {
    const int units = row_units();
    return std::min(rows_, kernel_.row_unit * (block * (units / blocks_) + std::min(block, units % blocks_)));
  }

  size_t prepared_bytes() const { return (row_bytes() * row_units() * kernel_.row_unit + 63) / 64 * 64; }
  int row_units() const { return (rows_ + kernel_.row_unit - 1) / kernel_.row_unit; }
  size_t row_bytes() const { return static_cast<size_t>(groups_) * kernel_.row_group_bytes; }
  size_t unpacked_bytes() const { return static_cast<size_t>(groups_) * kernel_.panel_group_bytes; }

  // Segments that are processed one after the other; with glu the second is processed with the first.
  int walked() const { return op_.glu ? 1 : op_.segment_count; }

  struct Place {
    const Segment& segment;
    int panel;
  };

  // Of a panel, whose number counts over all segments.
  Place place_of(int panel) const {
    const Segment* segment = op_.segments;
    for (; panel >= segment->matrix->panels(); ++segment) panel -= segment->matrix->panels();
    return {*segment, panel};
  }

  // One panel, and with glu the same of the other matrix, times the rows of blocks [begin, end).
  void multiply_panel(const Place& place, int begin, int end, int thread) {
    const auto& [segment, panel] = place;
    const int next = panel + 1 == segment.matrix->panels() ? panel : panel + 1;  // comes after it
    alignas(64) float sums[2][kMaxBlockRows * kPanel];
    const Segment* up = op_.glu ? &op_.segments[1] : nullptr;
    uint8_t* unpacked = scratch_.panels[thread].data();
    const uint8_t* weights = ready_panel(segment, panel, unpacked);
    const uint8_t* up_weights = up == nullptr ? nullptr : ready_panel(*up, panel, unpacked + unpacked_bytes());
    scratch_.weights_read[thread].value += (up == nullptr ? 1 : 2) * panel_bytes_;
    for (int b = begin; b < end; ++b) {
      const int start = block_start(b), count = block_start(b + 1) - start;
      const uint8_t* x = prepared_ + start * row_bytes();
      Finish f = finish_of(segment, panel, start, count);
      fetch_output(f);
      f.sums = sums[0];
      kernel_.multiply(count, weights, x, groups_, sums[0], ahead(*segment.matrix, panel, next, b));
      if (adapters_.any()) adapt(segment, panel, start, count, sums[0], f.scale, f.bias);
      if (up != nullptr) {
        Finish g = finish_of(*up, panel, start, count);
        kernel_.multiply(count, up_weights, x, groups_, sums[1], ahead(*up->matrix, panel, next, b));
        if (adapters_.any()) adapt(*up, panel, start, count, sums[1], g.scale, g.bias);
        f.up_sums = sums[1];
        f.up_scale = g.scale;
        f.up_bias = g.bias;
      }
      table_.finish(f);
    }
  }

  // Sums to which adapters have added something are scaled already.
  void adapt(const Segment& segment, int panel, int start, int count, float* sums, const float*& scale,
             const float*& bias) {
    const int number = static_cast<int>(&segment - op_.segments);
    if (adapters_.expand(number, panel, start, count, scale, sums)) scale = bias = nullptr;
  }

  const uint8_t* ready_panel(const Segment& segment, int panel, uint8_t* unpacked) const {
    const uint8_t* packed = segment.matrix->panel(panel);
    if (kernel_.unpack == nullptr) return packed;
    kernel_.unpack(packed, groups_, unpacked);
    return unpacked;
  }

  // Memory should never be idle.  One block of few rows is through before a prefetch would help, and the
  // hardware keeps up; with more rows it does not look far enough ahead; of several blocks each brings in
  // its part of the next panel.
  Fetch ahead(const Matrix& matrix, int panel, int next, int block) const {
    const uint8_t* here = matrix.panel(panel);
    if (blocks_ > 1) return {matrix.panel(next) + panel_bytes_ * block / blocks_, blocks_};
    if (rows_ <= table_.unaided_rows) return {here, 0};
    return {matrix.panel_stride == panel_bytes_ ? here + kBytesAhead : matrix.panel(next), 1};
  }

  // Prefetches the data that finish will write and read: rows lie far apart, where the hardware prefetches nothing.
  // Inlined by force: GCC 12 drops calls of a function that does nothing but prefetch.
  __attribute__((always_inline)) static inline void fetch_output(const Finish& f) {
    for (int r = 0; r < f.rows; ++r) {
      for (int column = 0; column < f.n; column += 16) {
        __builtin_prefetch(f.out + r * f.out_stride + column, 1);
        if (f.residual != nullptr) __builtin_prefetch(f.residual + r * f.residual_stride + column);
        if (f.outer != nullptr) __builtin_prefetch(f.outer + r * f.outer_stride + column);
      }
    }
  }

  Finish finish_of(const Segment& segment, int panel, int start, int count) const {
    const int column = panel * kPanel;
    Finish f{};
    f.rows = count;
    f.n = std::min(kPanel, segment.matrix->n - column);
    f.round_bf16 = op_.round_bf16;
    f.scale = segment.matrix->scale == nullptr ? nullptr : segment.matrix->scale + column;
    f.bias = segment.bias == nullptr ? nullptr : segment.bias + column;
    if (op_.residual != nullptr) f.residual = op_.residual + (first_ + start) * op_.residual_stride + column;
    f.residual_stride = op_.residual_stride;
    if (op_.outer != nullptr) f.outer = op_.outer + (first_ + start) * op_.outer_stride + column;
    f.outer_stride = op_.outer_stride;
    f.function = op_.function;
    f.factor = op_.factor;
    f.out = segment.out + (first_ + start) * segment.out_stride + column;
    f.out_stride = segment.out_stride;
    return f;
  }

  const LinearTable& table_;
  decltype(RowTable::norm) const norm_;
  const Linear& op_;
  Scratch& scratch_;
  const int first_, rows_;
  const Kind kind_;
  const LinearKernel& kernel_;
  const int groups_;
  const int64_t panel_bytes_;
  const int blocks_;
  AdapterRun adapters_;
  uint8_t* prepared_ = nullptr;
};

// Runs on all threads, in one region: items are first the preparation of each block of rows, then the products with the
// first matrices of adapters, then for each thread a part of the pieces of all panels; each waits for the former.
class Region {
 public:
  Region(Pool& pool, Scratch& scratch, LinearRun* runs, int count)
      : pool_(pool), scratch_(scratch), runs_(runs), end_(runs + count) {
    for (LinearRun* run = runs_; run != end_; ++run) {
      const int panels = run->panel_count(), blocks = run->blocks();
      run->division = count == 1 ? divide(panels, blocks, pool.size()) : Division{panels, blocks, 1};
      run->first_block = blocks_;
      run->first_piece = pieces_;
      blocks_ += blocks;
      shrinks_ += run->adapters().items();
      pieces_ += run->division.pieces();
    }
  }

  void execute() {
    const int threads = pool_.size();
    for (int t = 0; t < threads; ++t) scratch_.parts[t].set(start_of(t), start_of(t + 1));
    reserve();
    pool_.parallel(blocks_ + shrinks_ + threads, [this](int item, int thread) noexcept {
      if (item < blocks_) {
        LinearRun& run = holder(&LinearRun::first_block, item);
        run.prepare_block(item - run.first_block, thread);
        ready_.fetch_add(1, std::memory_order_release);
      } else if (item < blocks_ + shrinks_) {
        await(blocks_);
        runs_->adapters().shrink(item - blocks_);  // a run with adapters is the only one
        ready_.fetch_add(1, std::memory_order_release);
      } else {
        await(blocks_ + shrinks_);
        multiply_part(item - blocks_ - shrinks_, thread);
      }
    });
  }

 private:
  int start_of(int part) const { return static_cast<int>(int64_t{pieces_} * part / pool_.size()); }

  void await(int items) const {
    spin_until([this, items] { return ready_.load(std::memory_order_acquire) >= items; });
  }

  void reserve() {
    size_t bytes = 0;
    for (LinearRun* run = runs_; run != end_; ++run) {
      bytes += run->memory_bytes();
      for (int t = 0; t < pool_.size(); ++t) run->reserve_for(t);
    }
    uint8_t* at = scratch_.activations.reserve(bytes);
    for (LinearRun* run = runs_; run != end_; ++run) {
      run->place_at(at);
      at += run->memory_bytes();
    }
  }

  // The run of an item, by the first item of each run.
  LinearRun& holder(int LinearRun::*first, int item) const {
    return *(std::upper_bound(runs_, end_, item, [first](int i, const LinearRun& run) { return i < run.*first; }) - 1);
  }

  // A part from its first piece on, for a long run through memory; then the others' from their last one back,
  // so that threads end together.
  void multiply_part(int part, int thread) {
    std::optional<Turn> turn;
    const LinearKernel* kernel = nullptr;
    const auto multiply = [&](int piece) {
      LinearRun& run = holder(&LinearRun::first_piece, piece);
      if (&run.kernel() != kernel) {
        kernel = &run.kernel();
        turn.emplace(kernel->begin, kernel->end);
      }
      run.multiply_piece(piece - run.first_piece, thread);
    };
    for (int p; (p = scratch_.parts[part].take_first()) >= 0;) multiply(p);
    for (int i = 1; i < pool_.size(); ++i) {
      for (int p; (p = scratch_.parts[(part + i) % pool_.size()].take_last()) >= 0;) multiply(p);
    }
  }

  Pool& pool_;
  Scratch& scratch_;
  LinearRun *const runs_, *const end_;
  int blocks_ = 0, shrinks_ = 0, pieces_ = 0;
  alignas(64) std::atomic<int> ready_{0};
};

}  // namespace

void linear(const KernelTable& kernels, Pool& pool, Scratch& scratch, const Linear& op) {
  check(op);
  if (op.rows == 0) return;
  LinearRun run(kernels, scratch, op, 0, op.rows);
  Region(pool, scratch, &run, 1).execute();
}

void linears(const KernelTable& kernels, Pool& pool, Scratch& scratch, const std::vector<Linear>& ops) {
  std::vector<LinearRun> runs;
  runs.reserve(ops.size());
  for (const Linear& op : ops) {
    check(op);
    runs.emplace_back(kernels, scratch, op, 0, op.rows);
  }
  if (!runs.empty()) Region(pool, scratch, runs.data(), static_cast<int>(runs.size())).execute();
}

void reserve_rows(const KernelTable& kernels, Scratch& scratch, const Linear& op, int rows) {
  check(op);
  LinearRun(kernels, scratch, op, 0, rows).reserve_alone();
}

void linear_rows(const KernelTable& kernels, Scratch& scratch, const Linear& op, int first, int rows,
                 int thread) noexcept {
  LinearRun(kernels, scratch, op, first, rows).execute_on(thread);
}

namespace {

// Sums of 64 of k, exact: with scale 1 they are whole numbers below 2^24.
class GroupSums {
 public:
  GroupSums(const LinearKernel& kernel, const Matrix& group) : kernel_(kernel), group_(group) {
    const int rows = (kernel.max_rows + kernel.row_unit - 1) / kernel.row_unit * kernel.row_unit;
    block_.reserve(static_cast<size_t>(rows) * kernel.row_group_bytes);
  }

  // x [rows][k], rows <= max_rows, of which the group's columns begin at x; out [rows][n].
  void add(const int8_t* x, int64_t k, int rows, int32_t* out) {
    for (int r = 0; r < rows; ++r) {
      int8_t q[kGroup] = {};
      std::copy_n(x + r * k, group_.k, q);
      kernel_.prepare_values(q, r, rows, block_.data());
    }
    for (int p = 0; p < group_.panels(); ++p) {
      alignas(64) float sums[kMaxBlockRows * kPanel];
      kernel_.multiply(rows, group_.panel(p), block_.data(), 1, sums, {group_.panel(p), 0});
      const int columns = std::min(kPanel, group_.n - p * kPanel);
      for (int r = 0; r < rows; ++r) {
        std::transform(sums + r * kPanel, sums + r * kPanel + columns,
                       out + static_cast<int64_t>(r) * group_.n + p * kPanel,
                       [](float sum) { return static_cast<int32_t>(sum); });
      }
    }
  }

 private:
  const LinearKernel& kernel_;
  const Matrix& group_;
  Buffer block_;
};

}  // namespace

void int8_accumulators(const KernelTable& kernels, const int8_t* x, int rows, const Matrix& matrix, int32_t* out) {
  if (matrix.kind != Kind::int8) throw std::invalid_argument("int8_accumulators: the matrix is not int8");
  const LinearKernel& kernel = kernels.linear.kinds[static_cast<int>(Kind::int8)].of(rows);
  const Turn turn(kernel.begin, kernel.end);
  for (int k0 = 0; k0 < matrix.k; k0 += kGroup) {
    const Matrix group = matrix.view(0, matrix.n, k0, std::min(kGroup, matrix.k - k0));
    GroupSums sums(kernel, group);
    for (int start = 0; start < rows; start += kernel.max_rows) {
      const int count = std::min(kernel.max_rows, rows - start);
      sums.add(x + static_cast<int64_t>(start) * matrix.k + k0, matrix.k, count, out);
      out += static_cast<int64_t>(count) * matrix.n;
    }
  }
}

}  // namespace corepipe
