// The tokens of simulated requests in the next batch.  The native version of corepipe/scheduler/scheduler.py, with its
// running requests, queue, policies and next batch, for one stage, requests of one owner and one priority, and no
// drafts: the same decisions, to the last KV block.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "simulation/kv_cache.h"

namespace corepipe::sim {

enum class Policy { kMixed, kSegregated };
enum class Admission { kTaken, kOverloaded, kInvalid };

struct Chunk {
  Request* request;
  int start, count;
  bool samples;
};

// The properties that decide a step's time; see corepipe/neuron/step.py.
struct Shape {
  int rows = 0, logit_rows = 0, sequences = 0;
  int64_t kv_tokens = 0, attended = 0;

  bool decodes() const { return rows == sequences; }
  bool operator==(const Shape& other) const {
    return rows == other.rows && logit_rows == other.logit_rows && sequences == other.sequences &&
           kv_tokens == other.kv_tokens && attended == other.attended;
  }
};

class Scheduler {
 public:
  Scheduler(const Limits& limits, Policy policy, PrefixIndex* index, int replica)
      : limits_(limits), policy_(policy), kv_(limits, index, replica) {}
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Returns a request to be filled in and passed to `add`.
  Request& fresh();
  Admission add(Request& request);
  bool schedule();  // makes the next batch; false if nothing can run now
  // Completes the batch: each chunk that samples gets a token; calls `tell(request, ends)` for each of these.
  template <class Tell>
  void update(Tell tell);

  const std::vector<Chunk>& batch() const { return batch_; }
  Shape shape() const;
  int rounds_left() const;  // rounds until the first request of the batch ends; all of them generate
  // Whether so many batches, this one included, differ only by one more token per request, if no request arrives.
  bool goes_round(int rounds) const;
  int running() const { return static_cast<int>(running_.size()); }
  int waiting() const { return static_cast<int>(queue_.size()); }
  int unfinished() const { return running() + waiting(); }
  int64_t preemptions() const { return preemptions_; }
  KVCache& kv() { return kv_; }
  const KVCache& kv() const { return kv_; }
  void check() const;  // throws std::logic_error unless blocks and references match the requests that hold them

 private:
  using Turn = std::tuple<bool, double, int64_t>;  // smaller ones come first
  static Turn turn(const Request& request) {
    return {request.status != Status::kPreempted, request.arrival, request.rank};
  }
  static std::pair<double, int64_t> rank(const Request& request) { return {request.arrival, request.rank}; }

  void mix();
  void segregate();
  bool run(Request& request);
  bool run_chunk(Request& request);
  bool admit();
  Request* admitted();
  bool reserve(Request& request, int tokens);
  void preempt(Request& request);
  void push(Request& request);
  void take(Request& request);
  void leave(Request& request);
  void end(Request& request);
  void queue_up();

  Limits limits_;
  Policy policy_;
  KVCache kv_;
  std::deque<Request> requests_;
  std::vector<Request*> unused_;
  std::vector<Request*> running_;  // ordered by last scheduling, the oldest first
  std::map<Turn, Request*> queue_;
  int64_t waiting_tokens_ = 0, added_ = 0, preemptions_ = 0;
  std::vector<Chunk> batch_;
  std::vector<Request*> ready_, others_;
  int tokens_ = 0, seats_ = 0;  // still free in the batch
  bool short_ = false;          // a running request lacks blocks
};

template <class Tell>
void Scheduler::update(Tell tell) {
  for (const Chunk& chunk : batch_) {
    Request& request = *chunk.request;
    request.done += chunk.count;
    if (request.done % limits_.block_size < chunk.count) kv_.commit(request, chunk.count);
    if (!chunk.samples) continue;
    ++request.tokens;
    const bool ends = request.generated() >= request.most_tokens || request.tokens >= limits_.longest;
    tell(request, ends);
    if (ends) end(request);
  }
  batch_.clear();
}

}  // namespace corepipe::sim
