#define COREPIPE_SIMD portable
#include "attention.inl"
#include "isa.h"
#include "linear_generic.inl"
#include "scan.inl"

namespace corepipe {

extern const KernelTable kPortableKernels;
const KernelTable kPortableKernels = {"portable", portable::kLinear, portable::kAttention, portable::kRows, portable::kSampler,
                                     portable::kScan};

}  // namespace corepipe
