// Runs batches through the Programs of a replica.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "executor/batch.h"
#include "isa/isa.h"
#include "executor/job_queue.h"
#include "executor/layout.h"
#include "executor/program.h"

namespace corepipe {

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

  // The batch that follows `before`, of as many sequences: one more row of each, of the token that is drawn there, which is
  // drawn from alike.  It starts when that one has ended, unless a token there is one of `ends`, a row there has no numbers,
  // or something that is heeded can be read; then it is dropped.  Throws std::invalid_argument where a sequence draws no
  // token behind its last row, or one that hangs on others than its logits: on masks, biases, tokens before.
  std::shared_ptr<Job> go_on(const std::shared_ptr<Job>& before, std::vector<int32_t> ends);

  // See JobQueue::give_masks; throws, too, where they have another size than the job's sampling wants.
  void give_masks(Job& job, std::vector<uint32_t> masks);

  JobQueue& queue() { return *queue_; }
  void watch(std::function<void(int)> hook);

  // Called by the queue's thread.
  void run(Job& job);

  bool takes(int32_t token) const { return token >= 0 && token < token_limit_; }

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
