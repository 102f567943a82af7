#define COREPIPE_SIMD avx512
#include "attention.inl"
#include "isa.h"
#include "linear_avx512.inl"
#include "scan.inl"

namespace corepipe {

using namespace avx512;

extern const KernelTable kAvx512Kernels, kAvx512IntelKernels;
const KernelTable kAvx512Kernels = {"avx512", kLinear, kAttention, kRows, kSampler, kScan};
const KernelTable kAvx512IntelKernels = {"avx512", kIntelLinear, kAttentionBy<FmaBf16Cache<IntelDotOrder>>, kRows, kSampler, kScan};

}  // namespace corepipe
