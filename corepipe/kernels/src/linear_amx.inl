// Products with AMX: a block of up to 32 rows times a panel of 32 columns is two by two tiles of 16 x 16 sums.
#pragma once

#include "linear_avx512.inl"
#include "tiles.inl"

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

// ---- int8.  A block has q [groups][tiles][16][64] s8, then scale [groups][tiles][16] f32; an unpacked panel is
// s8 [groups][2][16 of k/4][16][4].
//
// A group's sums leave the tiles as fp32 without a conversion: they start from the bits of 1.5 * 2^23, where a
// float's lowest bit is 1, and 64 products of 127 * 128 in each of four groups don't leave [2^23, 2^24).  The sums
// of one group are what it adds to those before, which is exact.

constexpr int32_t kMagicBits = 0x4b400000;
constexpr float kMagic = 12582912.0f;
constexpr int kGroupsInTiles = 4;
constexpr int kTiledInt8RowGroup = kGroup + 4;
constexpr int kInt8PanelGroup = 2 * kTileBytes;

struct alignas(64) MagicTile {
  int32_t bits[kTile * kTile];
  constexpr MagicTile() : bits() {
    for (int i = 0; i < kTile * kTile; ++i) bits[i] = kMagicBits;
  }
};
constexpr MagicTile kMagicTile;

static void unpack_int8(const void* panel, int groups, void* out) {
  const uint8_t* w = (const uint8_t*)panel;
  uint8_t* to = (uint8_t*)out;
  const __m512i sign = _mm512_set1_epi8(-128);
  for (int g = 0; g < groups; ++g, w += kInt8PanelGroup, to += kInt8PanelGroup) {
#pragma GCC unroll 4
    for (int i = 0; i < kTile; ++i) {
      _mm512_store_si512(to + 64 * i, _mm512_xor_si512(_mm512_loadu_si512(w + 128 * i), sign));
      _mm512_store_si512(to + kTileBytes + 64 * i, _mm512_xor_si512(_mm512_loadu_si512(w + 128 * i + 64), sign));
    }
  }
}

// sums [kGroups][2 kTiles][16][16] as they run up from the magic number.  A tile is stored just before its next
// product, when the one before has long ended.
template <int kTiles, int kGroups>
CP_INLINE void run_up(const uint8_t* w, const uint8_t* q, float* sums) {
  tile_load<0>(kMagicTile.bits, 64);
  tile_load<1>(kMagicTile.bits, 64);
  if (kTiles == 2) {
    tile_load<2>(kMagicTile.bits, 64);
    tile_load<3>(kMagicTile.bits, 64);
  }
  unrolled<kGroups>([&](auto g) CP_LAMBDA {
    constexpr bool kStores = g.value > 0;
    float* before = sums + (g.value - 1) * 2 * kTiles * kTile * kTile;
    tile_load<6>(w, 64);
    tile_load<4>(q, 64);
    if (kStores) tile_store<0>(before, 64);
    tile_dot_s8<0, 4, 6>();
    tile_load<7>(w + kTileBytes, 64);
    if (kStores) tile_store<1>(before + 256, 64);
    tile_dot_s8<1, 4, 7>();
    if (kTiles == 2) {
      tile_load<5>(q + kTileBytes, 64);
      if (kStores) tile_store<2>(before + 512, 64);
      tile_dot_s8<2, 5, 6>();
      if (kStores) tile_store<3>(before + 768, 64);
      tile_dot_s8<3, 5, 7>();
    }
    w += kInt8PanelGroup;
    q += kTiles * kTileBytes;
  });
  float* last = sums + (kGroups - 1) * 2 * kTiles * kTile * kTile;
  tile_store<0>(last, 64);
  tile_store<1>(last + 256, 64);
  if (kTiles == 2) {
    tile_store<2>(last + 512, 64);
    tile_store<3>(last + 768, 64);
  }
}

// out [16 kTiles][32] += scale * (what each group adds).
template <int kTiles, int kGroups>
CP_INLINE void add_scaled(const float* sums, const float* scales, bool first, float* out) {
  for (int r = 0; r < kTiles * kTile; ++r) {
    const float* from = sums + (r / kTile) * 512 + (r % kTile) * kTile;
    __m512 total[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    if (!first) load_pair(out + r * kPanel, total);
    __m512 before[2] = {_mm512_set1_ps(kMagic), _mm512_set1_ps(kMagic)};
    unrolled<kGroups>([&](auto g) CP_LAMBDA {
      const __m512 scale = _mm512_set1_ps(scales[g.value * kTiles * kTile + r]);
      unrolled<2>([&](auto c) CP_LAMBDA {
        const __m512 now = _mm512_load_ps(from + (g.value * 2 * kTiles + c.value) * 256);
        total[c.value] = _mm512_fmadd_ps(_mm512_sub_ps(now, before[c.value]), scale, total[c.value]);
        before[c.value] = now;
      });
    });
    store_pair(out + r * kPanel, total);
  }
}

CP_INLINE void fetch_group(Fetch& ahead, int bytes) {
  if (ahead.parts == 0) return;
  const uint8_t* end = ahead.from + bytes / ahead.parts;
  for (; ahead.from < end; ahead.from += 64) __builtin_prefetch(ahead.from, 0, 2);
}

template <int kTiles>
static void multiply_int8_tiles(const uint8_t* w, const uint8_t* q, int groups, float* out, Fetch ahead) {
  alignas(64) float sums[kGroupsInTiles * 2 * kTiles * kTile * kTile];
  const float* scales = (const float*)(q + groups * kTiles * kTileBytes);
  for (int done = 0; done < groups;) {
    const bool first = done == 0;
    const auto step = [&](auto count) CP_LAMBDA {
      constexpr int kGroups = decltype(count)::value;
      run_up<kTiles, kGroups>(w, q, sums);
      for (int g = 0; g < kGroups; ++g) fetch_group(ahead, kInt8PanelGroup);
      add_scaled<kTiles, kGroups>(sums, scales, first, out);
      w += kGroups * kInt8PanelGroup;
      q += kGroups * kTiles * kTileBytes;
      scales += kGroups * kTiles * kTile;
      done += kGroups;
    };
    switch (groups - done) {
      case 1: step(Index<1>{}); break;
      case 2: step(Index<2>{}); break;
      case 3: step(Index<3>{}); break;
      default: step(Index<kGroupsInTiles>{});
    }
  }
}

static void multiply_int8_tiled(int rows, const void* panel, const void* block, int groups, float* sums, Fetch ahead) {
  const uint8_t *w = (const uint8_t*)panel, *x = (const uint8_t*)block;
  if (rows > kTile) {
    multiply_int8_tiles<2>(w, x, groups, sums, ahead);
  } else {
    multiply_int8_tiles<1>(w, x, groups, sums, ahead);
  }
}

struct TiledRow {
  static constexpr bool kCorrected = false;
  uint8_t* block;
  int row, tiles, groups;

  CP_INLINE int8_t* q(const TiledRow& to, int g) {
    return (int8_t*)to.block + (g * to.tiles * kTile + to.row) * kGroup;
  }
  CP_INLINE void* scale(const TiledRow& to, int g) {
    return to.block + to.groups * to.tiles * kTileBytes + 4 * (g * to.tiles * kTile + to.row);
  }
};

static void prepare_int8_tiled(const float* x, int k, int row, int rows, void* block) {
  prepare_row(x, k, TiledRow{(uint8_t*)block, row, tiles_of(rows), (k + kGroup - 1) / kGroup});
}

static void prepare_values_tiled(const int8_t* q, int row, int rows, void* block) {
  const TiledRow to = {(uint8_t*)block, row, tiles_of(rows), 1};
  const float one = 1.0f;
  memcpy(TiledRow::q(to, 0), q, kGroup);
  memcpy(TiledRow::scale(to, 0), &one, 4);
}

// ---- bf16, and int8 weights widened.  A block has for each group [2][tiles][16][32] bf16; weights are bf16
// [k/2][32][2], as packed.

static void unpack_int8w(const void* panel, int groups, void* out) {
  const uint8_t* w = (const uint8_t*)panel;
  uint8_t* to = (uint8_t*)out;
  for (int i = 0; i < groups * kGroup / 2; ++i, w += 64, to += 128) {
    __m512i v[2];
    ConvertedInt8Weights::load(w, v);
    _mm512_store_si512(to, v[0]);
    _mm512_store_si512(to + 64, v[1]);
  }
}

template <int kTiles>
static void multiply_bf16_tiles(const uint8_t* w, const uint8_t* x, int groups, float* out, Fetch ahead) {
  constexpr int kStepBytes = 128 * kTile;  // 32 columns of 32 k
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
    fetch_group(ahead, kStepBytes);
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

constexpr LinearKernel kInt8Tiled = tiled({0, kTiledInt8RowGroup, prepare_int8_tiled, multiply_int8_tiled,
                                           prepare_values_tiled, 0, kInt8PanelGroup, unpack_int8});
constexpr LinearKernel kBf16Tiled = tiled({0, kBf16RowGroup, prepare_bf16_tiled, multiply_bf16_tiled});
constexpr LinearKernel kInt8wTiled =
    tiled({0, kBf16RowGroup, prepare_bf16_tiled, multiply_bf16_tiled, nullptr, 0, 4 * kTileBytes, unpack_int8w});

// Sums of int8 have the same bits in both ways, so that few rows can go the way that reads weights once.  Sums of
// bf16 depend on the instruction: all go through tiles.
constexpr int kTiledFrom = 6;

constexpr LinearTable kTiledLinear = {
    {
        {kLinear.kinds[0].few, kTiledFrom, kInt8Tiled},
        {kInt8wTiled},
        {kBf16Tiled},
        kLinear.kinds[3],
    },
    {128, 128, 32, 32},
    finish,
    rms_norm_row,
};

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
