#define COREPIPE_SIMD amx
#include "attention.inl"
#include "isa.h"
#include "linear_amx.inl"
#include "scan.inl"

namespace corepipe {

extern const KernelTable kAmxKernels;
const KernelTable kAmxKernels = {"amx", amx::kTiledLinear, amx::kAttention, amx::kRows, amx::kSampler,
                                amx::kScan};

}  // namespace corepipe
