#define COREPIPE_SIMD avx512
#include "attention.inl"
#include "isa.h"
#include "linear_avx512.inl"

namespace corepipe {

extern const KernelTable kAvx512Kernels;
const KernelTable kAvx512Kernels = {"avx512", avx512::kLinear, avx512::kAttention, avx512::kRows, avx512::kSampler};

}  // namespace corepipe
