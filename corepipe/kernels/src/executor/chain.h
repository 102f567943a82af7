// Steps through which each thread takes some of a batch's rows by itself.
#pragma once

#include <cstddef>
#include <vector>

#include "executor/layout.h"
#include "executor/program.h"

namespace corepipe {

// Rows that a thread processes together.
struct RowSpan {
  int first, rows;
};

struct Chain {
  int steps = 0;
  std::vector<RowSpan> spans;
};

// Returns the steps from `at` on that can run so; none if the batch has too few rows.  Steps that need whole sequences
// are included if the sequences can be divided evenly.
Chain chain_at(const Run& run, const std::vector<Stop>& stops, size_t at);

// The results of a step are still in the thread's cache when the next one reads them, and no thread waits for another
// in between.
void pass_chain(const Run& run, const Stop* stops, const Chain& chain);

}  // namespace corepipe
