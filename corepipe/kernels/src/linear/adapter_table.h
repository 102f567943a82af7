// What an ISA provides for adapters: leaf functions without state, called by adapters.cpp.
#pragma once

#include <cstdint>

namespace corepipe {

constexpr int kAdapterStep = 32;  // elements of k, or columns of n, that lie together; both are padded to this
constexpr int kAdapterTile = 8;   // rows of a that lie together, 32 elements of each in turn
constexpr int kAdapterRows = 4;   // most rows of a call

// An adapter's matrices for a Linear of n columns over k elements: a in tiles of eight rows or the rest of them, [k / 32]
// [rows][32], and b [n / 32][rank][32], padded with zeros; fp32, or bf16 in words, with element i of 32 in the low half of
// a word and element i + 16 in the high half.
struct AdapterMatrices {
  int n = 0, k = 0;
  int rank = 0;  // 0: the adapter does not change this Linear
  float scale = 1;
  bool is_bf16 = false;
  const uint8_t* a = nullptr;
  const uint8_t* b = nullptr;
};

// A number's bits depend on no other row and no other number: they are added up in an order that `k` and `rank` set.
struct AdapterTable {
  // h[r][j] = x[r] . a[j] * scale, for each j < rank; rounded to bf16 if `round`.  h[r] has room for a multiple of 16.
  // Meanwhile as many bytes as a has are brought into the cache, from `next` on.
  void (*shrink)(const AdapterMatrices& m, const float* const* x, int rows, bool round, float* const* h,
                 const uint8_t* next);
  // sums[r] [32] += h[r] . b, the columns of a panel; the next panel's part of b is brought into the cache.
  void (*expand)(const AdapterMatrices& m, int panel, const float* const* h, int rows, float* const* sums);
  // sums [rows][32] * scale + bias, of n columns, either of which may be null: what `finish` begins with.
  void (*scale)(float* sums, int rows, int n, const float* scale, const float* bias);
};

}  // namespace corepipe
