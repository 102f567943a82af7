#include "executor/executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "executor/chain.h"
#include "executor/checked.h"

namespace corepipe {

namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void check_all(const int32_t* values, size_t count, int limit, const char* what) {
  for (const int32_t* value = values; value < values + count; ++value) {
    if (*value < 0 || *value >= limit) {
      throw std::invalid_argument(std::string(what) + " " + std::to_string(*value) + " is outside 0 .. " +
                                  std::to_string(limit - 1));
    }
  }
}

void check_all(const std::vector<int32_t>& values, int limit, const char* what) {
  check_all(values.data(), values.size(), limit, what);
}

// The sum of all members' rows, added in rank order in fp32 and rounded once.
void reduce_row(const Run& run, const Stop& stop, const std::vector<bool>& rounds, int row) {
  constexpr int kStretch = 512;
  const int width = stop.step->x.width;
  float sum[kStretch], rounded[kStretch];
  for (int at = 0; at < width; at += kStretch) {
    const int n = std::min(kStretch, width - at);
    std::memcpy(sum, stop.members[0]->x.row(row) + at, n * sizeof(float));
    for (size_t m = 1; m < stop.members.size(); ++m) {
      run.kernels.rows.add(sum, stop.members[m]->x.row(row) + at, sum, n, false);
    }
    run.kernels.rows.round(sum, rounded, n);
    for (size_t m = 0; m < stop.members.size(); ++m) {
      std::memcpy(stop.members[m]->out.row(row) + at, rounds[m] ? rounded : sum, n * sizeof(float));
    }
  }
}

void gather_row(const Stop& stop, int row) {
  for (const Step* to : stop.members) {
    float* out = to->out.row(row);
    for (size_t m = 0; m < stop.members.size(); ++m) {
      const int width = stop.step->widths[m];
      std::memcpy(out, stop.members[m]->x.row(row), width * sizeof(float));
      out += width;
    }
  }
}

// Of all members; their scores are equal.
Gathering gathering(const Run& run, const Stop& stop) {
  const Step& step = *stop.step;
  const Value& scores = step.slots.scores;
  Gathering op{};
  op.routing = step.slots.routing, op.experts = scores.width, op.rows = run.rows(step.x.rows);
  op.scores = scores.data, op.scores_stride = static_cast<int64_t>(scores.stride);
  op.bounds = &step.slots.bounds;
  for (const Step* member : stop.members) {
    op.parts.push_back(member->x.data);
    op.outs.push_back(member->out.data);
  }
  op.stride = static_cast<int64_t>(step.x.stride), op.out_stride = static_cast<int64_t>(step.out.stride);
  op.width = step.out.width;
  return op;
}

}  // namespace

Executor::Executor(std::shared_ptr<JobQueue> queue, std::vector<Program*> programs, int result, int width,
                   bool same_bits)
    : queue_(std::move(queue)),
      kernels_(same_bits ? same_bits_kernels() : kernels()),
      programs_(std::move(programs)),
      width_(width) {
  require(!programs_.empty(), "an Executor needs a Program");
  result_ = programs_.back()->value(result);
  require(width >= 1 && width <= result_.width, "the result is " + std::to_string(result_.width) +
                                                    " wide, wanted are " + std::to_string(width));
  max_rows_ = token_limit_ = position_limit_ = type_limit_ = std::numeric_limits<int>::max();
  block_size_ = patch_width_ = 0;
  for (Program* program : programs_) {
    max_rows_ = std::min(max_rows_, program->max_rows);
    token_limit_ = std::min(token_limit_, program->token_limit);
    position_limit_ = std::min(position_limit_, program->position_limit);
    type_limit_ = std::min(type_limit_, program->type_limit);
    const std::vector<int>& limits = program->block_limits;
    block_limits_.resize(std::max(block_limits_.size(), limits.size()), std::numeric_limits<int>::max());
    for (size_t t = 0; t < limits.size(); ++t) block_limits_[t] = std::min(block_limits_[t], limits[t]);
    reads_types_ = reads_types_ || program->reads_types;
    whole_sequences_ = whole_sequences_ || program->whole_sequences;
    one_logit_row_ = one_logit_row_ || program->one_logit_row;
    require(patch_width_ == 0 || program->patch_width == 0 || patch_width_ == program->patch_width,
            "the programs' patches differ in width");
    patch_width_ = std::max(patch_width_, program->patch_width);
    if (program->block_size == 0) continue;
    require(block_size_ == 0 || block_size_ == program->block_size, "the programs' caches differ in block_size");
    block_size_ = program->block_size;
  }
  course_ = lay_out(programs_);
  for (const Step* sender : course_.senders) {
    channels_.emplace_back(static_cast<size_t>(max_rows_) * sender->x.stride);
  }
  for (size_t p = 0; p < programs_.size(); ++p) programs_[p]->freeze(static_cast<int>(p));
}

// ---- checks of a batch

void Executor::check(const Batch& batch) const {
  const int rows = batch.rows();
  require(rows >= 1, "the batch has no rows");
  require(rows <= max_rows_, std::to_string(rows) + " rows exceed the programs' " + std::to_string(max_rows_));
  require(batch.positions.size() == batch.tokens.size(), "tokens and positions differ in length");
  require(batch.starts.size() >= 2 && batch.starts.front() == 0 && batch.starts.back() == rows,
          "sequence_starts must go from 0 to the number of rows");
  const size_t tables = block_limits_.size(), table_size = static_cast<size_t>(batch.sequences()) * batch.table_width;
  require(batch.tables.size() == tables * table_size,
          "block_tables needs a row for each sequence" + (tables == 1 ? "" : ", " + std::to_string(tables) + " times"));
  check_all(batch.tokens, token_limit_, "token");
  check_all(batch.positions, position_limit_, "position");
  require(batch.types.size() == (reads_types_ ? batch.tokens.size() : 0),
          reads_types_ ? "tokens and types differ in length" : "no program reads types");
  check_all(batch.types, type_limit_, "type");
  require(batch.patches.size() == static_cast<size_t>(rows) * patch_width_,
          patch_width_ == 0 ? "no program reads patches" : "there must be a patch for each row");
  for (size_t t = 0; t < tables; ++t) check_all(batch.table(static_cast<int>(t)), table_size, block_limits_[t], "block");
  check_all(batch.logit_rows, rows, "logit row");
  check_adapters(batch);
  for (int s = 0; s < batch.sequences(); ++s) check_sequence(batch, s);
  const auto unordered = std::adjacent_find(batch.logit_rows.begin(), batch.logit_rows.end(), std::greater_equal<>());
  require(unordered == batch.logit_rows.end(), "logit_rows must ascend");
  if (!one_logit_row_) return;
  require(batch.logits() == batch.sequences(), "there must be one logit row of each sequence");
  for (int s = 0; s < batch.sequences(); ++s) {
    const int row = batch.logit_rows[s];
    require(row >= batch.starts[s] && row < batch.starts[s + 1], "there must be one logit row of each sequence");
  }
}

void Executor::check_adapters(const Batch& batch) const {
  if (batch.adapters.empty()) return;
  require(batch.adapters.size() == batch.tokens.size(), "tokens and adapters differ in length");
  for (const int32_t slot : batch.adapters) {
    const bool known = slot == -1 || (slot >= 0 && static_cast<size_t>(slot) < batch.slots.size() && batch.slots[slot]);
    require(known, "there is no adapter in slot " + std::to_string(slot));
  }
}

void Executor::check_sequence(const Batch& batch, int sequence) const {
  const int begin = batch.starts[sequence], end = batch.starts[sequence + 1];
  require(begin < end && end <= batch.rows(), "each sequence needs a row, and sequence_starts must ascend");
  for (int r = begin + 1; r < end; ++r) {
    require(batch.positions[r] == batch.positions[r - 1] + 1, "the rows of a sequence must be at consecutive positions");
  }
  require(!whole_sequences_ || batch.positions[begin] == 0, "a sequence must be whole: its rows begin at position 0");
  const int last = batch.positions[end - 1];
  require(block_size_ == 0 || last / block_size_ < batch.table_width,
          "position " + std::to_string(last) + " lies beyond the sequence's blocks");
}

std::shared_ptr<Job> Executor::submit(Batch batch, std::optional<Sampling> sampling) {
  if (!batch.adapters.empty()) batch.slots = adapters_;
  check(batch);
  if (sampling) check_sampling(*sampling, batch.logits(), width_);
  auto job = std::make_shared<Job>();
  job->executor = this;
  job->batch = std::move(batch);
  job->wanted_masks = sampling ? sampling->masks() : 0;
  job->sampling = std::move(sampling);
  queue_->push(job);
  return job;
}

std::shared_ptr<Job> Executor::go_on(const std::shared_ptr<Job>& before, std::vector<int32_t> ends) {
  require(before->executor == this && before->sampling, "a batch goes on from one of this executor that draws tokens");
  auto job = std::make_shared<Job>();
  job->executor = this;
  job->batch = next_rows(before->batch);
  job->sampling = next_draws(*before->sampling);
  check(job->batch);
  job->before = before;
  job->ends = std::move(ends);
  queue_->push(job);
  return job;
}

void Executor::give_masks(Job& job, std::vector<uint32_t> masks) {
  require(job.wanted_masks > 0, "the batch has no masked rows");
  require(masks.size() == job.wanted_masks * mask_words(width_),
          "there must be a mask of " + std::to_string(mask_words(width_)) + " words for each of " +
              std::to_string(job.wanted_masks) + " rows");
  queue_->give_masks(job, std::move(masks));
}

void Executor::set_adapter(int slot, std::shared_ptr<const Adapter> adapter) {
  constexpr int kMostSlots = 4096;
  require(slot >= 0 && slot < kMostSlots, "slots of adapters are 0 .. " + std::to_string(kMostSlots - 1));
  if (adapter) {
    for (const auto& [core, number] : adapter->places()) {
      require(static_cast<size_t>(core) < programs_.size(), "the adapter has more cores than the executor");
      const auto& shapes = programs_[core]->linear_shapes();
      require(static_cast<size_t>(number) < shapes.size(), "the adapter has more Linears than the program");
      const AdapterMatrices& own = *adapter->find(core, number);
      require(shapes[number] == std::make_pair(own.n, own.k), "an adapter's matrices have the sizes of its Linear");
    }
  }
  if (adapters_.size() <= static_cast<size_t>(slot)) adapters_.resize(slot + 1);
  adapters_[slot] = std::move(adapter);
}

void Executor::watch(std::function<void(int)> hook) {
  std::lock_guard<std::mutex> lock(hook_mutex_);
  hook_ = std::move(hook);
}

// ---- running

namespace {

// The rows of a batch with adapters.
struct Adapted {
  AdaptedRows tokens, logits;

  explicit Adapted(const Batch& batch) {
    std::vector<const Adapter*> adapters;
    for (const auto& adapter : batch.slots) adapters.push_back(adapter.get());
    std::vector<int32_t> of_logits;
    for (const int32_t row : batch.logit_rows) of_logits.push_back(batch.adapters[row]);
    tokens = AdaptedRows::of(batch.adapters, adapters);
    logits = AdaptedRows::of(of_logits, adapters);
  }
};

}  // namespace

void Executor::run(Job& job) {
  const int64_t start = now_ns();
  JobQueue& queue = *queue_;
  const int64_t read = queue.scratch_.weight_bytes();
  Run run{kernels_, queue.pool_, queue.scratch_, queue.attention_, queue.experts_, queue.latents_, job.batch};
  std::optional<Adapted> adapted;
  if (!job.batch.adapters.empty()) {
    adapted.emplace(job.batch);
    run.adapted_tokens = &adapted->tokens;
    run.adapted_logits = &adapted->logits;
  }
  queue.attention_.start(job.batch);
  go(run, job);
  finish(run, job);
  job.weight_bytes = queue.scratch_.weight_bytes() - read;
  job.scratch_bytes = queue.scratch_.bytes() + queue.experts_.bytes();
  job.seconds = static_cast<double>(now_ns() - start) * 1e-9;
}

void Executor::go(const Run& run, Job& job) {
  std::function<void(int)> hook;
  {
    std::lock_guard<std::mutex> lock(hook_mutex_);
    hook = hook_;
  }
  int core = -1;
  for (size_t at = 0; at < course_.stops.size();) {
    const Stop& stop = course_.stops[at];
    if (stop.program != core) {
      core = stop.program;
      if (hook) hook(core);
      const int64_t now = now_ns();
      if (!job.spans.empty()) job.spans.back().end_ns = now;
      job.spans.push_back({core, now, now});
    }
    const Chain chain = chain_at(run, course_.stops, at);
    if (chain.steps > 0) {
      pass_chain(run, &stop, chain);
    } else {
      pass(run, stop);
    }
    at += std::max(chain.steps, 1);
    run.pool.beat();
  }
  if (!job.spans.empty()) job.spans.back().end_ns = now_ns();
}

void Executor::pass(const Run& run, const Stop& stop) {
  const Step& step = *stop.step;
  switch (step.kind) {
    case Step::Kind::compute: step.run(run); break;
    case Step::Kind::send:
      std::memcpy(channels_[stop.channel].data(), step.x.data, run.rows(step.x.rows) * step.x.stride * sizeof(float));
      break;
    case Step::Kind::receive:
      std::memcpy(step.out.data, channels_[stop.channel].data(),
                  run.rows(step.out.rows) * step.out.stride * sizeof(float));
      break;
    case Step::Kind::all_reduce: {
      std::vector<bool> rounds;
      for (int member : step.group) rounds.push_back(programs_[member]->round_bf16);
      run.for_rows(run.rows(step.x.rows), step.x.width, [&](int row) noexcept { reduce_row(run, stop, rounds, row); });
      break;
    }
    case Step::Kind::all_gather:
      run.for_rows(run.rows(step.x.rows), step.out.width, [&](int row) noexcept { gather_row(stop, row); });
      break;
    case Step::Kind::gather_slots: {
      Gathering op = gathering(run, stop);
      op.round_bf16 = programs_[stop.program]->round_bf16;
      run.experts.gather(run, op);
      break;
    }
  }
}

void Executor::finish(const Run& run, Job& job) {
  // Tokens are sampled for the logit rows; without sampling all rows are the result.
  const bool by_number = job.sampling && result_.rows == Rows::tokens;
  std::vector<const float*> rows;
  for (int i = 0; i < run.rows(job.sampling ? Rows::logits : result_.rows); ++i) {
    rows.push_back(result_.row(by_number ? job.batch.logit_rows[i] : i));
  }
  if (job.sampling) {
    if (job.wanted_masks > 0) queue_->await_masks(job);
    job.drawn = queue_->sampler_.run(run.kernels, run.pool, rows, width_, *job.sampling, job.masks);
    return;
  }
  job.values.resize(rows.size() * width_);
  run.for_rows(static_cast<int>(rows.size()), width_, [&](int row) noexcept {
    std::memcpy(job.values.data() + static_cast<size_t>(row) * width_, rows[row], width_ * sizeof(float));
  });
}

}  // namespace corepipe
