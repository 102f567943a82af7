#include "attention/attention.h"

#include <algorithm>

#include "executor/kv_cache.h"

namespace corepipe {

namespace {

constexpr int kRowsOfItem = 48;       // tokens times heads: their sums stay in the second-level cache
constexpr int kRowsOfLatents = 64;    // a block's values are transposed for an item; their sums stay there, too
constexpr int kWriteTokens = 64;
constexpr int kPartsPerThread = 3;    // an item that costs more than its share of this is split along the keys
constexpr double kWorthThreads = 32;  // below this, waking other threads takes longer than the work

int tokens_of_item(const AttentionCall& call) {
  if (call.cache.shared > 0) return std::max(1, kRowsOfLatents / call.group);
  return std::max(1, kRowsOfItem * 64 / (std::max(64, call.cache.width) * call.group));
}

int oldest_seen(const AttentionCall& call, int position) {
  if (call.chunked) return position - position % call.window;
  return call.window <= position ? position - call.window + 1 : 0;
}

int newest_seen(const AttentionCall& call, int position, int end) {
  return call.ahead < end - position ? position + call.ahead : end - 1;
}

void find_segments(const AttentionCall& call, AttentionItem& item) {
  const int first = call.positions[item.row];
  item.segment = oldest_seen(call, first) / kKeySegment;
  item.segment_end = newest_seen(call, first + item.rows - 1, item.end) / kKeySegment + 1;
}

// Blocks of keys that are read, weighted by the work on each.
double cost_of(const AttentionCall& call, const AttentionItem& item) {
  const int first = call.positions[item.row];
  const int begin = std::max(oldest_seen(call, first), item.segment * kKeySegment);
  const int newest = newest_seen(call, first + item.rows - 1, item.end);
  const int end = std::min(newest + 1, item.segment_end * kKeySegment);
  const double blocks = (end - begin) / static_cast<double>(kKeyBlock);
  const double wider = call.cache.shared > 0 ? (call.cache.width + call.cache.shared) / 128.0 : 1.0;
  return blocks * wider * (4.0 + item.rows * call.group);
}

// Does a sequence read blocks that another one writes in this batch?  (A scheduler may let a request share
// a prefix that is being computed.)
bool reads_fresh_blocks(const AttentionCall& call, const Batch& batch) {
  const int block_size = call.cache.groups_per_block * kKeyGroup;
  const size_t places = static_cast<size_t>(batch.sequences()) * batch.table_width;
  std::vector<bool> fresh(*std::max_element(call.tables, call.tables + places) + 1);
  for (int s = 0; s < batch.sequences(); ++s) {
    const int32_t* table = call.tables + static_cast<size_t>(s) * batch.table_width;
    const int last = batch.positions[batch.starts[s + 1] - 1];
    for (int b = batch.positions[batch.starts[s]] / block_size; b <= last / block_size; ++b) fresh[table[b]] = true;
  }
  for (int s = 0; s < batch.sequences(); ++s) {
    const int32_t* table = call.tables + static_cast<size_t>(s) * batch.table_width;
    const int first = batch.positions[batch.starts[s]];
    for (int b = oldest_seen(call, first) / block_size; b < first / block_size; ++b) {
      if (fresh[table[b]]) return true;
    }
  }
  return false;
}

// Rows of a sequence, and the first of them in q.
struct Queries {
  int row, rows, query;
};

// The rows with queries: all of a sequence's, or runs of the requested ones.
std::vector<Queries> queries_of(const Batch& batch, int sequence, bool wanted) {
  const int begin = batch.starts[sequence], end = batch.starts[sequence + 1];
  if (!wanted) return {{begin, end - begin, begin}};
  std::vector<Queries> runs;
  const std::vector<int32_t>& rows = batch.logit_rows;
  for (auto at = std::lower_bound(rows.begin(), rows.end(), begin); at != rows.end() && *at < end; ++at) {
    if (runs.empty() || runs.back().row + runs.back().rows != *at) {
      runs.push_back({*at, 0, static_cast<int>(at - rows.begin())});
    }
    ++runs.back().rows;
  }
  return runs;
}

// Calls body(item, rows) for each run of a batch's queries and each head, with an item of their first row.
template <class Body>
void for_runs(const AttentionCall& call, const Batch& batch, Body body) {
  for (int s = 0; s < batch.sequences(); ++s) {
    AttentionItem item{};
    item.sequence = s, item.end = batch.positions[batch.starts[s + 1] - 1] + 1;
    const std::vector<Queries> runs = queries_of(batch, s, call.wanted);
    for (item.head = 0; item.head < call.kv_heads; ++item.head) {
      for (const Queries& run : runs) {
        item.row = run.row, item.query = run.query;
        body(item, run.rows);
      }
    }
  }
}

// Calls body(item) for each `most` of the `rows` rows from the item's first on, with the segments that they see.
template <class Body>
void for_parts(const AttentionCall& call, AttentionItem item, int rows, int most, Body body) {
  for (const int last = item.row + rows; item.row < last; item.row += most, item.query += most) {
    item.rows = std::min(most, last - item.row);
    find_segments(call, item);
    body(item);
  }
}

Turn turn_of(const KernelTable& kernels, const AttentionCall& call) {
  const AttentionTable& table = kernels.attention;
  return call.cache.fp32 ? Turn(nullptr, nullptr) : Turn(table.begin_bf16, table.end_bf16);
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionCall& call, const Batch& batch, int threads)
    : made_for_(call), tokens_(tokens_of_item(call)) {
  if (!call.keeps) {
    int longest = 0;
    for (int s = 0; s < batch.sequences(); ++s) longest = std::max(longest, batch.starts[s + 1] - batch.starts[s]);
    for (int g = 0; g * kKeyGroup < longest; ++g) groups_.push_back(g);
    return;
  }
  for_runs(call, batch, [&](const AttentionItem& first, int rows) {
    for_parts(call, first, rows, tokens_, [&](const AttentionItem& item) {
      wholes_.push_back({item, 1, cost_of(call, item)});
    });
  });
  choose_parts(threads);
  const bool latents = call.cache.shared > 0;
  add_writes(batch, latents, (latents && call.kv_heads > 1) || reads_fresh_blocks(call, batch));
  for (int w = 0; w < static_cast<int>(wholes_.size()); ++w) split(call, w);
  sort_parts();
  missing_ = std::make_unique<std::atomic<int>[]>(wholes_.size());
}

bool AttentionPlan::fits(const AttentionCall& call) const {
  const AttentionCall& own = made_for_;
  return call.kv_heads == own.kv_heads && call.group == own.group && call.cache.width == own.cache.width &&
         call.cache.value_width() == own.cache.value_width() && call.window == own.window &&
         call.chunked == own.chunked && call.ahead == own.ahead && call.tables == own.tables &&
         call.wanted == own.wanted;
}

// A head of a sequence is an item, whose keys and values a thread lays out for itself; if there are few heads, an item
// is some of its rows, and several threads lay out the same keys.
void AttentionPlan::add_own(const AttentionCall& call, const Batch& batch, int threads) {
  const int heads = batch.sequences() * call.kv_heads;
  const int cuts = (threads * kPartsPerThread + heads - 1) / heads;
  for_runs(call, batch, [&](const AttentionItem& first, int rows) {
    const int most = threads == 1 ? rows : std::max(tokens_, (rows + cuts - 1) / cuts);
    for_parts(call, first, rows, most, [&](const AttentionItem& item) {
      parts_.push_back({item, -1, cost_of(call, item)});
    });
  });
  sort_parts();
}

void AttentionPlan::sort_parts() {
  std::stable_sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) { return a.cost > b.cost; });
}

// Floats of the sums of one segment of an item.
size_t AttentionPlan::floats_of(const AttentionItem& item) const {
  return item.rows * made_for_.group * state_floats(made_for_.cache.value_width());
}

void AttentionPlan::choose_parts(int threads) {
  double total = 0;
  for (const Whole& whole : wholes_) total += whole.cost;
  if (threads == 1 || total < kWorthThreads) return;
  const double share = total / (threads * kPartsPerThread);
  size_t floats = 0;
  for (Whole& whole : wholes_) {
    const int segments = whole.item.segment_end - whole.item.segment;
    whole.parts = std::clamp(static_cast<int>(whole.cost / share), 1, segments);
    if (whole.parts > 1) floats += segments * floats_of(whole.item);
  }
  partials_.resize(floats);
  float* at = partials_.data();
  for (Whole& whole : wholes_) {
    if (whole.parts == 1) continue;
    whole.item.partial = at;
    at += (whole.item.segment_end - whole.item.segment) * floats_of(whole.item);
  }
}

void AttentionPlan::split(const AttentionCall& call, int index) {
  const Whole& whole = wholes_[index];
  const int segments = whole.item.segment_end - whole.item.segment;
  for (int p = 0; p < whole.parts; ++p) {
    AttentionItem item = whole.item;
    const int first = segments * p / whole.parts;
    item.segment = whole.item.segment + first;
    item.segment_end = whole.item.segment + segments * (p + 1) / whole.parts;
    if (item.partial != nullptr) item.partial += first * floats_of(item);
    parts_.push_back({item, index, cost_of(call, item)});
  }
}

// A sequence with a single item stores its keys and values there; the others store them before, and so do all sequences
// if one reads blocks that another writes.
void AttentionPlan::add_writes(const Batch& batch, bool latents, bool all_beforehand) {
  const size_t kv_heads = made_for_.kv_heads;
  std::vector<bool> stored(batch.sequences() * kv_heads);
  for (Whole& whole : wholes_) {
    AttentionItem& item = whole.item;
    const int rows = batch.starts[item.sequence + 1] - batch.starts[item.sequence];
    item.writes = !all_beforehand && whole.parts == 1 && item.rows == rows;
    if (item.writes) stored[item.sequence * kv_heads + item.head] = true;
  }
  const size_t heads = latents ? 1 : kv_heads;  // all heads have the same
  for (size_t i = 0; i < stored.size(); ++i) {
    const int sequence = static_cast<int>(i / kv_heads), head = static_cast<int>(i % kv_heads);
    if (i % kv_heads < heads && !stored[i]) add_write(batch, sequence, head);
  }
}

// Cut at multiples of kWriteTokens: storing an even position clears the odd one after it, which must not be another
// thread's.
void AttentionPlan::add_write(const Batch& batch, int sequence, int head) {
  AttentionItem write{};
  write.sequence = sequence, write.head = head;
  const int end = batch.starts[sequence + 1];
  for (write.row = batch.starts[sequence]; write.row < end; write.row += write.rows) {
    const int room = kWriteTokens - batch.positions[write.row] % kWriteTokens;
    write.rows = std::min(room, end - write.row);
    writes_.push_back(write);
  }
}

void AttentionPlan::reserve(const KernelTable& kernels, const AttentionCall& given, Buffer& scratch,
                            Buffer& memory) const {
  const AttentionCall call = given.keeps ? given : with_memory(kernels, given);
  scratch.reserve(kernels.attention.scratch_bytes(call, tokens_));
  memory.reserve(groups_.size() * call.cache.group_bytes);
}

void AttentionPlan::run(const KernelTable& kernels, Pool& pool, const AttentionCall& given, const Batch& batch,
                        std::vector<Buffer>& scratch, std::vector<Buffer>& memory) {
  if (!given.keeps && parts_.empty()) add_own(given, batch, pool.size());
  const AttentionCall call = given.keeps ? given : with_memory(kernels, given);
  for (int t = 0; t < pool.size(); ++t) reserve(kernels, given, scratch[t], memory[t]);
  pool.parallel(static_cast<int>(writes_.size()), [&](int i, int) noexcept {
    const AttentionItem& w = writes_[i];
    kernels.attention.write(call, w.sequence, w.row, w.rows, w.head);
  });
  next_.store(0, std::memory_order_relaxed);
  for (size_t w = 0; w < wholes_.size(); ++w) missing_[w].store(wholes_[w].parts, std::memory_order_relaxed);
  double cost = 0;
  for (const Part& part : parts_) cost += part.cost;
  const int threads = cost < kWorthThreads ? 1 : std::min<int>(pool.size(), static_cast<int>(parts_.size()));
  pool.parallel(threads, [&](int, int thread) noexcept {
    if (call.keeps) return attend_all(kernels, call, scratch[thread].data());
    attend_own(kernels, call, scratch[thread].data(), memory[thread]);
  });
}

// The call over a thread's own memory, which holds a head of one sequence at a time.
AttentionCall AttentionPlan::with_memory(const KernelTable& kernels, const AttentionCall& call) const {
  AttentionCall own = call;
  own.wide = kernels.attention.widens && !call.cache.fp32;
  own.cache = layer_of(call.head_dim, call.cache.fp32 || own.wide);
  own.values_in_place = own.cache.fp32 && own.cache.width == call.head_dim;
  if (own.values_in_place) own.cache.group_bytes /= 2;
  own.tables = groups_.data();
  own.table_width = 0;  // all sequences share it
  return own;
}

const AttentionPlan::Part* AttentionPlan::take() {
  const int index = next_.fetch_add(1, std::memory_order_relaxed);
  return index < static_cast<int>(parts_.size()) ? &parts_[index] : nullptr;
}

// Takes each part in advance, so that its first keys can be fetched while the last part is multiplied.
void AttentionPlan::attend_all(const KernelTable& kernels, const AttentionCall& call, void* scratch) {
  const Turn turn = turn_of(kernels, call);
  const Part* part = take();
  while (part != nullptr) {
    const Part* following = take();
    kernels.attention.attend(call, part->item, following != nullptr ? &following->item : nullptr, scratch);
    if (part->item.partial != nullptr) finish_part(kernels, call, *part);
    part = following;
  }
}

void AttentionPlan::attend_own(const KernelTable& kernels, AttentionCall call, void* scratch, Buffer& memory) {
  const Turn turn = turn_of(kernels, call);
  call.cache.base = reinterpret_cast<char*>(memory.data());
  while (const Part* part = take()) attend_alone(kernels.attention, call, part->item, scratch);
}

// Runs an item, whose keys and values are first laid out in the call's memory.
void AttentionPlan::attend_alone(const AttentionTable& table, const AttentionCall& given, const AttentionItem& item,
                                 void* scratch) const {
  AttentionCall call = given;
  const int first = item.row - call.positions[item.row];
  if (call.values_in_place) call.v += first * call.v_stride;
  table.write(call, item.sequence, first, item.end, item.head);
  for_parts(call, item, item.rows, tokens_, [&](const AttentionItem& part) {
    table.attend(call, part, nullptr, scratch);
  });
}

void AttentionPlan::run_sequences(const KernelTable& kernels, const AttentionCall& given, const Batch& batch, int first,
                                  int end, void* scratch, Buffer& memory) const noexcept {
  AttentionCall call = with_memory(kernels, given);
  const Turn turn = turn_of(kernels, call);
  call.cache.base = reinterpret_cast<char*>(memory.data());
  for (int s = first; s < end; ++s) {
    AttentionItem item{};
    item.sequence = s, item.row = item.query = batch.starts[s];
    item.rows = item.end = batch.starts[s + 1] - batch.starts[s];
    for (item.head = 0; item.head < call.kv_heads; ++item.head) attend_alone(kernels.attention, call, item, scratch);
  }
}

// The thread with the last part adds them up.
void AttentionPlan::finish_part(const KernelTable& kernels, const AttentionCall& call, const Part& part) {
  if (missing_[part.whole].fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  kernels.attention.combine(call, wholes_[part.whole].item);
}

void Attention::start(const Batch& batch) {
  batch_ = &batch;
  plans_.clear();
}

AttentionPlan* Attention::find(const AttentionCall& call) const {
  const auto plan = std::find_if(plans_.begin(), plans_.end(), [&](const auto& p) { return p->fits(call); });
  return plan == plans_.end() ? nullptr : plan->get();
}

AttentionPlan& Attention::plan_of(const AttentionCall& call, int threads) {
  if (AttentionPlan* plan = find(call)) return *plan;
  plans_.push_back(std::make_unique<AttentionPlan>(call, *batch_, threads));
  return *plans_.back();
}

void Attention::run(const KernelTable& kernels, Pool& pool, const AttentionCall& call) {
  plan_of(call, pool.size()).run(kernels, pool, call, *batch_, scratch_, memory_);
}

void Attention::reserve(const KernelTable& kernels, int threads, const AttentionCall& call) {
  const AttentionPlan& plan = plan_of(call, threads);
  for (int t = 0; t < threads; ++t) plan.reserve(kernels, call, scratch_[t], memory_[t]);
}

void Attention::run_sequences(const KernelTable& kernels, const AttentionCall& call, int first, int rows,
                              int thread) noexcept {
  const std::vector<int32_t>& starts = batch_->starts;
  const auto sequence = [&](int row) {
    return static_cast<int>(std::lower_bound(starts.begin(), starts.end(), row) - starts.begin());
  };
  find(call)->run_sequences(kernels, call, *batch_, sequence(first), sequence(first + rows), scratch_[thread].data(),
                            memory_[thread]);
}

}  // namespace corepipe
