#include "isa.h"

#include <cstdlib>
#include <stdexcept>

namespace corepipe {

extern const KernelTable kPortableKernels;

#if defined(__x86_64__)
extern const KernelTable kAvx512Kernels, kAvx2Kernels;

namespace {

// libgcc and compiler-rt ask cpuid, and xgetbv for what the operating system saves.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni") &&
         __builtin_cpu_supports("avx512bf16");
}

}  // namespace
#endif

std::vector<const KernelTable*> available_kernels() {
  std::vector<const KernelTable*> tables;
#if defined(__x86_64__)
  if (has_avx512()) tables.push_back(&kAvx512Kernels);
  if (has_avx2()) tables.push_back(&kAvx2Kernels);
#endif
  tables.push_back(&kPortableKernels);
  return tables;
}

const KernelTable& kernels_named(const std::string& name) {
  std::string names;
  for (const KernelTable* table : available_kernels()) {
    if (name == table->name) return *table;
    names += (names.empty() ? "" : ", ") + std::string(table->name);
  }
  throw std::invalid_argument("COREPIPE_ISA=" + name + " is unknown or not supported by this CPU; use one of: " + names);
}

const KernelTable& kernels() {
  static const KernelTable& chosen = []() -> const KernelTable& {
    const char* name = std::getenv("COREPIPE_ISA");
    return name != nullptr && *name != '\0' ? kernels_named(name) : *available_kernels().front();
  }();
  return chosen;
}

}  // namespace corepipe
