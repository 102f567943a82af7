#define COREPIPE_SIMD avx2
#include "attention.inl"
#include "isa.h"
#include "linear_generic.inl"

namespace corepipe {

extern const KernelTable kAvx2Kernels;
const KernelTable kAvx2Kernels = {"avx2", avx2::kLinear, avx2::kAttention, avx2::kRows, avx2::kSampler};

}  // namespace corepipe
