// AMX tiles: eight registers of 16 rows x 64 bytes in each core, and their products.
#pragma once

#include <cstddef>

#include "isa/simd.h"

namespace corepipe {
namespace COREPIPE_SIMD {

constexpr int kTile = 16;  // rows of a tile, and 32-bit columns
constexpr int kTileBytes = 1024;

// The operand of ldtilecfg, palette 1.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

constexpr TileShapes kWholeTiles = {};

// The compiler's own intrinsics take no template arguments, and GCC 12's load hides from it that memory is read.

template <int kInto>
CP_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kInto));
}

template <int kInto>
CP_INLINE void tile_load(const void* from, size_t row_bytes) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kInto), "r"(from), "r"(row_bytes) : "memory");
}

template <int kFrom>
CP_INLINE void tile_store(void* to, size_t row_bytes) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kFrom), "r"(to), "r"(row_bytes) : "memory");
}

// sums += rows . columns, of s8 x u8 or bf16.
template <int kSums, int kRows, int kColumns>
CP_INLINE void tile_dot_s8u8() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kRows), "i"(kColumns));
}

template <int kSums, int kRows, int kColumns>
CP_INLINE void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kRows), "i"(kColumns));
}

static void claim_whole_tiles() { _tile_loadconfig(&kWholeTiles); }

// Without tiles in use a switch of threads saves nothing of them.
static void release_tiles() { _tile_release(); }

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
