// Attention for the ISA of the file that includes this.
#pragma once

#include "attention/attention_items.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

// Rows: the Cache by which several rows meet a bf16 cache.
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

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
