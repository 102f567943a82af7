// Which tables of kernels the CPU and the operating system can run.
#pragma once

#include <vector>

namespace corepipe {

// Names of the tables in kernels.cmake, best first.  AVX-512 with BF16 is used in two ways, depending on the CPU's
// maker.
std::vector<const char*> tables_of_this_cpu();

}  // namespace corepipe
