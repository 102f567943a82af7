// Linears of four bits.
#include "tables/parts.h"

#if defined(__AVX512F__)
#include "linear/linear_int4_avx512.inl"
#else
#include "linear/linear_int4_generic.inl"
#if defined(__ARM_FEATURE_DOTPROD)
#include "linear/linear_neon.inl"
#endif
#endif

namespace corepipe {
namespace COREPIPE_SIMD {

#if defined(__AVX512F__)
constexpr Int4Linears kInt4 = int4_linears();
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr Int4Linears kInt4 = int4_linears<DotProducts<FourBitDot>>();
#elif defined(COREPIPE_VNNI)
constexpr Int4Linears kInt4 = int4_linears<VnniProducts>();
#else
constexpr Int4Linears kInt4 = int4_linears<FourBitProducts>();
#endif

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
