// Which instruction set runs: chosen once, from the CPU and COREPIPE_ISA.
#pragma once

#include <string>
#include <vector>

#include "attention_table.h"
#include "linear_table.h"

namespace corepipe {

// One instance for each ISA, in isa_<name>.cpp.
struct KernelTable {
  const char* name;
  LinearTable linear;
  AttentionTable attention;
};

// The tables that this build has and this CPU can run, best first.
std::vector<const KernelTable*> available_kernels();

// The table named `name`.  Throws std::invalid_argument if there is none or the CPU can't run it.
const KernelTable& kernels_named(const std::string& name);

// The table in use: COREPIPE_ISA, or the best.  Throws as kernels_named.
const KernelTable& kernels();

}  // namespace corepipe
