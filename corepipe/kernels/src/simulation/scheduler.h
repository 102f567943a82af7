// The tokens of simulated requests in the next batch.  The native version of corepipe/scheduler/scheduler.py, with its
// running requests, queue, policies and next batch, for requests of one owner and one priority, whose drafts are assumed:
// the same decisions, to the last KV block.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "simulation/kv_cache.h"
#include "simulation/sharing.h"

namespace corepipe::sim {

enum class Policy { kMixed, kSegregated };
enum class Admission { kTaken, kOverloaded, kInvalid };

struct Chunk {
  Request* request;
  int start, count;
  bool samples;
  int drafts = 0, right = 0;  // the last of its tokens are drafts, the first of which are accepted
};

// Requests whose tokens are computed together; generates: whether one of them generates.
struct Batch {
  std::vector<Chunk> chunks;
  bool generates = false;
};

// The properties that decide a step's time; see corepipe/neuron/step.py.
struct Shape {
  int rows = 0, logit_rows = 0, sequences = 0, each = 1;
  int64_t kv_tokens = 0, attended = 0;

  bool decodes() const { return rows == sequences || each > 1; }
  // One token for each sequence: the time is that of the sequences and their context.
  bool generates() const { return rows == sequences && logit_rows == rows; }
  bool operator==(const Shape& other) const {
    return rows == other.rows && logit_rows == other.logit_rows && sequences == other.sequences &&
           each == other.each && kv_tokens == other.kv_tokens && attended == other.attended;
  }
};

// Counts of drafts; see corepipe/scheduler/request.py.
struct Drafted {
  int64_t drafts = 0, tokens = 0, accepted = 0;
  std::vector<int64_t> accepted_per_position;

  void count(int drafted, int right);
};

class Scheduler {
 public:
  Scheduler(const Limits& limits, Policy policy, Rounds rounds, PrefixIndex* index, int replica)
      : limits_(limits),
        policy_(policy),
        kv_(limits, index, replica),
        sharing_(limits_, running_, queue_, kv_, std::move(rounds)) {}
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Returns a request to be filled in and passed to `add`.
  Request& fresh();
  Admission add(Request& request);
  bool schedule();  // makes the next batch; false if nothing can run now
  // Completes the oldest batch: each chunk that samples gets a token, and one for each accepted draft; calls
  // `tell(request, ends)` for each of these.
  template <class Tell>
  void update(Tell tell);

  int in_flight() const { return static_cast<int>(in_flight_.size()); }
  // The following are about the latest batch.
  const std::vector<Chunk>& batch() const { return in_flight_.back().chunks; }
  Shape shape() const;
  int rounds_left() const;  // rounds until the first request of the batch ends; all of them generate
  // Whether so many batches, this one included, differ only by one more token per request, if no request arrives.
  bool goes_round(int rounds) const;
  int running() const { return static_cast<int>(running_.size()); }
  int waiting() const { return static_cast<int>(queue_.size()); }
  int unfinished() const { return running() + waiting(); }
  int64_t preemptions() const { return preemptions_; }
  const Drafted& drafted() const { return drafted_; }
  KVCache& kv() { return kv_; }
  const KVCache& kv() const { return kv_; }
  void check() const;  // throws std::logic_error unless blocks and references match the requests that hold them

 private:
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
  void draft();
  int most_drafts(const Request& request, int most) const;
  int most_tokens(const Request& request) const {
    return static_cast<int>(std::min<int64_t>(int64_t{request.prompt} + request.most_tokens, limits_.longest));
  }

  Limits limits_;
  Policy policy_;
  KVCache kv_;
  Sharing sharing_;
  std::deque<Request> requests_;
  std::vector<Request*> unused_;
  std::vector<Request*> running_;  // ordered by last scheduling, the oldest first
  Queue queue_;
  int64_t waiting_tokens_ = 0, added_ = 0, preemptions_ = 0;
  std::deque<Batch> in_flight_;  // the oldest first; while one is made, the last
  Batch spare_;                  // its memory is used again
  int generating_ = 0;           // of the batches in flight
  std::vector<Request*> ready_, others_;
  Drafted drafted_;
  int tokens_ = 0, seats_ = 0;  // still free in the batch
  int kept_ = 0;                // of the seats, for requests that wait
  bool prompts_only_ = false;   // nobody who generates has a seat
  bool short_ = false;          // a running request lacks blocks
};

template <class Tell>
void Scheduler::update(Tell tell) {
  for (const Chunk& chunk : in_flight_.front().chunks) {
    Request& request = *chunk.request;
    const int before = request.done;
    request.done += chunk.count;
    bool ends = false;
    if (chunk.samples) {
      int drawn = 0;
      for (; drawn <= chunk.right && !ends; ++drawn) {
        ends = ++request.tokens >= most_tokens(request);
        tell(request, ends);
      }
      if (chunk.drafts > 0) {
        request.computed = request.done = request.tokens - 1;
        drafted_.count(chunk.drafts, std::min(drawn, chunk.right));
      }
    }
    const int count = request.done - before;
    if (request.done % limits_.block_size < count) kv_.commit(request, count);
    if (ends) end(request);
  }
  generating_ -= in_flight_.front().generates;
  spare_ = std::move(in_flight_.front());
  in_flight_.pop_front();
}

}  // namespace corepipe::sim
