// Batches on their way through the executors of a process, one after the other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "attention/attention.h"
#include "executor/batch.h"
#include "linear/experts.h"
#include "attention/latents.h"
#include "executor/pool.h"
#include "executor/program.h"
#include "rows/sampler.h"

namespace corepipe {

class Executor;

// A batch from its submission to its result.
struct Job {
  Executor* executor;
  Batch batch;
  std::optional<Sampling> sampling;

  // What may be drawn of masked rows, [wanted_masks, mask_words]: given while the batch is computed, under the queue's
  // mutex, as the two that follow.
  int wanted_masks = 0;
  std::vector<uint32_t> masks;
  bool has_masks = false;
  bool forsaken = false;  // nobody will give them any more

  // Of a batch that goes on from another: that one, until its tokens are known and stand in `batch`, and the tokens behind
  // which this one is not wanted.  Under the queue's mutex, as what follows.
  std::shared_ptr<Job> before;
  std::vector<int32_t> ends;
  bool dropped = false;  // it did not start, and never will

  // The result, valid once done; `error` instead if it failed.
  Drawn drawn;
  std::vector<float> values;  // [.., width] of the executor's result
  std::vector<Span> spans;
  double seconds = 0;
  int64_t weight_bytes = 0;  // that products took from where weights are kept: a panel counts each time
  size_t scratch_bytes = 0;  // that Linears and mixtures of the pool work in by now
  std::exception_ptr error;
  bool done = false;
};

// The process's threads and the queue of batches.  A control thread, which is thread 0 of the pool, runs
// them one by one in the order of their arrival.
class JobQueue {
 public:
  // `beats` grows while a batch gets on, whatever it computes; see Pool.
  explicit JobQueue(int threads, std::atomic<int64_t>* beats = nullptr);
  ~JobQueue() { close(); }

  int threads() const { return pool_.size(); }

  // Throws std::runtime_error after close.
  void push(std::shared_ptr<Job> job);

  // False if the job is not done within `seconds`.
  bool wait(const Job& job, double seconds);

  // The masks that a job's sampling speaks of.  Throws std::invalid_argument where it wants none, or has them already.
  void give_masks(Job& job, std::vector<uint32_t> masks);

  // Nobody gives a job masks any more: one that has none fails when it needs them.
  void forsake(Job& job);

  // False for a job that was dropped; any other runs, now that it is wanted.
  bool adopt(const Job& job);

  // Nobody wants it any more: it is taken out of the queue, unless it has started.
  void drop(Job& job);

  // From now on no job that goes on from another starts where there is something to read.
  void heed(std::vector<int> files);

  // Fails the jobs of `executor` that have not started and waits for the one that has.
  void withdraw(const Executor* executor);

  // Finishes the job that runs, fails the others, joins the thread.  Safe to call again.
  void close();

 private:
  friend class Executor;

  void work();
  void await_masks(Job& job);
  void settle(const Job& before);
  bool goes_on(const Job& job) const;
  void fail_waiting(const Executor* executor, const char* reason);

  Pool pool_;
  Scratch scratch_;
  Attention attention_;
  Experts experts_;
  Latents latents_;
  Sampler sampler_;

  std::mutex mutex_;
  std::condition_variable work_, masks_, done_;
  std::deque<std::shared_ptr<Job>> waiting_;
  std::shared_ptr<Job> running_;
  std::vector<int> heeded_;
  bool closed_ = false;
  std::mutex closing_;
  std::thread thread_;
};

}  // namespace corepipe
