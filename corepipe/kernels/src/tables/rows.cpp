// Ops on single rows, the sampler's passes, recurrent layers, and adapters.
#include "tables/parts.h"

#include "linear/adapters.inl"
#include "rows/rows.inl"
#include "rows/sampler.inl"
#include "rows/scan.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

constexpr RowParts kRowParts = {kRows, kSampler, kScan, kAdapters};

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
