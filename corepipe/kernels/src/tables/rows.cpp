// Ops on single rows, the sampler's passes, and recurrent layers.
#include "parts.h"

#include "../rows.inl"
#include "../sampler.inl"
#include "../scan.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

constexpr RowParts kRowParts = {kRows, kSampler, kScan};

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
