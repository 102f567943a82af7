#include "executor/kv_cache.h"

#include <sys/mman.h>

#include <new>

#include "executor/checked.h"

namespace corepipe {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Runs of a head below this get small pages: rounding up to huge ones would make a cache that is little used
// resident several times over.
constexpr size_t kLongRun = 8 * kHugePage;

bool is_fp32(const std::string& dtype) {
  require(dtype == "bf16" || dtype == "fp32", "a cache holds bf16 or fp32, not '" + dtype + "'");
  return dtype == "fp32";
}

}  // namespace

Arena::Arena(size_t bytes, bool huge_pages)
    : mapped_(checked_sum("an arena", bytes, kHugePage)), bytes_(bytes) {
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  const uintptr_t address = reinterpret_cast<uintptr_t>(mapping_);
  data_ = reinterpret_cast<char*>((address + kHugePage - 1) / kHugePage * kHugePage);
#if defined(MADV_HUGEPAGE)
  if (huge_pages) madvise(data_, bytes_, MADV_HUGEPAGE);  // a hint: without it the pages are small
#endif
}

Arena::~Arena() { munmap(mapping_, mapped_); }

KVCache::KVCache(int layer_count, int block_count, int size_of_block, int heads, int elements,
                 const std::string& dtype, bool as_int8, int shared_elements)
    : layers(layer_count),
      blocks(block_count),
      block_size(size_of_block),
      kv_heads(heads),
      head_dim(elements),
      shared(shared_elements),
      fp32(is_fp32(dtype)),
      int8(as_int8),
      arena_(checked_bytes(), head_bytes() >= kLongRun) {}

size_t KVCache::checked_bytes() const {
  require(layers >= 0 && blocks >= 1 && kv_heads >= 1, "a cache needs layers >= 0, blocks >= 1 and kv_heads >= 1");
  require(block_size >= kKeyGroup && block_size % kKeyGroup == 0,
          "block_size must be a multiple of 16, got " + std::to_string(block_size));
  require(head_dim >= 1 && head_dim <= kMaxHeadDim, "head_dim must be 1 .. " + std::to_string(kMaxHeadDim));
  require(shared >= 0 && shared <= head_dim && (shared == 0 || kv_heads == 1),
          "of latents there is one head, a part of which is the value");
  return checked_product("a cache", {size_t(layers), size_t(kv_heads), size_t(blocks), size_t(block_size / kKeyGroup),
                                     group_bytes()});
}

KVLayer KVCache::layer(int index) const {
  char* base = arena_.data() + static_cast<size_t>(index) * kv_heads * head_bytes();
  KVLayer found = layer_of(head_dim, fp32, int8, shared);
  found.base = base;
  found.head_stride = head_bytes();
  found.groups_per_block = block_size / kKeyGroup;
  return found;
}

}  // namespace corepipe
