// Steps that each thread takes some of a batch's rows through by itself.
#pragma once

#include <cstddef>
#include <vector>

#include "executor/layout.h"
#include "executor/program.h"

namespace corepipe {

// Rows that a thread takes together.
struct RowSpan {
  int first, rows;
};

struct Chain {
  int steps = 0;
  std::vector<RowSpan> spans;
};

// The stops from `at` on that can be passed so; none where the batch has too few rows.  Steps that need whole sequences
// are among them where these can be divided evenly.
Chain chain_at(const Run& run, const std::vector<Stop>& stops, size_t at);

// What a step writes is still in the thread's cache when the next one reads it, and no thread waits for another in
// between.
void pass_chain(const Run& run, const Stop* stops, const Chain& chain);

}  // namespace corepipe
