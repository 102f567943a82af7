// Cuts one Attention op into items for the pool.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "executor/batch.h"
#include "isa/isa.h"
#include "linear/linear.h"
#include "executor/pool.h"

namespace corepipe {

// The division of a batch's rows, heads and keys; the same for all layers of one shape with the same block tables.
class AttentionPlan {
 public:
  AttentionPlan(const AttentionCall& call, const Batch& batch, int threads);

  bool fits(const AttentionCall& call) const;
  // scratch, memory: one buffer per thread; an attention without a cache has its keys and values in the latter.
  void run(const KernelTable& kernels, Pool& pool, const AttentionCall& call, const Batch& batch,
           std::vector<Buffer>& scratch, std::vector<Buffer>& memory);

  // Runs sequences [first, end) of an attention without a cache on the calling thread, with the buffers of `reserve`.
  void run_sequences(const KernelTable& kernels, const AttentionCall& call, const Batch& batch, int first, int end,
                     void* scratch, Buffer& memory) const noexcept;
  void reserve(const KernelTable& kernels, const AttentionCall& call, Buffer& scratch, Buffer& memory) const;

 private:
  // One item of work, or all the parts of one: they cover the same rows and, together, all their keys.
  struct Whole {
    AttentionItem item;
    int parts;
    double cost;
  };
  struct Part {
    AttentionItem item;
    int whole;
    double cost;
  };

  void add_own(const AttentionCall& call, const Batch& batch, int threads);
  void sort_parts();
  size_t floats_of(const AttentionItem& item) const;
  void choose_parts(int threads);
  void split(const AttentionCall& call, int whole);
  void add_writes(const Batch& batch, bool latents, bool all_beforehand);
  void add_write(const Batch& batch, int sequence, int head);
  void attend_all(const KernelTable& kernels, const AttentionCall& call, void* scratch);
  AttentionCall with_memory(const KernelTable& kernels, const AttentionCall& call) const;
  void attend_own(const KernelTable& kernels, AttentionCall call, void* scratch, Buffer& memory);
  void attend_alone(const AttentionTable& table, const AttentionCall& call, const AttentionItem& item,
                    void* scratch) const;
  void finish_part(const KernelTable& kernels, const AttentionCall& call, const Part& part);
  const Part* take();

  const AttentionCall made_for_;  // its data is not read
  const int tokens_;  // of a block of rows
  std::vector<Whole> wholes_;
  std::vector<Part> parts_;              // longest first
  std::vector<AttentionItem> writes_;    // of sequences that have several items
  std::vector<float> partials_;
  std::vector<int32_t> groups_;  // groups of keys in a thread's memory: a block table for the longest sequence
  std::unique_ptr<std::atomic<int>[]> missing_;  // unfinished parts of each item
  std::atomic<int> next_{0};
};

// The plans of the present batch.
class Attention {
 public:
  explicit Attention(int threads) : scratch_(threads), memory_(threads) {}

  void start(const Batch& batch);
  void run(const KernelTable& kernels, Pool& pool, const AttentionCall& call);

  // For use inside a region, for an attention without a cache: rows [first, first + rows), which are whole sequences,
  // on the calling thread, which is number `thread`; after `reserve` for as many threads.
  void run_sequences(const KernelTable& kernels, const AttentionCall& call, int first, int rows, int thread) noexcept;
  void reserve(const KernelTable& kernels, int threads, const AttentionCall& call);

 private:
  AttentionPlan* find(const AttentionCall& call) const;
  AttentionPlan& plan_of(const AttentionCall& call, int threads);

  const Batch* batch_ = nullptr;
  std::vector<std::unique_ptr<AttentionPlan>> plans_;
  std::vector<Buffer> scratch_, memory_;
};

}  // namespace corepipe
