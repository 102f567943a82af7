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
  mixed ^= (static_cast<uint64_t>(shape.logit_rows) << 32) + static_cast<uint64_t>(shape.sequences);
  return mixed ^ (mixed >> 29);
}

Times StepTimes::of(const Shape& shape, int rounds, Strip& strip) {
  if (shape.decodes() && shape.logit_rows == shape.rows) return decode(shape, rounds, strip);
  return other(shape);
}

Times StepTimes::decode(const Shape& shape, int rounds, Strip& strip) {
  if (static_cast<int>(same_.size()) <= shape.sequences) same_.resize(shape.sequences + 1);
  std::vector<Decoded>& known = same_[shape.sequences];
  for (auto one = known.rbegin(); one != known.rend(); ++one) {
    if (one->first <= shape.kv_tokens && shape.kv_tokens <= one->last) {
      if (one != known.rbegin()) std::swap(*one, known.back());
      return known.back().times;
    }
  }
  const int64_t more = shape.kv_tokens - strip.tokens_;
  if (strip.sequences_ != shape.sequences || more < 0 || more % shape.sequences != 0 ||
      more / shape.sequences >= static_cast<int64_t>(strip.decoded_.device.size())) {
    Decoded decoded = ask_decode_(shape.sequences, shape.kv_tokens, std::min(rounds, kAtOnce));
    if (decoded.same()) {
      known.push_back(std::move(decoded));
      return known.back().times;
    }
    strip.decoded_ = std::move(decoded);
    strip.sequences_ = shape.sequences;
    strip.tokens_ = shape.kv_tokens;
    return strip.decoded_.times;
  }
  Times times = strip.decoded_.times;
  times.device = strip.decoded_.device[more / shape.sequences];
  return times;
}

Times StepTimes::other(const Shape& shape) {
  const auto known = others_.find(shape);
  if (known != others_.end()) return known->second;
  if (others_.size() == kKept) others_.clear();
  return others_.emplace(shape, ask_other_(shape)).first->second;
}

}  // namespace corepipe::sim
