#include "linear/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "executor/checked.h"
#include "executor/program.h"

namespace corepipe {

namespace {

// Elements from the start of a row of fp32 to that of the next, both aligned.
int64_t stride_of(int width) { return (int64_t{width} + 15) / 16 * 16; }

bool all_finite(const float* x, int n) {
  float zeros = 0;
  for (int i = 0; i < n; ++i) zeros += x[i] * 0.0f;
  return zeros == 0.0f;
}

// The numbers of the k largest of x [n], the largest first, of equal ones the first first; with NaN any k.
void choose_largest(const float* x, int n, int k, int32_t* chosen) {
  int found = 0;
  for (int i = 0; i < n; ++i) {
    int at = found;
    while (at > 0 && x[i] > x[chosen[at - 1]]) --at;
    if (at == k) continue;
    found = std::min(found + 1, k);
    std::copy_backward(chosen + at, chosen + found - 1, chosen + found);
    chosen[at] = i;
  }
}

// Writes the score of the i-th of `chosen`, then the scores near it, without the first i experts; returns their number.
int gather_near(const float* scores, int n, const int32_t* chosen, int i, float nearness, float* out) {
  const float top = scores[chosen[i]];
  int found = 0;
  out[found++] = top;
  for (int j = 0; j < n; ++j) {
    if (std::find(chosen, chosen + i + 1, j) != chosen + i + 1) continue;
    const float size = std::max(std::abs(scores[j]), top);
    if (!((top - scores[j]) / size > nearness)) out[found++] = scores[j];
  }
  return found;
}

// Divides x by its sum, added from the first to the last, plus a tiny number in case all are 0.
void divide_by_sum(float* x, int n) {
  constexpr float kLeast = 1e-20f;
  const float sum = std::accumulate(x, x + n, 0.0f) + kLeast;
  for (int i = 0; i < n; ++i) x[i] /= sum;
}

// The rank of a group of scores [n]: the largest score, or the sum of the largest two.
float worth_of(const float* x, int n, bool two) {
  int32_t best[2] = {0, 0};
  choose_largest(x, n, two ? 2 : 1, best);
  return two ? x[best[0]] + x[best[1]] : x[best[0]];
}

// Sets scores to -inf outside of the `taken` groups with the highest rank; `worth` [groups] and `chosen` [taken] are
// overwritten.
void leave_groups(float* scores, int n, int groups, int taken, bool two, float* worth, int32_t* chosen) {
  const int size = n / groups;
  for (int g = 0; g < groups; ++g) worth[g] = worth_of(scores + g * size, size, two);
  choose_largest(worth, groups, taken, chosen);
  for (int g = 0; g < groups; ++g) {
    if (std::find(chosen, chosen + taken, g) != chosen + taken) continue;
    std::fill_n(scores + g * size, size, -std::numeric_limits<float>::infinity());
  }
}

}  // namespace

void Experts::run(const Run& run, const Mixture& op) {
  if (op.rows == 0) return;
  const RowTable& rows = run.kernels.rows;
  const Expert& first = op.own->front();
  const int width = first.down.weight->n, k = op.routing.top_k;
  choose_all(run, op);
  group(op);
  if (op.routing.weighs_inputs()) scale_inputs(run, op);
  middle_.reserve(row_of_.size() * stride_of(first.gate.weight->n) * sizeof(float));
  results_.reserve(row_of_.size() * stride_of(width) * sizeof(float));
  multiply(run, op);
  const float* results = reinterpret_cast<const float*>(results_.data());
  run.for_rows(op.rows, width * k, [&](int r) noexcept {
    const int32_t* places = &place_[int64_t{r} * k];
    float* out = op.out + r * op.out_stride;
    if (!op.slots) {
      rows.weighted_sum(results, stride_of(width), places, &weights_[int64_t{r} * k], k, out, width, op.round_bf16);
      return;
    }
    for (int i = 0; i < k; ++i) {
      if (places[i] < 0) continue;
      std::memcpy(out + int64_t{i} * width, results + places[i] * stride_of(width), width * sizeof(float));
    }
  });
}

// Every core has the same scores, so one choice and one sum serve all cores.
void Experts::gather(const Run& run, const Gathering& op) {
  if (op.rows == 0) return;
  const RowTable& rows = run.kernels.rows;
  const int width = op.width, k = op.routing.top_k;
  const int64_t stride = stride_of(width);
  choose_all(run, op);
  std::iota(place_.begin(), place_.end(), 0);
  results_.reserve(place_.size() * stride * sizeof(float));
  float* results = reinterpret_cast<float*>(results_.data());
  run.for_rows(op.rows, width * k, [&](int r) noexcept {
    const int64_t first = int64_t{r} * k;
    for (int i = 0; i < k; ++i) {
      const auto after = std::upper_bound(op.bounds->begin(), op.bounds->end(), chosen_[first + i]);
      const float* part = op.parts[after - op.bounds->begin() - 1] + r * op.stride + int64_t{i} * width;
      std::memcpy(results + (first + i) * stride, part, width * sizeof(float));
    }
    float* out = op.outs[0] + r * op.out_stride;
    rows.weighted_sum(results, stride, &place_[first], &weights_[first], k, out, width, op.round_bf16);
    for (size_t m = 1; m < op.outs.size(); ++m) std::memcpy(op.outs[m] + r * op.out_stride, out, width * sizeof(float));
  });
}

void Experts::choose_all(const Run& run, const Choice& op) {
  const size_t taken = static_cast<size_t>(op.rows) * op.routing.top_k;
  chosen_.resize(taken);
  place_.resize(taken);
  weights_.resize(taken);
  if (op.routing.weighs_inputs()) factors_.resize(taken);
  const size_t scores = static_cast<size_t>(op.rows) * op.experts;
  shares_.resize(scores);
  judged_.resize(scores);
  groups_.resize(static_cast<size_t>(op.rows) * op.routing.taken_groups);
  const RowTable& rows = run.kernels.rows;
  run.for_rows(op.rows, op.experts * op.routing.top_k, [&](int r) noexcept { choose(rows, op, r); });
}

void Experts::choose(const RowTable& rows, const Choice& op, int row) noexcept {
  const int count = op.experts, k = op.routing.top_k;
  const float* scores = op.scores + row * op.scores_stride;
  choose_largest(judge(rows, op, row), count, k, &chosen_[int64_t{row} * k]);
  if (all_finite(scores, count)) {
    weigh(rows, op, row);
  } else {
    std::fill_n(&weights_[int64_t{row} * k], k, std::numeric_limits<float>::quiet_NaN());
  }
  for (int64_t i = int64_t{row} * k; op.routing.weighs_inputs() && i < int64_t{row + 1} * k; ++i) {
    factors_[i] = weights_[i];
    if (!std::isnan(weights_[i])) weights_[i] = 1;
  }
}

// The scores by which the experts of a row are chosen.
const float* Experts::judge(const RowTable& rows, const Choice& op, int row) noexcept {
  const Routing& routing = op.routing;
  const int count = op.experts;
  const float* scores = op.scores + row * op.scores_stride;
  if (!routing.by_sigmoid() && routing.groups == 1) return scores;
  float* judged = &judged_[int64_t{row} * count];
  const Function function = routing.by_sigmoid() ? Function::sigmoid : Function::none;
  rows.activate(function, scores, judged, count, false);
  for (int e = 0; routing.correction != nullptr && e < count; ++e) judged[e] += routing.correction[e];
  if (routing.groups > 1) {
    leave_groups(judged, count, routing.groups, routing.taken_groups, routing.by_sigmoid(), &shares_[int64_t{row} * count],
                 &groups_[int64_t{row} * routing.taken_groups]);
  }
  return judged;
}

void Experts::weigh(const RowTable& rows, const Choice& op, int row) noexcept {
  const int count = op.experts, k = op.routing.top_k;
  const float* scores = op.scores + row * op.scores_stride;
  const int32_t* chosen = &chosen_[int64_t{row} * k];
  float* weights = &weights_[int64_t{row} * k];
  float* shares = &shares_[int64_t{row} * count];
  switch (op.routing.scoring) {
    case Scoring::of_all:
      rows.softmax(scores, shares, count);
      for (int i = 0; i < k; ++i) weights[i] = shares[chosen[i]];
      break;
    case Scoring::of_chosen:
      for (int i = 0; i < k; ++i) shares[i] = scores[chosen[i]];
      rows.softmax(shares, weights, k);
      break;
    case Scoring::sigmoid:
    case Scoring::sigmoid_shares:
    case Scoring::input_sigmoid:
      for (int i = 0; i < k; ++i) shares[i] = scores[chosen[i]];
      rows.activate(Function::sigmoid, shares, weights, k, false);
      if (op.routing.scoring == Scoring::sigmoid_shares) divide_by_sum(weights, k);
      break;
    case Scoring::of_near:
      for (int i = 0; i < k; ++i) {
        const int near = gather_near(scores, count, chosen, i, op.routing.nearness, shares);
        rows.softmax(shares, shares, near);
        weights[i] = shares[0];
      }
  }
  for (int i = 0; op.routing.factor != 1.0f && i < k; ++i) weights[i] *= op.routing.factor;
}

// Groups rows by the core's experts that they are routed to, in the order of rows.
void Experts::group(const Mixture& op) {
  const auto own_of = [&](int32_t expert) { return expert - op.first; };
  const auto is_own = [&](int32_t own) { return own >= 0 && own < static_cast<int32_t>(op.own->size()); };
  starts_.assign(op.own->size() + 1, 0);
  for (int32_t expert : chosen_) {
    if (is_own(own_of(expert))) ++starts_[own_of(expert) + 1];
  }
  std::partial_sum(starts_.begin(), starts_.end(), starts_.begin());
  row_of_.resize(starts_.back());
  for (size_t i = 0; i < chosen_.size(); ++i) {
    const int32_t own = own_of(chosen_[i]);
    place_[i] = is_own(own) ? starts_[own]++ : -1;
    if (place_[i] >= 0) row_of_[place_[i]] = static_cast<int32_t>(i / op.routing.top_k);
  }
  std::copy_backward(starts_.begin(), starts_.end() - 1, starts_.end());  // each entry was advanced to its end
  starts_.front() = 0;
}

// The inputs of each of the core's experts: its rows times their factors, one after the other.
void Experts::scale_inputs(const Run& run, const Mixture& op) {
  const RowTable& rows = run.kernels.rows;
  const int width = op.own->front().gate.weight->k, k = op.routing.top_k;
  inputs_.reserve(row_of_.size() * stride_of(width) * sizeof(float));
  float* inputs = reinterpret_cast<float*>(inputs_.data());
  run.for_rows(op.rows, width * k, [&](int r) noexcept {
    for (int64_t i = int64_t{r} * k; i < int64_t{r + 1} * k; ++i) {
      if (place_[i] < 0) continue;
      rows.scale(op.x + r * op.x_stride, factors_[i], inputs + place_[i] * stride_of(width), width, op.round_bf16);
    }
  });
}

// Both products run over the panels of all chosen experts in one region.
void Experts::multiply(const Run& run, const Mixture& op) {
  const size_t count = op.own->size();
  segments_.clear();
  segments_.reserve(3 * count);  // the Linears point into them
  into_.clear();
  back_.clear();
  for (size_t e = 0; e < count; ++e) {
    const int32_t start = starts_[e];
    if (starts_[e + 1] == start) continue;
    const Expert& expert = (*op.own)[e];
    const int64_t middle_stride = stride_of(expert.gate.weight->n), stride = stride_of(expert.down.weight->n);
    float* middle = reinterpret_cast<float*>(middle_.data()) + start * middle_stride;
    float* result = reinterpret_cast<float*>(results_.data()) + start * stride;
    const Segment* segments = segments_.data() + segments_.size();
    segments_.push_back({expert.gate.weight, expert.gate.bias, middle, middle_stride});
    segments_.push_back({expert.up.weight, expert.up.bias, nullptr, 0});
    segments_.push_back({expert.down.weight, expert.down.bias, result, stride});

    Linear into{}, back{};
    into.rows = back.rows = starts_[e + 1] - start;
    into.round_bf16 = back.round_bf16 = op.round_bf16;
    into.x = op.x, into.x_stride = op.x_stride, into.k = expert.gate.weight->k, into.row_of = &row_of_[start];
    if (op.routing.weighs_inputs()) {
      into.x_stride = stride_of(into.k), into.row_of = nullptr;
      into.x = reinterpret_cast<const float*>(inputs_.data()) + start * into.x_stride;
    }
    into.segments = segments, into.segment_count = 2, into.glu = true, into.function = op.function;
    back.x = middle, back.x_stride = middle_stride, back.k = expert.down.weight->k;
    back.segments = segments + 2, back.segment_count = 1;
    into_.push_back(into);
    back_.push_back(back);
  }
  linears(run.kernels, run.pool, run.scratch, into_);
  linears(run.kernels, run.pool, run.scratch, back_);
}

namespace {

void check_routing(const Routing& routing, int experts) {
  require(routing.top_k >= 1 && routing.top_k <= experts, "top_k must be 1 .. " + std::to_string(experts));
  require(routing.groups >= 1 && experts % routing.groups == 0, "groups of experts must be equal");
  const int size = experts / routing.groups;
  require(routing.taken_groups >= 1 && routing.taken_groups <= routing.groups &&
              routing.top_k <= routing.taken_groups * size,
          "a row takes top_k experts of its groups");
  require(routing.groups == 1 || !routing.by_sigmoid() || size >= 2, "a group's worth is two experts'");
}

// Checks that all have the shape of the first, for rows of this width.
void check_shapes(const std::vector<Expert>& experts, int width) {
  const Matrix &gate = *experts[0].gate.weight, &down = *experts[0].down.weight;
  for (const Expert& expert : experts) {
    for (const Matrix* into : {expert.gate.weight, expert.up.weight}) {
      require(into->k == width && into->n == gate.n, "experts differ in shape, or take rows of another width than x");
    }
    require(expert.down.weight->k == gate.n && expert.down.weight->n == down.n, "experts differ in shape");
  }
}

}  // namespace

void Program::experts(int x_index, int scores_index, int out_index, std::vector<Expert> experts,
                      const Routing& routing, Function function, std::optional<int> first) {
  const Value x = at(x_index), scores = at(scores_index);
  require(!experts.empty(), "a mixture needs an expert");
  const int own = static_cast<int>(experts.size()), start = first.value_or(0);
  require(scores.rows == x.rows && (first ? start >= 0 && own <= scores.width - start : scores.width == own),
          "there must be a score for each expert and row");
  check_routing(routing, scores.width);
  check_shapes(experts, x.width);
  const int n = experts[0].down.weight->n;
  const Value out = write(out_index, x.rows, first ? int64_t{routing.top_k} * n : n);
  require(out.data != x.data && out.data != scores.data, "experts can't work in place");
  Mixture op{};
  op.routing = routing, op.function = function, op.round_bf16 = round_bf16;
  op.experts = scores.width, op.first = start, op.slots = first.has_value();
  op.x = x.data, op.x_stride = static_cast<int64_t>(x.stride);
  op.scores = scores.data, op.scores_stride = static_cast<int64_t>(scores.stride);
  op.out = out.data, op.out_stride = static_cast<int64_t>(out.stride);
  const Rows rows = x.rows;
  append([op, rows, experts = std::move(experts)](const Run& run) {
    Mixture now = op;
    now.own = &experts;
    now.rows = run.rows(rows);
    run.experts.run(run, now);
  });
}

void Program::gather_slots(int x_index, int scores_index, int out_index, std::vector<int> group,
                           std::vector<int> bounds, const Routing& routing) {
  const Value x = at(x_index), scores = at(scores_index);
  require(scores.rows == x.rows, "there must be a score for each expert and row");
  check_routing(routing, scores.width);
  require(bounds.size() == group.size() + 1 && bounds.front() == 0 && bounds.back() == scores.width &&
              std::is_sorted(bounds.begin(), bounds.end()),
          "each core of the group has the experts from one bound to the next");
  require(x.width % routing.top_k == 0, "there must be a place for each expert that a row takes");
  const Value out = write(out_index, x.rows, x.width / routing.top_k);
  require(out.data != x.data && out.data != scores.data, "gather_slots can't work in place");
  Step& step = append_exchange(Step::Kind::gather_slots, x, out);
  step.group = std::move(group), step.slots = Slots{scores, std::move(bounds), routing};
}

}  // namespace corepipe
