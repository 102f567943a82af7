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
  // Plans the run of a batch through the programs.  `result` is the value of the last program that is returned or
  // sampled from: the first `width` of its columns.  same_bits: by same_bits_kernels.  Throws std::invalid_argument
  // where they don't fit together: an exchange whose partner never comes, widths that differ.
  Executor(std::shared_ptr<JobQueue> queue, std::vector<Program*> programs, int result, int width, bool same_bits);
  ~Executor() { queue_->withdraw(this); }
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Throws std::invalid_argument for a batch that disagrees with the programs.
  std::shared_ptr<Job> submit(Batch batch, std::optional<Sampling> sampling);

  // Queues the batch that follows `before`, with the same sequences: one more row of each, for the token that is
  // sampled there, with the same sampling parameters.  It starts when `before` has ended.  It is dropped if a token
  // there is one of `ends`, a row there has logits that are not numbers, or a file of `heed` can be read.  Throws
  // std::invalid_argument where a sequence samples no token after its last row, or sampling depends on masks, biases or
  // earlier tokens.
  std::shared_ptr<Job> go_on(const std::shared_ptr<Job>& before, std::vector<int32_t> ends);

  // See JobQueue::give_masks; also throws if their size differs from that of the job's masked rows.
  void give_masks(Job& job, std::vector<uint32_t> masks);

  JobQueue& queue() { return *queue_; }
  void watch(std::function<void(int)> hook);

  // Puts an adapter into a slot, from 0 on, or takes it away (null): for batches that are submitted later.  Throws
  // std::invalid_argument for one of other Programs.
  void set_adapter(int slot, std::shared_ptr<const Adapter> adapter);

  // Called by the queue's thread.
  void run(Job& job);

  bool takes(int32_t token) const { return token >= 0 && token < token_limit_; }

 private:
  void check(const Batch& batch) const;
  void check_adapters(const Batch& batch) const;
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
  std::vector<std::shared_ptr<const Adapter>> adapters_;  // by slot
  std::mutex hook_mutex_;
  std::function<void(int)> hook_;
};

}  // namespace corepipe
