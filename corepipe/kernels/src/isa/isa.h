// Which instruction set runs: chosen once, from the CPU and COREPIPE_ISA.
#pragma once

#include <string>
#include <vector>

#include "attention/attention_table.h"
#include "linear/adapter_table.h"
#include "linear/linear_table.h"
#include "rows/row_table.h"
#include "rows/sampler_table.h"
#include "rows/scan_table.h"

namespace corepipe {

// One for each ISA, of the parts in tables/; docs/kernels.md says which CPU runs which.
struct KernelTable {
  const char* name;
  LinearTable linear;
  AttentionTable attention;
  RowTable rows;
  SamplerTable sampler;
  ScanTable scan;
  AdapterTable adapters;
};

// Calls `begin` and, at its end, `end`; either may be null.
class Turn {
 public:
  Turn(void (*begin)(), void (*end)()) : end_(end) {
    if (begin != nullptr) begin();
  }
  ~Turn() {
    if (end_ != nullptr) end_();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  void (*const end_)();
};

// The tables that this build has and this CPU can run, best first; and their names.
std::vector<const KernelTable*> available_kernels();
std::vector<std::string> available_names();

// Names of tables that this CPU could run, but the build left out, best first.
std::vector<std::string> left_out();

// The table named `name`.  Throws std::invalid_argument if there is none, the build left it out or the CPU can't run it.
const KernelTable& kernels_named(const std::string& name);

// The table in use: COREPIPE_ISA, or the best.  Throws as kernels_named.
const KernelTable& kernels();

// The same as far as its results have the bits that all tables can give: products of integers as in the table in use,
// everything else by multiply-adds in fp32 in the one order.  Throws as kernels_named.
const KernelTable& same_bits_kernels();

}  // namespace corepipe
