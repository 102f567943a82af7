#pragma once

#include "binding/binding.h"
#include "executor/program.h"

namespace corepipe {

// A Program with the Python objects it points into.
struct PyProgram {
  PyProgram(std::vector<int> widths, int max_rows, bool round_bf16) : program(std::move(widths), max_rows, round_bf16) {}

  Program program;
  std::vector<std::shared_ptr<void>> kept;
};

}  // namespace corepipe
