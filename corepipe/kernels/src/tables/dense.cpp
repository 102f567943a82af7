// Linears except those of four bits.
#include "tables/parts.h"

#if defined(__AMX_INT8__)
#include "linear/linear_amx.inl"
#elif defined(__AVX512F__)
#include "linear/linear_avx512.inl"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "linear/linear_neon.inl"
#else
#include "linear/linear_generic.inl"
#endif

namespace corepipe {
namespace COREPIPE_SIMD {

#if defined(__AMX_INT8__)
constexpr DenseLinears kDense = tiled_linears();
#elif defined(__AVX512BF16__)
constexpr DenseLinears kDense = amd_linears(), kIntelDense = intel_linears();
#elif defined(__AVX512F__)
constexpr DenseLinears kDense = intel_linears();
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr DenseLinears kDense = neon_linears();
#elif defined(COREPIPE_VNNI)
constexpr DenseLinears kDense = dense_linears<VnniProducts>({28, 56, 28, 7}, 0);
#else
constexpr DenseLinears kDense = dense_linears<PairProducts>({56, 56, 14, 7}, 1);  // measured on Zen 4 and 3
#endif

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
