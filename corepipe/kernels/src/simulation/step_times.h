// Times of steps, computed by callbacks and cached.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "simulation/scheduler.h"

namespace corepipe::sim {

constexpr int kAtOnce = 256;  // decode steps that are computed, or predicted, at a time

// Seconds of a step: copying its inputs, on the device, sampling its tokens, copying its results.
struct Times {
  double sent = 0.0, device = 0.0, drawn = 0.0, result = 0.0;
};

// Times of consecutive decode steps of some sequences, from `tokens` tokens of context in all on, which grow by the
// number of sequences in each step: `device` has one time per step, or one for all contexts of `first` to `last`
// tokens.
struct Decoded {
  Times times;
  std::vector<double> device;
  int64_t first = 1, last = 0;

  bool same() const { return first <= last; }
};

// Shared by replicas whose cores are equally fast.
class StepTimes {
 public:
  using AskDecode = std::function<Decoded(int sequences, int64_t tokens, int steps)>;
  using AskOther = std::function<Times(const Shape&)>;

  StepTimes(AskDecode decode, AskOther other) : ask_decode_(std::move(decode)), ask_other_(std::move(other)) {}

  // The times of consecutive decode steps of one replica.
  class Strip {
   public:
    friend class StepTimes;

   private:
    int sequences_ = 0;
    int64_t tokens_ = 0;  // of the first step
    Decoded decoded_;
  };

  // `rounds`: how many such steps probably follow one another, this one included.
  Times of(const Shape& shape, int rounds, Strip& strip);

 private:
  struct Hash {
    size_t operator()(const Shape& shape) const;
  };

  Times decode(const Shape& shape, int rounds, Strip& strip);
  Times other(const Shape& shape);

  AskDecode ask_decode_;
  AskOther ask_other_;
  std::unordered_map<Shape, Times, Hash> others_;
  std::vector<std::vector<Decoded>> same_;  // by number of sequences; the most recently used is last
};

}  // namespace corepipe::sim
