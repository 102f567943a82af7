#define COREPIPE_SIMD amx
#include "attention.inl"
#include "isa.h"
#include "linear_amx.inl"

namespace corepipe {

extern const KernelTable kAmxKernels;
const KernelTable kAmxKernels = {"amx", amx::kTiledLinear, amx::kAttention, amx::kRows, amx::kSampler};

}  // namespace corepipe
