#define COREPIPE_SIMD avx2
#include "attention.inl"
#include "isa.h"
#include "linear_generic.inl"
#include "scan.inl"

namespace corepipe {

using namespace avx2;

extern const KernelTable kAvx2Kernels;
const KernelTable kAvx2Kernels = {"avx2", kLinear, kAttention, kRows, kSampler, kScan};

#if defined(COREPIPE_AVX_VNNI)
extern const KernelTable kAvx2VnniKernels;
const KernelTable kAvx2VnniKernels = {"avx2-vnni", kVnniLinear, kAttention, kRows, kSampler, kScan};
#endif

}  // namespace corepipe
