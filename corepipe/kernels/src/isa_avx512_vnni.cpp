#define COREPIPE_SIMD avx512_vnni
#include "attention.inl"
#include "isa.h"
#include "linear_avx512.inl"
#include "scan.inl"

namespace corepipe {

using namespace avx512_vnni;

extern const KernelTable kAvx512VnniKernels;
const KernelTable kAvx512VnniKernels = {"avx512-vnni", kIntelLinear, kAttention, kRows, kSampler, kScan};

}  // namespace corepipe
