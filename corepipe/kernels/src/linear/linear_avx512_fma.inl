// bf16, and int8 weights widened on the fly, with AVX-512 but without its BF16 instructions: by multiply-adds in fp32.
#pragma once

#include "linear/linear_float.inl"
#include "linear/linear_zmm.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

constexpr int kBf16RowGroup = kFloatRowGroup;
constexpr auto prepare_bf16 = prepare_float<true>;

using Bf16Product = FloatProduct<Bf16Weights>;
using Int8wProduct = FloatProduct<Int8Weights>;

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
