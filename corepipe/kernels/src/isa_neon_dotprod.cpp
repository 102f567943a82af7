#define COREPIPE_SIMD neon_dotprod
#include "isa.h"
#include "linear_neon.inl"

namespace corepipe {

extern const KernelTable kPortableKernels, kNeonDotprodKernels;
// All but the Linears is portable's, which is compiled for NEON; that table is a constant, and there before this one.
const KernelTable kNeonDotprodKernels = {"neon-dotprod", neon_dotprod::kDotLinear, kPortableKernels.attention,
                                         kPortableKernels.rows, kPortableKernels.sampler, kPortableKernels.scan};

}  // namespace corepipe
