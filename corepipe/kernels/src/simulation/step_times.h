// How long steps take, asked of who knows and kept.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "simulation/scheduler.h"

namespace corepipe::sim {

constexpr int kAtOnce = 256;  // decode steps that are asked for, or foreseen, at a time

// Seconds of a step: to copy its inputs, on the device, for its tokens to be drawn, for what it gives to be there.
struct Times {
  double sent = 0.0, device = 0.0, drawn = 0.0, result = 0.0;
};

// Of decode steps of as many sequences, with `tokens` tokens of context in all, and as many more in each as there are
// sequences: `device` has a step each, or one that holds for all contexts of `first` to `last` tokens.
struct Decoded {
  Times times;
  std::vector<double> device;
  int64_t first = 1, last = 0;

  bool same() const { return first <= last; }
};

// Shared by replicas whose cores are as fast.
class StepTimes {
 public:
  using AskDecode = std::function<Decoded(int sequences, int64_t tokens, int steps)>;
  using AskOther = std::function<Times(const Shape&)>;

  StepTimes(AskDecode decode, AskOther other) : ask_decode_(std::move(decode)), ask_other_(std::move(other)) {}

  // Of the decode steps that follow one another in one replica.
  class Strip {
   public:
    friend class StepTimes;

   private:
    int sequences_ = 0;
    int64_t tokens_ = 0;  // of the first
    Decoded decoded_;
  };

  // `rounds`: how many such steps are likely to follow one another, this one included.
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
  std::vector<std::vector<Decoded>> same_;  // by sequences; the one that was asked for last is the last
};

}  // namespace corepipe::sim
