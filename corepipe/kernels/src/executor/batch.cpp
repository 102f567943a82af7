#include "executor/batch.h"

#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

namespace corepipe {

namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(std::string("sampling: ") + what);
}

template <class T>
bool has_nan(const std::vector<T>& values) {
  return std::any_of(values.begin(), values.end(), [](T x) { return x != x; });
}

void check_offsets(const std::vector<int32_t>& offsets, size_t rows, size_t items, const char* what) {
  require(offsets.size() == rows + 1 && offsets.front() == 0, what);
  require(std::is_sorted(offsets.begin(), offsets.end()), what);
  require(static_cast<size_t>(offsets.back()) == items, what);
}

}  // namespace

Batch next_rows(const Batch& batch) {
  const int sequences = batch.sequences();
  if (batch.logits() != sequences || !batch.types.empty() || !batch.patches.empty()) {
    throw std::invalid_argument("each sequence must draw one token");
  }
  Batch next;
  next.tokens.assign(sequences, 0);
  next.starts.resize(sequences + 1);
  next.logit_rows.resize(sequences);
  std::iota(next.starts.begin(), next.starts.end(), 0);
  std::iota(next.logit_rows.begin(), next.logit_rows.end(), 0);
  for (int s = 0; s < sequences; ++s) {
    const int last = batch.starts[s + 1] - 1;
    if (batch.logit_rows[s] != last) throw std::invalid_argument("each sequence must draw the token behind its last row");
    next.positions.push_back(batch.positions[last] + 1);
    if (!batch.adapters.empty()) next.adapters.push_back(batch.adapters[last]);
  }
  next.tables = batch.tables;
  next.table_width = batch.table_width;
  next.slots = batch.slots;
  return next;
}

Sampling next_draws(const Sampling& sampling) {
  require(sampling.masks() == 0 && sampling.bias_ids.empty() && sampling.seen_ids.empty(),
          "what is drawn next must hang on the logits alone");
  require(std::all_of(sampling.chosen.begin(), sampling.chosen.end(), [](int32_t id) { return id < 0; }),
          "a token that is chosen is not drawn");
  Sampling next = sampling;
  for (int64_t& position : next.position) ++position;
  return next;
}

void check_sampling(const Sampling& s, int rows, int vocab) {
  const size_t n = rows;
#define COREPIPE_CHECK(type, name, ...)                                        \
  require(s.name.size() == n, "each parameter has one value a logit row");     \
  require(!has_nan(s.name), "NaN is no parameter");
  COREPIPE_ROW_PARAMETERS(COREPIPE_CHECK)
#undef COREPIPE_CHECK
  require(!has_nan(s.bias_values), "NaN is no bias");
  check_offsets(s.bias_offsets, n, s.bias_ids.size(), "bias_offsets must ascend from 0 to len(bias_ids)");
  check_offsets(s.seen_offsets, n, s.seen_ids.size(), "seen_offsets must ascend from 0 to len(seen_ids)");
  require(s.bias_values.size() == s.bias_ids.size(), "bias_ids and bias_values differ in length");
  require(s.seen_counts.size() == s.seen_ids.size(), "seen_ids and seen_counts differ in length");
  require(std::none_of(s.seen_counts.begin(), s.seen_counts.end(), [](int32_t n) { return n < 0; }),
          "seen_counts must be >= 0");
  const auto outside = [&](int32_t id) { return id < 0 || id >= vocab; };
  require(std::none_of(s.bias_ids.begin(), s.bias_ids.end(), outside), "a bias id is outside the vocabulary");
  require(std::none_of(s.seen_ids.begin(), s.seen_ids.end(), outside), "a seen id is outside the vocabulary");
  int masks = 0;
  for (size_t r = 0; r < n; ++r) {
    require(s.masked[r] == -1 || s.masked[r] == masks, "masked must be -1, or count the masks from 0");
    masks += s.masked[r] >= 0;
    require(s.masked[r] < 0 || s.chosen[r] < 0, "a row whose token is chosen has no mask");
#define COREPIPE_CHECK(type, name, allowed, error) \
  if ([[maybe_unused]] const type x = s.name[r]; true) require(allowed, error);
    COREPIPE_ROW_PARAMETERS(COREPIPE_CHECK)
#undef COREPIPE_CHECK
  }
}

}  // namespace corepipe
