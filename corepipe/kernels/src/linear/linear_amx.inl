// Products with AMX: a block of up to 32 rows times a panel of 32 columns is two by two tiles of 16 x 16 sums.
#pragma once

#include "linear/linear_avx512.inl"
#include "isa/tiles.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

constexpr int kTiledRows = 2 * kTile;

constexpr int tiles_of(int rows) { return (rows + kTile - 1) / kTile; }

// Sums: tile 2 i + j is rows 16 i, columns 16 j.  Tiles 4 and 5 hold rows, 6 and 7 weights.
template <int kTiles>
CP_INLINE void clear_sums() {
  tile_zero<0>();
  tile_zero<1>();
  if (kTiles == 2) {
    tile_zero<2>();
    tile_zero<3>();
  }
}

// Brings in the next `lines`.
CP_INLINE void fetch_lines(Fetch& ahead, int lines) {
  constexpr int kIntoL2 = 2;
  for (int i = 0; i < lines; ++i, ahead.from += 64) __builtin_prefetch(ahead.from, 0, kIntoL2);
}

// The number of lines to prefetch for each `bytes` of a panel.
CP_INLINE int lines_of(const Fetch& ahead, int bytes) { return ahead.parts == 0 ? 0 : bytes / 64 / ahead.parts; }

// ---- int8.  A block has q [groups][tiles][16][64] s8, then scale and -128 * sum(q) [groups][tiles][16] f32.
//
// A group's sums leave the tiles as fp32 without a conversion: they start from the bits of 1.5 * 2^23, where a
// float's lowest bit is 1, and 64 products of 127 * 255 in each of two groups don't leave [2^23, 2^24).  What the
// second group adds is the difference to the first, which is exact.

constexpr int32_t kMagicBits = 0x4b400000;
constexpr float kMagic = 12582912.0f;
constexpr int kTiledInt8RowGroup = kGroup + 4 + 4;
constexpr int kInt8PanelGroup = kPanel * kGroup;
constexpr int kTileSums = kTile * kTile;

struct alignas(64) MagicTile {
  int32_t bits[kTileSums];
  constexpr MagicTile() : bits() {
    for (int i = 0; i < kTileSums; ++i) bits[i] = kMagicBits;
  }
};
constexpr MagicTile kMagicTile;

template <int kTiles>
CP_INLINE void store_sums(float* sums) {
  tile_store<0>(sums, 64);
  tile_store<1>(sums + kTileSums, 64);
  if (kTiles == 2) {
    tile_store<2>(sums + 2 * kTileSums, 64);
    tile_store<3>(sums + 3 * kTileSums, 64);
  }
}

// sums [kGroups][2 kTiles][16][16] as they run up from the magic number.  A tile is stored just before its next
// product, when the one before has long ended.
template <int kTiles, int kGroups>
CP_INLINE void run_up(const uint8_t* w, const uint8_t* q, float* sums, Fetch& ahead, int lines) {
  tile_load<0>(kMagicTile.bits, 64);
  tile_load<1>(kMagicTile.bits, 64);
  if (kTiles == 2) {
    tile_load<2>(kMagicTile.bits, 64);
    tile_load<3>(kMagicTile.bits, 64);
  }
  unrolled<kGroups>([&](auto g) CP_LAMBDA {
    constexpr bool kStores = g.value > 0;
    float* before = sums + (g.value - 1) * 2 * kTiles * kTileSums;
    tile_load<6>(w, 128);
    tile_load<4>(q, 64);
    if (kStores) tile_store<0>(before, 64);
    tile_dot_s8u8<0, 4, 6>();
    tile_load<7>(w + 64, 128);
    if (kStores) tile_store<1>(before + kTileSums, 64);
    tile_dot_s8u8<1, 4, 7>();
    if (kTiles == 2) {
      tile_load<5>(q + kTileBytes, 64);
      if (kStores) tile_store<2>(before + 2 * kTileSums, 64);
      tile_dot_s8u8<2, 5, 6>();
      if (kStores) tile_store<3>(before + 3 * kTileSums, 64);
      tile_dot_s8u8<3, 5, 7>();
    }
    fetch_lines(ahead, lines);
    w += kInt8PanelGroup;
    q += kTiles * kTileBytes;
  });
  store_sums<kTiles>(sums + (kGroups - 1) * 2 * kTiles * kTileSums);
}

// out [rows][32] = (out, unless these groups are the first) + scale * (what each group adds + its correction).
template <int kTiles, int kGroups>
CP_INLINE void add_scaled(const float* sums, const float* scales, const float* corrections, int rows, bool first,
                          float* out) {
  for (int r = 0; r < rows; ++r) {
    const float* from = sums + (r / kTile) * 2 * kTileSums + (r % kTile) * kTile;
    __m512 total[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    if (!first) load_pair(out + r * kPanel, total);
    __m512 before[2];
    unrolled<kGroups>([&](int g) CP_LAMBDA {
      const __m512 scale = _mm512_set1_ps(scales[g * kTiles * kTile + r]);
      const __m512 correction = _mm512_set1_ps(corrections[g * kTiles * kTile + r]);
      unrolled<2>([&](int c) CP_LAMBDA {
        const __m512 start = g == 0 ? _mm512_set1_ps(kMagic) : before[c];
        before[c] = _mm512_load_ps(from + (g * 2 * kTiles + c) * kTileSums);
        const __m512 sum = _mm512_sub_ps(before[c], _mm512_sub_ps(start, correction));
        total[c] = _mm512_fmadd_ps(sum, scale, total[c]);
      });
    });
    store_pair(out + r * kPanel, total);
  }
}

template <int kTiles>
static void multiply_int8_tiles(int rows, const uint8_t* w, const uint8_t* q, int groups, float* out, Fetch ahead) {
  alignas(64) float sums[2 * 2 * kTiles * kTileSums];
  const float* scales = (const float*)(q + groups * kTiles * kTileBytes);
  const float* corrections = scales + groups * kTiles * kTile;
  const int lines = lines_of(ahead, kInt8PanelGroup);
  int g = 0;
  for (; g + 2 <= groups; g += 2) {
    run_up<kTiles, 2>(w + g * kInt8PanelGroup, q + g * kTiles * kTileBytes, sums, ahead, lines);
    add_scaled<kTiles, 2>(sums, scales + g * kTiles * kTile, corrections + g * kTiles * kTile, rows, g == 0, out);
  }
  if (g < groups) {
    run_up<kTiles, 1>(w + g * kInt8PanelGroup, q + g * kTiles * kTileBytes, sums, ahead, lines);
    add_scaled<kTiles, 1>(sums, scales + g * kTiles * kTile, corrections + g * kTiles * kTile, rows, g == 0, out);
  }
}

static void multiply_int8_tiled(int rows, const void* panel, const void* block, int groups, float* sums, Fetch ahead) {
  const uint8_t *w = (const uint8_t*)panel, *x = (const uint8_t*)block;
  if (rows > kTile) {
    multiply_int8_tiles<2>(rows, w, x, groups, sums, ahead);
  } else {
    multiply_int8_tiles<1>(rows, w, x, groups, sums, ahead);
  }
}

struct TiledRow {
  static constexpr int parts = 1;
  uint8_t* block;
  int row, tiles, groups;

  CP_INLINE int at(const TiledRow& to, int g) { return g * to.tiles * kTile + to.row; }
  CP_INLINE int8_t* q(const TiledRow& to, int g) { return (int8_t*)to.block + at(to, g) * kGroup; }
  CP_INLINE float* numbers(const TiledRow& to) { return (float*)(to.block + to.groups * to.tiles * kTileBytes); }

  CP_INLINE void put_scale(const TiledRow& to, int g, int, float scale) { numbers(to)[at(to, g)] = scale; }
  CP_INLINE void put_sum(const TiledRow& to, int g, int, int32_t sum) {
    numbers(to)[(to.groups * to.tiles) * kTile + at(to, g)] = (float)correction_of(sum);
  }
};

static void prepare_int8_tiled(const float* x, int k, int row, int rows, void* block) {
  prepare_row(x, k, TiledRow{(uint8_t*)block, row, tiles_of(rows), (k + kGroup - 1) / kGroup});
}

static void prepare_values_tiled(const int8_t* q, int row, int rows, void* block) {
  put_group(group_of_values(q), TiledRow{(uint8_t*)block, row, tiles_of(rows), 1}, 0);
}

// ---- bf16, and int8 weights widened.  A block has for each group [2][tiles][16][32] bf16; weights are bf16
// [k/2][32][2], as packed.

template <int kTiles>
static void multiply_bf16_tiles(const uint8_t* w, const uint8_t* x, int groups, float* out, Fetch ahead) {
  constexpr int kStepBytes = kPanel * kGroup;  // 32 columns of 32 k
  const int lines = lines_of(ahead, kStepBytes);
  clear_sums<kTiles>();
  for (int s = 0; s < 2 * groups; ++s) {
    tile_load<6>(w, 128);
    tile_load<4>(x, 64);
    tile_dot_bf16<0, 4, 6>();
    tile_load<7>(w + 64, 128);
    tile_dot_bf16<1, 4, 7>();
    if (kTiles == 2) {
      tile_load<5>(x + kTileBytes, 64);
      tile_dot_bf16<2, 5, 6>();
      tile_dot_bf16<3, 5, 7>();
    }
    fetch_lines(ahead, lines);
    w += kStepBytes;
    x += kTiles * kTileBytes;
  }
  tile_store<0>(out, kPanel * 4);
  tile_store<1>(out + kTile, kPanel * 4);
  if (kTiles == 2) {
    tile_store<2>(out + kTile * kPanel, kPanel * 4);
    tile_store<3>(out + kTile * kPanel + kTile, kPanel * 4);
  }
}

static void multiply_bf16_tiled(int rows, const void* panel, const void* block, int groups, float* sums, Fetch ahead) {
  const uint8_t *w = (const uint8_t*)panel, *x = (const uint8_t*)block;
  if (rows > kTile) {
    multiply_bf16_tiles<2>(w, x, groups, sums, ahead);
  } else {
    multiply_bf16_tiles<1>(w, x, groups, sums, ahead);
  }
}

// Prefetches, since products of unpacked panels do not read memory.
static void unpack_int8w(const void* panel, int groups, void* out) {
  constexpr int kBytesAhead = 4096, kIntoL2 = 2;
  const uint8_t* w = (const uint8_t*)panel;
  uint8_t* to = (uint8_t*)out;
  for (int i = 0; i < groups * kGroup / 2; ++i, w += 64, to += 128) {
    __builtin_prefetch(w + kBytesAhead, 0, kIntoL2);
    __m512i v[2];
    ConvertedInt8Weights::load(w, v);
    _mm512_store_si512(to, v[0]);
    _mm512_store_si512(to + 64, v[1]);
  }
}

static void multiply_int8w_tiled(int rows, const void* panel, const void* block, int groups, float* sums, Fetch) {
  multiply_bf16_tiled(rows, panel, block, groups, sums, {nullptr, 0});
}

static void prepare_bf16_tiled(const float* x, int k, int row, int rows, void* block) {
  constexpr int kHalf = kGroup / 2;
  float padded[kGroup];
  uint16_t* to = (uint16_t*)block + row * kHalf;
  const int step = tiles_of(rows) * kTile * kHalf;
  for (int g = 0; g * kGroup < k; ++g) {
    const float* group = group_of(x, k, g, padded);
    for (int i = 0; i < kGroup; i += kHalf, to += step) {
      for (int j = 0; j < kHalf; j += kLanes) store_bf16(to + j, round_bf16(load(group + i + j)));
    }
  }
}

constexpr LinearKernel tiled(LinearKernel kernel) {
  kernel.max_rows = kTiledRows;
  kernel.row_unit = kTile;
  kernel.begin = claim_whole_tiles;
  kernel.end = release_tiles;
  return kernel;
}

constexpr LinearKernel kInt8Tiled =
    tiled({0, kTiledInt8RowGroup, prepare_int8_tiled, multiply_int8_tiled, prepare_values_tiled});
constexpr LinearKernel kBf16Tiled = tiled({0, kBf16RowGroup, prepare_bf16_tiled, multiply_bf16_tiled});
constexpr LinearKernel kInt8wTiled =
    tiled({0, kBf16RowGroup, prepare_bf16_tiled, multiply_int8w_tiled, nullptr, 0, 4 * kTileBytes, unpack_int8w});

// Sums of int8 have the same bits in both ways, so that few rows can go the way that reads weights once.  Sums of
// bf16 depend on the instruction: all go through tiles.
constexpr int kTiledFrom = 3;

// Measured on a Xeon with AMX.
constexpr DenseLinears tiled_linears() {
  return {
      {{int8_kernel(kInt8Rows), kTiledFrom, kInt8Tiled}, {kInt8wTiled}, {kBf16Tiled}, kFp32Kernels},
      {128, 128, 64, 64},
      0,
      finish,
  };
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
