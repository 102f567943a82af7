#include "simulation/scheduler.h"

#include <algorithm>
#include <stdexcept>

namespace corepipe::sim {

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
    const int64_t known = std::min<int64_t>(int64_t{prompt} + most, limits_.longest);
    valid = kv_.blocks_for(static_cast<int>(known - (most > 0))) <= limits_.blocks;
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
  tokens_ = limits_.batch_tokens;
  seats_ = limits_.most_running;
  short_ = false;
  ready_.clear();
  for (Request* request : running_) {
    if (request->computed < request->tokens) ready_.push_back(request);
  }
  policy_ == Policy::kMixed ? mix() : segregate();
  for (const Chunk& chunk : batch_) chunk.request->admitted = false;
  if (batch_.empty()) return false;
  if (batch_.size() < running_.size()) queue_up();
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
  // The admitted request was preempted for another chunk of this batch, and is already back in it.
  return tokens_ > 0 && seats_ > 0 && !request.admitted && run_chunk(request);
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
  batch_.push_back({&request, start, end - start, end == known});
  tokens_ -= end - start;
  --seats_;
  return true;
}

bool Scheduler::admit() {
  if (tokens_ == 0 || seats_ == 0) return false;
  Request* request = admitted();
  if (request == nullptr || !run_chunk(*request)) return false;
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

void Scheduler::leave(Request& request) { running_.erase(std::find(running_.begin(), running_.end(), &request)); }

void Scheduler::end(Request& request) {
  leave(request);
  kv_.release(request);
  unused_.push_back(&request);
}

// Moves the requests of the batch, in its order, behind the others.
void Scheduler::queue_up() {
  for (const Chunk& chunk : batch_) chunk.request->batched = true;
  running_.erase(std::remove_if(running_.begin(), running_.end(), [](Request* one) { return one->batched; }),
                 running_.end());
  for (const Chunk& chunk : batch_) {
    chunk.request->batched = false;
    running_.push_back(chunk.request);
  }
}

Shape Scheduler::shape() const {
  Shape shape;
  for (const Chunk& chunk : batch_) {
    const int64_t start = chunk.start, count = chunk.count;
    shape.rows += chunk.count;
    shape.logit_rows += chunk.samples;
    shape.kv_tokens += start + count;
    shape.attended += count * start + count * (count + 1) / 2;
  }
  shape.sequences = static_cast<int>(batch_.size());
  return shape;
}

int Scheduler::rounds_left() const {
  int least = limits_.longest;
  for (const Chunk& chunk : batch_) {
    const Request& one = *chunk.request;
    least = std::min({least, one.most_tokens - one.generated(), limits_.longest - one.tokens});
  }
  return std::max(1, least);
}

bool Scheduler::goes_round(int rounds) const {
  if (batch_.size() != running_.size() || !queue_.empty()) return false;
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
