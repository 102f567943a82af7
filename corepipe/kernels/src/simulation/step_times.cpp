#include "simulation/step_times.h"

#include <algorithm>
#include <utility>

namespace corepipe::sim {

namespace {

constexpr size_t kKept = 1 << 15;  // cached times of steps other than decode steps
}  // namespace

size_t StepTimes::Hash::operator()(const Shape& shape) const {
  uint64_t mixed = static_cast<uint64_t>(shape.rows) * 0x9E3779B97F4A7C15u;
  mixed = (mixed ^ static_cast<uint64_t>(shape.kv_tokens)) * 0xC2B2AE3D27D4EB4Fu;
  mixed = (mixed ^ static_cast<uint64_t>(shape.attended)) * 0xD6E8FEB86659FD93u;
  mixed ^= (static_cast<uint64_t>(shape.logit_rows) << 32) + static_cast<uint64_t>(shape.sequences + (shape.each << 20));
  return mixed ^ (mixed >> 29);
}

Times StepTimes::of(const Shape& shape, int rounds, Strips& strips) {
  if (shape.generates()) return decode(shape, rounds, strips);
  return other(shape);
}

Times StepTimes::at(const StepsTimed& timed, size_t step) const {
  const StageTime* lone = &timed.stages[step * variants() * stages_];
  return {timed.sent, timed.drawn, timed.result, timed.drafted, lone, lone + (lone_differs_ ? stages_ : 0)};
}

Times StepTimes::decode(const Shape& shape, int rounds, Strips& strips) {
  if (static_cast<int>(same_.size()) <= shape.sequences) same_.resize(shape.sequences + 1);
  std::vector<StepsTimed>& known = same_[shape.sequences];
  for (auto one = known.rbegin(); one != known.rend(); ++one) {
    if (one->first <= shape.kv_tokens && shape.kv_tokens <= one->last) {
      if (one != known.rbegin()) std::swap(*one, known.back());
      return at(known.back(), 0);
    }
  }
  for (const Strips::Strip& strip : strips.strips_) {
    const int64_t more = shape.kv_tokens - strip.tokens;
    if (strip.sequences != shape.sequences || more < 0 || more % shape.sequences != 0) continue;
    const size_t step = more / shape.sequences;
    if (step < strip.timed.stages.size() / (variants() * stages_)) return at(strip.timed, step);
  }
  StepsTimed timed = ask_decode_(shape.sequences, shape.kv_tokens, std::min(rounds, kAtOnce));
  if (timed.same()) {
    known.push_back(std::move(timed));
    return at(known.back(), 0);
  }
  Strips::Strip& strip = strips.strips_[strips.oldest_];
  strips.oldest_ = (strips.oldest_ + 1) % strips.strips_.size();
  strip = {shape.sequences, shape.kv_tokens, std::move(timed)};
  return at(strip.timed, 0);
}

Times StepTimes::other(const Shape& shape) {
  const auto known = others_.find(shape);
  if (known != others_.end()) return at(known->second, 0);
  if (others_.size() == kKept) others_.clear();
  return at(others_.emplace(shape, ask_other_(shape)).first->second, 0);
}

}  // namespace corepipe::sim
