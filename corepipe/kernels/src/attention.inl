// Attention and the sampler's passes for the ISA of the file that includes this.
#pragma once

#include "attention_items.inl"
#include "rows.inl"
#include "sampler.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

template <class Rows>
constexpr AttentionTable kAttentionBy = {
    scratch_bytes,
    write_rows,
    attend<Rows>,
    combine,
#if defined(__AMX_BF16__)
    claim_attention_tiles,
    release_tiles,
#else
    nullptr,
    nullptr,
#endif
    kWidens,
};

constexpr AttentionTable kAttention = kAttentionBy<Bf16Cache>;

constexpr SamplerTable kSampler = {argmax, row_max, group_maxima, divide_row, weigh_row, at_least, mask_row};

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
