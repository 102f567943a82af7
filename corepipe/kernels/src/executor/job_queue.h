// The queue of batches for the executors of a process, which run one after the other.
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

  // Tokens allowed in masked rows, [wanted_masks, mask_words]: set while the batch is computed, under the queue's
  // mutex, as the next two fields.
  int wanted_masks = 0;
  std::vector<uint32_t> masks;
  bool has_masks = false;
  bool forsaken = false;  // no masks will be given any more

  // For a batch that follows another by itself: the first batch, until its tokens are known and copied to `batch`, and
  // the tokens after which this one is dropped.  Under the queue's mutex, as the fields below.
  std::shared_ptr<Job> before;
  std::vector<int32_t> ends;
  bool dropped = false;  // it has not started, and never will

  // The result, valid once done; `error` instead if it failed.
  Drawn drawn;
  std::vector<float> values;  // [.., width] of the executor's result
  std::vector<Span> spans;
  double seconds = 0;
  int64_t weight_bytes = 0;  // bytes of packed weights that products read: a panel counts each time
  size_t scratch_bytes = 0;  // present working memory of Linears and mixtures of the pool
  std::exception_ptr error;
  bool done = false;
};

// The process's threads and the queue of batches.  A control thread, which is thread 0 of the pool, runs
// them one by one in the order of their arrival.
class JobQueue {
 public:
  // `beats` grows while a batch makes progress; see Pool.
  explicit JobQueue(int threads, std::atomic<int64_t>* beats = nullptr);
  ~JobQueue() { close(); }

  int threads() const { return pool_.size(); }

  // Throws std::runtime_error after close.
  void push(std::shared_ptr<Job> job);

  // False if the job is not done within `seconds`.
  bool wait(const Job& job, double seconds);

  // Sets the masks of a job's masked rows.  Throws std::invalid_argument if it needs none, or has them already.
  void give_masks(Job& job, std::vector<uint32_t> masks);

  // Declares that no masks will come: a job without them fails when it needs them.
  void forsake(Job& job);

  // Returns false for a job that was dropped; any other job will run.
  bool adopt(const Job& job);

  // Removes a job from the queue, unless it has started.
  void drop(Job& job);

  // Sets files to watch: while one can be read, no job that follows another by itself starts.
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
