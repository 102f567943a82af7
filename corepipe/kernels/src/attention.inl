// Attention and the sampler's passes for the ISA of the file that includes this.
#pragma once

#include "attention_items.inl"
#include "rows.inl"
#include "sampler.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

constexpr AttentionTable kAttention = {
    scratch_bytes,
    write_rows,
    attend,
    combine,
#if defined(__AMX_BF16__)
    claim_attention_tiles,
    release_tiles,
#else
    nullptr,
    nullptr,
#endif
};

constexpr SamplerTable kSampler = {argmax, row_max, group_maxima, divide_row, weigh_row, at_least, mask_row};

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
