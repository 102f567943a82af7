// Inputs and outputs of a step; see corepipe.neuron.step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "linear/adapters.h"

namespace corepipe {

struct Batch {
  std::vector<int32_t> tokens, positions;  // [M]
  std::vector<int32_t> types;              // [M], or none where no program reads them
  std::vector<float> patches;              // [M, width], or none where no program reads them
  std::vector<int32_t> starts;             // [S + 1]
  std::vector<int32_t> tables;             // [tables of a sequence, S, table_width]
  int table_width = 0;
  std::vector<int32_t> logit_rows;  // [R], ascending
  std::vector<int32_t> adapters;    // [M]: the slot of each row's adapter, -1 for none; or empty: no row has one
  std::vector<std::shared_ptr<const Adapter>> slots;

  int rows() const { return static_cast<int>(tokens.size()); }
  int sequences() const { return static_cast<int>(starts.size()) - 1; }
  int logits() const { return static_cast<int>(logit_rows.size()); }
  const int32_t* table(int index) const { return tables.data() + static_cast<size_t>(index) * sequences() * table_width; }
};

// The parameters with one value x a logit row, named as in SamplingBatch (corepipe/neuron/step.py): the type, the
// name, which values are allowed, and the error for others.  The struct, its binding and its checks are made of this
// list.  masked: the row's place among the masks, which come later; -1: it has none.
#define COREPIPE_ROW_PARAMETERS(X)                                                                          \
  X(float, temperature, x >= 0 && std::isfinite(x), "temperature must be finite and >= 0")                  \
  X(float, top_p, x >= 0 && x <= 1, "top_p must be 0 .. 1")                                                 \
  X(float, min_p, x >= 0 && x <= 1, "min_p must be 0 .. 1")                                                 \
  X(float, repetition, x > 0 && std::isfinite(x), "repetition must be finite and > 0")                      \
  X(float, presence, std::isfinite(x), "presence must be finite")                                           \
  X(float, frequency, std::isfinite(x), "frequency must be finite")                                         \
  X(int32_t, top_k, x >= 0, "top_k must be >= 0")                                                           \
  X(uint64_t, seed, true, "")                                                                               \
  X(int64_t, position, x >= 0, "position must be >= 0")                                                     \
  X(int32_t, chosen, x >= -1 && x < vocab, "a chosen id is outside the vocabulary")                         \
  X(int32_t, top_logprobs, x >= -1 && x <= vocab, "top_logprobs must be -1 .. vocabulary size")             \
  X(int32_t, masked, x >= -1, "masked must be -1, or count the masks from 0")

struct Sampling {
#define COREPIPE_FIELD(type, name, ...) std::vector<type> name;
  COREPIPE_ROW_PARAMETERS(COREPIPE_FIELD)
#undef COREPIPE_FIELD
  std::vector<int32_t> bias_offsets, bias_ids;
  std::vector<float> bias_values;
  std::vector<int32_t> seen_offsets, seen_ids, seen_counts;

  int rows() const { return static_cast<int>(temperature.size()); }
  int masks() const { return static_cast<int>(masked.size() - std::count(masked.begin(), masked.end(), -1)); }
};

// The batch after one in which each sequence samples the token after its last row: one more row per sequence, of a
// token that is not known yet (0), with the same sampling parameters.  Throws std::invalid_argument where a sequence
// samples no such token, and for sampling that depends on more than logits.
Batch next_rows(const Batch& batch);
Sampling next_draws(const Sampling& sampling);

// Throws std::invalid_argument where sizes, offsets, ids or ranges are wrong.
void check_sampling(const Sampling& sampling, int rows, int vocab);

// Words of a row's mask.  Bit i & 31 of word i >> 5 says whether token i is allowed.
constexpr size_t mask_words(int vocab) { return (static_cast<size_t>(vocab) + 31) / 32; }

struct Drawn {
  std::vector<int32_t> tokens, top_ids;
  std::vector<int32_t> ranks;  // of the chosen tokens, 1 the likeliest; 0 in the rows that draw
  std::vector<float> logprobs, top_logprobs;
  int top_width = 0;
  std::unique_ptr<bool[]> finite;  // whether all logits of the row are finite
};

struct Span {
  int program;
  int64_t start_ns, end_ns;
};

}  // namespace corepipe
