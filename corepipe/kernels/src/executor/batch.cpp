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
  }
  next.tables = batch.tables;
  next.table_width = batch.table_width;
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
  for (const auto* field : {&s.temperature, &s.top_p, &s.min_p, &s.repetition, &s.presence, &s.frequency}) {
    require(field->size() == n, "each parameter has one value a logit row");
    require(std::none_of(field->begin(), field->end(), [](float x) { return std::isnan(x); }), "NaN is no parameter");
  }
  require(std::none_of(s.bias_values.begin(), s.bias_values.end(), [](float x) { return std::isnan(x); }),
          "NaN is no bias");
  for (const auto* field : {&s.top_k, &s.top_logprobs, &s.chosen, &s.masked}) {
    require(field->size() == n, "each parameter has one value a logit row");
  }
  require(s.seed.size() == n && s.position.size() == n, "each parameter has one value a logit row");
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
    require(s.temperature[r] >= 0 && std::isfinite(s.temperature[r]), "temperature must be finite and >= 0");
    require(s.top_p[r] >= 0 && s.top_p[r] <= 1, "top_p must be 0 .. 1");
    require(s.min_p[r] >= 0 && s.min_p[r] <= 1, "min_p must be 0 .. 1");
    require(s.repetition[r] > 0 && std::isfinite(s.repetition[r]), "repetition must be finite and > 0");
    require(std::isfinite(s.presence[r]), "presence must be finite");
    require(std::isfinite(s.frequency[r]), "frequency must be finite");
    require(s.top_k[r] >= 0, "top_k must be >= 0");
    require(s.position[r] >= 0, "position must be >= 0");
    require(s.chosen[r] >= -1 && s.chosen[r] < vocab, "a chosen id is outside the vocabulary");
    require(s.top_logprobs[r] >= -1 && s.top_logprobs[r] <= vocab, "top_logprobs must be -1 .. vocabulary size");
  }
}

}  // namespace corepipe
