// Which tables of kernels the CPU and the operating system can run.
#pragma once

#include <vector>

namespace corepipe {

// Names of kernels.cmake's, best first.  Of AVX-512 with BF16 there are two ways to use it, by whose CPU it is.
std::vector<const char*> tables_of_this_cpu();

}  // namespace corepipe
