// Attention.
#include "tables/parts.h"

#include "attention/attention.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

// Intel's vdpbf16ps takes more than twice as long as two multiply-adds with the same result.
#if defined(COREPIPE_INTEL)
constexpr AttentionTable kAttention = kAttentionBy<FmaBf16Cache<IntelDotOrder>>;
#else
constexpr AttentionTable kAttention = kAttentionBy<Bf16Cache>;
#endif

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
