// Ops on single rows, the sampler's passes, and recurrent layers.
#include "tables/parts.h"

#include "rows/rows.inl"
#include "rows/sampler.inl"
#include "rows/scan.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

constexpr RowParts kRowParts = {kRows, kSampler, kScan};

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
