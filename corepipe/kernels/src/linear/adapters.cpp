#include "linear/adapters.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "executor/checked.h"
#include "linear/linear.h"

namespace corepipe {

namespace {

constexpr int kItemRows = 16;  // of a group, that a thread multiplies by a at a time

size_t rounded_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

const AdapterMatrices* find(const Linear& op, int group, int segment) {
  return op.adapted->groups[group].adapter->find(op.core, op.first_number + segment);
}

// The number of groups of a Linear's rows; 0 where no adapter changes it.
int groups_that_change(const Linear& op) {
  const int groups = op.adapted == nullptr ? 0 : static_cast<int>(op.adapted->groups.size());
  for (int g = 0; g < groups; ++g) {
    for (int s = 0; s < op.segment_count; ++s) {
      if (find(op, g, s) != nullptr) return groups;
    }
  }
  return 0;
}

}  // namespace

Adapter::Adapter(const std::vector<Part>& parts, bool is_bf16) {
  const size_t size = is_bf16 ? sizeof(uint16_t) : sizeof(float);
  size_t bytes = 0;
  for (const Part& part : parts) bytes += part.a.size + part.b.size;
  uint8_t* at = memory_.reserve(bytes);
  const auto copy = [&at](const Bytes& from) {
    uint8_t* to = at;
    std::memcpy(to, from.data, from.size);
    at += from.size;
    return to;
  };
  for (const Part& part : parts) {
    require(part.core >= 0 && part.number >= 0, "an adapter's cores and Linears count from 0");
    require(part.n >= 1 && part.k >= 1 && part.rank >= 1, "an adapter's matrices have rows and columns");
    const size_t rank = static_cast<size_t>(part.rank);
    require(part.a.size == rank * rounded_up(part.k, kAdapterStep) * size, "a must have rank * k elements");
    require(part.b.size == rank * rounded_up(part.n, kAdapterStep) * size, "b must have n * rank elements");
    if (cores_.size() <= static_cast<size_t>(part.core)) cores_.resize(part.core + 1);
    std::vector<AdapterMatrices>& own = cores_[part.core];
    if (own.size() <= static_cast<size_t>(part.number)) own.resize(part.number + 1);
    const uint8_t* a = copy(part.a);
    own[part.number] = {part.n, part.k, part.rank, part.scale, is_bf16, a, copy(part.b)};
    places_.emplace_back(part.core, part.number);
    rank_ = std::max(rank_, part.rank);
  }
}

const AdapterMatrices* Adapter::find(int core, int number) const {
  if (static_cast<size_t>(core) >= cores_.size()) return nullptr;
  const std::vector<AdapterMatrices>& own = cores_[core];
  return static_cast<size_t>(number) < own.size() && own[number].rank > 0 ? &own[number] : nullptr;
}

AdaptedRows AdaptedRows::of(const std::vector<int32_t>& slots, const std::vector<const Adapter*>& adapters) {
  AdaptedRows found;
  std::vector<int> group_of_slot(adapters.size(), -1);
  for (size_t row = 0; row < slots.size(); ++row) {
    const int slot = slots[row];
    found.group_of.push_back(-1);
    if (slot < 0) continue;
    if (group_of_slot[slot] < 0) {
      group_of_slot[slot] = static_cast<int>(found.groups.size());
      found.groups.push_back({adapters[slot], {}});
      found.rank = std::max(found.rank, adapters[slot]->rank());
    }
    found.group_of.back() = group_of_slot[slot];
    found.groups[group_of_slot[slot]].rows.push_back(static_cast<int32_t>(row));
  }
  return found;
}

AdapterRun::AdapterRun(const KernelTable& kernels, const Linear& op, int first, int rows)
    : table_(kernels.adapters),
      op_(op),
      first_(first),
      rows_(rows),
      groups_(groups_that_change(op)),
      stride_(groups_ == 0 ? 0 : static_cast<int>(rounded_up(op.adapted->rank, 16))) {}

// Memory: the products with a, the inputs that are made on the way, the order of the rows, and the groups' matrices.
size_t AdapterRun::bytes() const {
  if (!any()) return 0;
  const size_t input = op_.norm.kind == NormKind::none ? 0 : rounded_up(op_.k, 16);
  const size_t row = sizeof(float) * (static_cast<size_t>(op_.segment_count) * stride_ + input) + sizeof(int32_t);
  return rounded_up(rows_ * row, 64) + rounded_up(sizeof(void*) * groups_ * op_.segment_count, 64);
}

void AdapterRun::place_at(uint8_t* memory) {
  memory_ = memory;
  for (int g = 0; g < groups_; ++g) {
    for (int s = 0; s < op_.segment_count; ++s) matrices(g, s) = find(op_, g, s);
  }
}

const AdapterMatrices*& AdapterRun::matrices(int group, int segment) const {
  return reinterpret_cast<const AdapterMatrices**>(memory_)[group * op_.segment_count + segment];
}

float* AdapterRun::reduced(int row, int segment) const {
  float* first = reinterpret_cast<float*>(memory_ + rounded_up(sizeof(void*) * groups_ * op_.segment_count, 64));
  return first + (static_cast<size_t>(row) * op_.segment_count + segment) * stride_;
}

float* AdapterRun::input(int row) const {
  if (!any() || op_.norm.kind == NormKind::none) return nullptr;
  return reduced(rows_, 0) + static_cast<size_t>(row) * rounded_up(op_.k, 16);
}

int32_t* AdapterRun::order_of(int start) const {
  float* end = op_.norm.kind == NormKind::none ? reduced(rows_, 0) : input(rows_);
  return reinterpret_cast<int32_t*>(end) + start;
}

void AdapterRun::order(int start, int count) {
  if (!any()) return;
  const int32_t* group_of = op_.adapted->group_of.data() + first_;
  int32_t* order = order_of(start);
  for (int r = 0; r < count; ++r) {
    int at = r;  // insertion keeps equal ones in their order
    for (; at > 0 && group_of[order[at - 1]] > group_of[start + r]; --at) order[at] = order[at - 1];
    order[at] = start + r;
  }
}

// The first and the last but one of a group's rows that are among the run's, as indices of its list.
std::pair<int, int> AdapterRun::rows_of(int group) const {
  const std::vector<int32_t>& rows = op_.adapted->groups[group].rows;
  const auto begin = std::lower_bound(rows.begin(), rows.end(), first_);
  const auto end = std::lower_bound(begin, rows.end(), first_ + rows_);
  return {static_cast<int>(begin - rows.begin()), static_cast<int>(end - rows.begin())};
}

int AdapterRun::items_of(int group) const {
  const auto [begin, end] = rows_of(group);
  return (end - begin + kItemRows - 1) / kItemRows * op_.segment_count;
}

int AdapterRun::items() const {
  int items = 0;
  for (int g = 0; g < groups_; ++g) items += items_of(g);
  return items;
}

void AdapterRun::shrink(int item) const {
  int group = 0;
  for (int own; item >= (own = items_of(group)); ++group) item -= own;
  const int segment = item % op_.segment_count;
  const AdapterMatrices* m = matrices(group, segment);
  if (m == nullptr) return;
  const AdapterMatrices* after = group + 1 < groups_ ? matrices(group + 1, segment) : nullptr;
  const uint8_t* next = after == nullptr ? m->a : after->a;
  const auto [first, last] = rows_of(group);
  const int begin = first + item / op_.segment_count * kItemRows, end = std::min(begin + kItemRows, last);
  const std::vector<int32_t>& rows = op_.adapted->groups[group].rows;
  for (int at = begin; at < end; at += kAdapterRows) {
    const int count = std::min(kAdapterRows, end - at);
    const float* x[kAdapterRows];
    float* h[kAdapterRows];
    for (int i = 0; i < count; ++i) {
      const int row = rows[at + i];
      const float* kept = input(row - first_);
      x[i] = kept == nullptr ? op_.x + row * op_.x_stride : kept;
      h[i] = reduced(row - first_, segment);
    }
    table_.shrink(*m, x, count, op_.round_bf16, h, next);
  }
}

bool AdapterRun::expand(int segment, int panel, int start, int count, const float* scale, float* sums) const {
  const int32_t *order = order_of(start), *end = order + count;
  const int32_t* group_of = op_.adapted->group_of.data() + first_;
  while (order < end && group_of[*order] < 0) ++order;
  bool scaled = false;
  while (order < end) {
    const int group = group_of[*order];
    const AdapterMatrices* m = matrices(group, segment);
    const float* h[kAdapterRows];
    float* out[kAdapterRows];
    int rows = 0;
    for (; order < end && rows < kAdapterRows && group_of[*order] == group; ++order, ++rows) {
      h[rows] = reduced(*order, segment);
      out[rows] = sums + (*order - start) * kPanel;
    }
    if (m == nullptr) continue;
    if (!scaled) {
      const Matrix& matrix = *op_.segments[segment].matrix;
      const float* bias = op_.segments[segment].bias;
      const int column = panel * kPanel;
      table_.scale(sums, count, std::min(kPanel, matrix.n - column), scale, bias == nullptr ? nullptr : bias + column);
      scaled = true;
    }
    table_.expand(*m, panel, h, rows, out);
  }
  return scaled;
}

}  // namespace corepipe
