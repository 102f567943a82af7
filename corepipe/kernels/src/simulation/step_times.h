// Times of steps, computed by callbacks and cached.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "simulation/scheduler.h"

namespace corepipe::sim {

constexpr int kAtOnce = 256;  // decode steps that are computed, or predicted, at a time

// Seconds for a step's activations to reach a stage, and of the step on it.
struct StageTime {
  double moved, seconds;
};

// Seconds of a step: copying its inputs, sampling its tokens, copying its results, and on each stage, alone in the
// pipeline and with other batches in it; drafted: those of the first stage for a draft model.
struct Times {
  double sent, drawn, result, drafted;
  const StageTime *lone, *busy;  // valid until the next call
};

// Times of a step, or of consecutive decode steps of some sequences, whose tokens of context in all grow by the number
// of sequences in each step.  stages: [steps][alone, with others][stages], or where both are the same [steps][stages];
// for decode steps it may be one for all contexts of `first` to `last` tokens.
struct StepsTimed {
  double sent = 0.0, drawn = 0.0, result = 0.0, drafted = 0.0;
  std::vector<StageTime> stages;
  int64_t first = 1, last = 0;

  bool same() const { return first <= last; }
};

// Shared by replicas whose cores are equally fast.
class StepTimes {
 public:
  using AskDecode = std::function<StepsTimed(int sequences, int64_t tokens, int steps)>;
  using AskOther = std::function<StepsTimed(const Shape&)>;

  // lone_differs: whether a stage takes another time if other batches are in the pipeline.
  StepTimes(int stages, bool lone_differs, AskDecode decode, AskOther other)
      : stages_(stages), lone_differs_(lone_differs), ask_decode_(std::move(decode)), ask_other_(std::move(other)) {}

  // The times of consecutive decode steps of each batch of a replica.
  class Strips {
   public:
    explicit Strips(int batches) : strips_(batches) {}
    friend class StepTimes;

   private:
    struct Strip {
      int sequences = 0;
      int64_t tokens = 0;  // of the first step
      StepsTimed timed;
    };
    std::vector<Strip> strips_;
    size_t oldest_ = 0;
  };

  // `rounds`: how many such steps probably follow one another, this one included.
  Times of(const Shape& shape, int rounds, Strips& strips);

 private:
  struct Hash {
    size_t operator()(const Shape& shape) const;
  };

  Times at(const StepsTimed& timed, size_t step) const;
  size_t variants() const { return lone_differs_ ? 2 : 1; }
  Times decode(const Shape& shape, int rounds, Strips& strips);
  Times other(const Shape& shape);

  size_t stages_;
  bool lone_differs_;
  AskDecode ask_decode_;
  AskOther ask_other_;
  std::unordered_map<Shape, StepsTimed, Hash> others_;
  std::vector<std::vector<StepsTimed>> same_;  // by number of sequences; the most recently used is last
};

}  // namespace corepipe::sim
