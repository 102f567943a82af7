// The portable kernels with multiply-adds that round once, in software where the CPU has none: slow, and the same bits as
// everywhere.
#define COREPIPE_SIMD portable_fused
#define COREPIPE_FUSED
#include "attention.inl"
#include "isa.h"
#include "linear_generic.inl"
#include "scan.inl"

namespace corepipe {

using namespace portable_fused;

extern const KernelTable kPortableFusedKernels;
const KernelTable kPortableFusedKernels = {"portable", kLinear, kAttention, kRows, kSampler, kScan};

}  // namespace corepipe
