// Runs batches through the Programs of a replica.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "attention.h"
#include "batch.h"
#include "isa.h"
#include "layout.h"
#include "program.h"
#include "sampler.h"

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

  // Fails the jobs of `executor` that have not started and waits for the one that has.
  void withdraw(const Executor* executor);

  // Finishes the job that runs, fails the others, joins the thread.  Safe to call again.
  void close();

 private:
  friend class Executor;

  void work();
  void await_masks(Job& job);
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
  bool closed_ = false;
  std::mutex closing_;
  std::thread thread_;
};

class Executor {
 public:
  // Lays out the course of a batch through the programs.  `result` is the value of the last one that is wanted, of whose
  // columns the first `width` are given, or drawn from.  same_bits: by same_bits_kernels.  Throws std::invalid_argument
  // where they don't fit together: an exchange whose partner never comes, widths that differ.
  Executor(std::shared_ptr<JobQueue> queue, std::vector<Program*> programs, int result, int width, bool same_bits);
  ~Executor() { queue_->withdraw(this); }
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Throws std::invalid_argument for a batch that disagrees with the programs.
  std::shared_ptr<Job> submit(Batch batch, std::optional<Sampling> sampling);

  // See JobQueue::give_masks; throws, too, where they have another size than the job's sampling wants.
  void give_masks(Job& job, std::vector<uint32_t> masks);

  JobQueue& queue() { return *queue_; }
  void watch(std::function<void(int)> hook);

  // Called by the queue's thread.
  void run(Job& job);

 private:
  void check(const Batch& batch) const;
  void check_sequence(const Batch& batch, int sequence) const;
  void go(const Run& run, Job& job);
  void pass(const Run& run, const Stop& stop);
  void finish(const Run& run, Job& job);

  const std::shared_ptr<JobQueue> queue_;
  const KernelTable& kernels_;
  const std::vector<Program*> programs_;  // kept alive by the caller
  Value result_;
  const int width_;
  int max_rows_, token_limit_, position_limit_, type_limit_, block_size_, patch_width_;
  std::vector<int> block_limits_;  // of each table
  bool reads_types_ = false, whole_sequences_ = false, one_logit_row_ = false;
  Course course_;
  std::vector<std::vector<float>> channels_;
  std::mutex hook_mutex_;
  std::function<void(int)> hook_;
};

}  // namespace corepipe
