// Draws tokens from logits.  tests/kernels/sampling_reference.py defines the result.
#pragma once

#include <memory>
#include <vector>

#include "executor/batch.h"
#include "isa/isa.h"
#include "linear/linear.h"
#include "executor/pool.h"

namespace corepipe {

// The uniform number in [0, 1) of a seed and a position: splitmix64's finaliser (Steele, Lea & Flood 2014)
// over the seed, then over its result and the position; the top 53 bits.
double uniform(uint64_t seed, int64_t position);

class Sampler {
 public:
  explicit Sampler(int threads);
  ~Sampler();

  // rows[r] points to the logits [vocab] of row r; masks [sampling.masks(), mask_words(vocab)].  Throws
  // std::bad_alloc.
  Drawn run(const KernelTable& kernels, Pool& pool, const std::vector<const float*>& rows, int vocab,
            const Sampling& sampling, const std::vector<uint32_t>& masks);

 private:
  struct Thread;
  std::vector<std::unique_ptr<Thread>> threads_;
};

}  // namespace corepipe
