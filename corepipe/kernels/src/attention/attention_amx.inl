// Products of attention with AMX: up to 16 rows meet 16 keys, or 16 elements of values, in one tile.
#pragma once

namespace corepipe {
namespace COREPIPE_SIMD {

// Tiles 0-3 hold sums, 4 rows of 32 elements, 5 of 16, 6 and 7 what they meet.
constexpr TileShapes attention_tiles() {
  TileShapes shapes;
  shapes.row_bytes[5] = 32;
  shapes.rows[7] = 8;
  return shapes;
}
constexpr TileShapes kAttentionTiles = attention_tiles();

static void claim_attention_tiles() { _tile_loadconfig(&kAttentionTiles); }

// As much as the other kernels fetch while they multiply as long.
CP_INLINE void fetch_much(Ahead& ahead) {
  for (int i = 0; i < 4; ++i) fetch<Bf16Cache>(ahead);
}

template <int kGroups>
static void score_tiles(const uint16_t* q, int width, const char* const* keys, float* scores, Ahead& ahead) {
  const size_t row_bytes = (size_t)width * 2;
  unrolled<kGroups>([](auto g) CP_LAMBDA { tile_zero<g.value>(); });
  int d = 0;
  for (; d + 32 <= width; d += 32) {
    tile_load<4>(q + d, row_bytes);
    unrolled<kGroups>([&](auto g) CP_LAMBDA {
      tile_load<6>(keys[g.value] + d * 32, 64);
      tile_dot_bf16<g.value, 4, 6>();
      fetch_much(ahead);
    });
  }
  if (d < width) {
    tile_load<5>(q + d, row_bytes);
    unrolled<kGroups>([&](auto g) CP_LAMBDA {
      tile_load<7>(keys[g.value] + d * 32, 64);
      tile_dot_bf16<g.value, 5, 7>();
    });
  }
  unrolled<kGroups>([&](auto g) CP_LAMBDA { tile_store<g.value>(scores + g.value * kKeyGroup, kKeyBlock * 4); });
}

// As score_block; 16 rows are read and written, whatever there is.
CP_INLINE void score_block_tiled(const uint16_t* q, int width, const KeyBlock& block, int begin, int end,
                                 float* scores, Ahead& ahead) {
  const char* const* keys = block.keys + begin;
  scores += begin * kKeyGroup;
  switch (end - begin) {
    case 1: return score_tiles<1>(q, width, keys, scores, ahead);
    case 2: return score_tiles<2>(q, width, keys, scores, ahead);
    case 3: return score_tiles<3>(q, width, keys, scores, ahead);
    default: return score_tiles<4>(q, width, keys, scores, ahead);
  }
}

// products [16][16 kVecs] = p . values of the key groups [begin, end).
template <int kVecs>
static void value_tiles(const uint16_t* p, const KeyBlock& block, int begin, int end, size_t offset, size_t pair_bytes,
                        float* products, Ahead& ahead) {
  unrolled<kVecs>([](auto v) CP_LAMBDA { tile_zero<v.value>(); });
  for (int g = begin; g < end; ++g) {
    const char* values = block.values[g * (kKeyGroup / 2)] + offset;
    tile_load<5>(p + g * kKeyGroup, kKeyBlock * 2);
    unrolled<kVecs>([&](auto v) CP_LAMBDA {
      tile_load<7>(values + v.value * 64, pair_bytes);
      tile_dot_bf16<v.value, 5, 7>();
      fetch_much(ahead);
    });
  }
  unrolled<kVecs>([&](auto v) CP_LAMBDA { tile_store<v.value>(products + v.value * kTile, 64 * 4); });
}

// As weigh_block; 16 rows of p are read.
CP_INLINE void weigh_block_tiled(const uint16_t* p, int rows, int width, const KeyBlock& block, Span seen,
                                 const float* decay, float* sums, size_t stride, Ahead& ahead) {
  alignas(64) float products[kTile * 64];
  const int begin = seen.begin / kKeyGroup, end = (seen.end + kKeyGroup - 1) / kKeyGroup;
  const size_t pair_bytes = (size_t)width * 4;
  for (int d = 0; d < width; d += 64) {
    const int vecs = width - d < 64 ? (width - d) / kLanes : 4;
    switch (vecs) {
      case 1: value_tiles<1>(p, block, begin, end, (size_t)d * 4, pair_bytes, products, ahead); break;
      case 2: value_tiles<2>(p, block, begin, end, (size_t)d * 4, pair_bytes, products, ahead); break;
      case 3: value_tiles<3>(p, block, begin, end, (size_t)d * 4, pair_bytes, products, ahead); break;
      default: value_tiles<4>(p, block, begin, end, (size_t)d * 4, pair_bytes, products, ahead);
    }
    for (int r = 0; r < rows; ++r) {
      const f32x16 factor = broadcast(decay[r]);
      for (int v = 0; v < vecs; ++v) {
        float* sum = sums + r * stride + d + v * kLanes;
        store(sum, fma(load(sum), factor, load(products + r * 64 + v * kLanes)));
      }
    }
  }
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
