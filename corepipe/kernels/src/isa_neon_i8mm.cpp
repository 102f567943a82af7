#define COREPIPE_SIMD neon_i8mm
#include "isa.h"
#include "linear_neon.inl"

namespace corepipe {

extern const KernelTable kPortableKernels, kNeonI8mmKernels;
// All but the Linears is portable's: see isa_neon_dotprod.cpp.
const KernelTable kNeonI8mmKernels = {"neon-i8mm", neon_i8mm::kMatrixLinear, kPortableKernels.attention,
                                      kPortableKernels.rows, kPortableKernels.sampler, kPortableKernels.scan};

}  // namespace corepipe
