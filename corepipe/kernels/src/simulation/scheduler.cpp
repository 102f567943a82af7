#include "simulation/scheduler.h"

#include <algorithm>
#include <stdexcept>

namespace corepipe::sim {

namespace {

// See `derive_seed` in corepipe/engine/batch/arrays.py.
uint64_t derived_seed(uint64_t seed, uint64_t number) {
  uint64_t z = seed + (number + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

Request& Scheduler::fresh() {
  if (unused_.empty()) {
    requests_.emplace_back();
    return requests_.back();
  }
  Request& request = *unused_.back();
  unused_.pop_back();
  Request empty;
  empty.table.swap(request.table);  // their memory is used again
  empty.segments.swap(request.segments);
  empty.keys.swap(request.keys);
  request = std::move(empty);
  request.table.clear();
  request.segments.clear();
  request.keys.clear();
  return request;
}

Admission Scheduler::add(Request& request) {
  const int prompt = request.prompt, most = request.most_tokens;
  bool valid = prompt >= 1 && most >= 0 && prompt < limits_.longest + (most == 0);
  valid = valid && prompt <= limits_.most_waiting_tokens;
  if (valid) {
    // The last token that is generated is never computed: nothing follows it.
    valid = kv_.blocks_for(most_tokens(request) - (most > 0)) <= limits_.blocks;
  }
  const bool full = waiting() >= limits_.most_waiting || waiting_tokens_ + prompt > limits_.most_waiting_tokens;
  if (!valid || full) {
    unused_.push_back(&request);
    return valid ? Admission::kOverloaded : Admission::kInvalid;
  }
  request.tokens = prompt;
  request.rank = added_++;
  push(request);
  return Admission::kTaken;
}

bool Scheduler::schedule() {
  const std::optional<Share> share = sharing_.share(in_flight(), generating_);
  if (!share) return false;
  tokens_ = limits_.batch_tokens;
  seats_ = share->seats;
  kept_ = share->kept;
  prompts_only_ = share->prompts_only;
  short_ = false;
  Batch& batch = in_flight_.emplace_back(std::move(spare_));
  batch.chunks.clear();
  batch.generates = false;
  ready_.clear();
  for (Request* request : running_) {
    if (request->computed < request->tokens) ready_.push_back(request);
  }
  policy_ == Policy::kMixed ? mix() : segregate();
  for (const Chunk& chunk : batch.chunks) chunk.request->admitted = false;
  if (batch.chunks.empty()) {
    spare_ = std::move(batch);
    in_flight_.pop_back();
    return false;
  }
  if (!limits_.draft_rates.empty()) draft();
  generating_ += batch.generates;
  if (batch.chunks.size() < running_.size()) queue_up();
  return true;
}

// Running requests first, then waiting ones.
void Scheduler::mix() {
  others_.clear();
  for (Request* request : ready_) {
    if (!run(*request)) others_.push_back(request);
  }
  while (admit()) {
  }
  for (Request* request : others_) run(*request);
}

// A prompt alone in its batch, otherwise the generating requests.
void Scheduler::segregate() {
  others_.clear();
  for (Request* request : ready_) {
    if (request->generates()) {
      others_.push_back(request);
    } else if (run(*request)) {
      return;
    }
  }
  if (admit()) return;
  for (Request* request : others_) run(*request);
}

bool Scheduler::run(Request& request) {
  if (tokens_ == 0 || seats_ == 0) return false;
  const bool generates = request.generates();
  if (generates && (prompts_only_ || seats_ <= kept_)) return false;
  // The admitted request was preempted for another chunk of this batch, and is already back in it.
  if (request.admitted || !run_chunk(request)) return false;
  in_flight_.back().generates |= generates;
  return true;
}

bool Scheduler::run_chunk(Request& request) {
  if (request.status != Status::kRunning) return false;  // preempted for another chunk of this batch
  const int start = request.computed, known = request.tokens;
  const int end = known - start <= tokens_ ? known : start + tokens_;
  if (end > request.room && !reserve(request, end)) {
    short_ = true;
    return false;
  }
  request.computed = end;
  in_flight_.back().chunks.push_back({&request, start, end - start, end == known});
  tokens_ -= end - start;
  --seats_;
  return true;
}

bool Scheduler::admit() {
  Request* request = tokens_ > 0 && seats_ > 0 ? admitted() : nullptr;
  if (request == nullptr || !run_chunk(*request)) {
    kept_ = 0;
    return false;
  }
  request->admitted = true;
  return true;
}

// The head of the queue, which runs now; null if there is no free slot or too little room.
Request* Scheduler::admitted() {
  if (queue_.empty() || running() >= limits_.most_running || short_) return nullptr;
  Request& request = *queue_.begin()->second;
  const int hits = kv_.take_prefix(request);
  if (kv_.lacking(request) > kv_.pool().available()) {
    kv_.release(request);
    return nullptr;
  }
  take(request);
  sharing_.changed();
  running_.push_back(&request);
  if (request.preemptions == 0) {
    request.cached = hits;
    kv_.count_prefix(request, hits);
  }
  request.computed = request.done = hits;
  request.status = Status::kRunning;
  return &request;
}

bool Scheduler::reserve(Request& request, int tokens) {
  const int missing = kv_.missing(request, tokens);
  if (missing == 0) return true;
  while (kv_.pool().available() < missing) {
    Request* victim = nullptr;
    for (Request* other : running_) {
      if (!other->in_flight() && (victim == nullptr || rank(*other) > rank(*victim))) victim = other;
    }
    if (victim == nullptr || rank(*victim) <= rank(request)) return false;
    preempt(*victim);
  }
  kv_.grow(request, missing);
  return true;
}

void Scheduler::preempt(Request& request) {
  leave(request);
  kv_.release(request);
  request.computed = request.done = 0;
  ++request.preemptions;
  ++preemptions_;
  request.status = Status::kPreempted;
  push(request);
}

void Scheduler::push(Request& request) {
  queue_.emplace(turn(request), &request);
  waiting_tokens_ += request.tokens;
}

void Scheduler::take(Request& request) {
  queue_.erase(turn(request));
  waiting_tokens_ -= request.tokens;
}

void Scheduler::leave(Request& request) {
  sharing_.changed();
  running_.erase(std::find(running_.begin(), running_.end(), &request));
}

void Scheduler::end(Request& request) {
  leave(request);
  kv_.release(request);
  unused_.push_back(&request);
}

// Moves the requests of the batch, in its order, behind the others.
void Scheduler::queue_up() {
  for (const Chunk& chunk : batch()) chunk.request->batched = true;
  running_.erase(std::remove_if(running_.begin(), running_.end(), [](Request* one) { return one->batched; }),
                 running_.end());
  for (const Chunk& chunk : batch()) {
    chunk.request->batched = false;
    running_.push_back(chunk.request);
  }
}

// Adds drafts to the latest batch, where it has room for them.  The native version of `NextBatch.draft` and
// of drafters/synthetic.py.
void Scheduler::draft() {
  std::vector<Chunk>& chunks = in_flight_.back().chunks;
  for (const Chunk& chunk : chunks) {
    if (chunk.count != 1 || chunk.request->generated() == 0) return;
  }
  const int sequences = static_cast<int>(chunks.size());
  int left = std::min(tokens_, limits_.draft_rows - sequences);
  for (int number = 0; number < sequences; ++number) {
    Chunk& chunk = chunks[number];
    Request& request = *chunk.request;
    const int most = most_drafts(request, left / (sequences - number));
    if (most <= 0) continue;
    const double drawn = static_cast<double>(derived_seed(request.draft_seed, request.generated())) / 0x1p64;
    chunk.drafts = std::min(most, static_cast<int>(limits_.draft_rates.size()));
    const auto rates = limits_.draft_rates.begin();
    chunk.right = static_cast<int>(std::count_if(rates, rates + chunk.drafts, [=](double rate) { return drawn < rate; }));
    left -= chunk.drafts;
    const int known = request.tokens + chunk.drafts;
    if (known > request.room) kv_.grow(request, kv_.missing(request, known));
    chunk.count += chunk.drafts;
    request.computed += chunk.drafts;
  }
}

// The drafts that a request may have, at most `most`.  No request is preempted for their blocks, and the token after
// the last draft must still be within the request's limits.
int Scheduler::most_drafts(const Request& request, int most) const {
  most = std::min(most, most_tokens(request) - request.tokens - 1);
  const int known = request.tokens + most;
  if (known > request.room && kv_.missing(request, known) > kv_.pool().available()) {
    most = std::min(most, request.room - request.tokens);
  }
  return most;
}

void Drafted::count(int drafted, int right) {
  ++drafts;
  tokens += drafted;
  accepted += right;
  if (right > static_cast<int>(accepted_per_position.size())) accepted_per_position.resize(right);
  for (int place = 0; place < right; ++place) ++accepted_per_position[place];
}

Shape Scheduler::shape() const {
  Shape shape;
  for (const Chunk& chunk : batch()) {
    const int64_t start = chunk.start, count = chunk.count;
    shape.rows += chunk.count;
    shape.logit_rows += chunk.samples + chunk.drafts;
    shape.each = std::max(shape.each, 1 + chunk.drafts);
    shape.kv_tokens += start + count;
    shape.attended += count * start + count * (count + 1) / 2;
  }
  shape.sequences = static_cast<int>(batch().size());
  return shape;
}

int Scheduler::rounds_left() const {
  int least = limits_.longest;
  for (const Chunk& chunk : batch()) least = std::min(least, most_tokens(*chunk.request) - chunk.request->tokens);
  return std::max(1, least);
}

bool Scheduler::goes_round(int rounds) const {
  if (batch().size() != running_.size() || !queue_.empty()) return false;
  const int64_t blocks = (rounds / limits_.block_size + 1) * static_cast<int64_t>(limits_.windows.size());
  return running() * blocks <= kv_.pool().available();
}

void Scheduler::check() const {
  std::vector<int> counted(limits_.blocks, 0);
  int held = 0;
  for (const Request* request : running_) {
    for (const int block : request->table) {
      if (block != KVCache::kEmpty) held += counted[block]++ == 0;
    }
  }
  if (counted != kv_.pool().references() || held != kv_.pool().held()) {
    throw std::logic_error("the reference counts of KV blocks differ from the tables of the requests");
  }
  for (const auto& [turn, request] : queue_) {
    if (!request->table.empty()) throw std::logic_error("a waiting request holds KV blocks");
  }
}

}  // namespace corepipe::sim
