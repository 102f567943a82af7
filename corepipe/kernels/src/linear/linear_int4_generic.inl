// Four-bit weights on the vectors of simd.h; see linear_int4.inl.
#pragma once

#include "linear/linear_generic.inl"
#include "linear/linear_int4.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

template <class Products, class Layout>
static void prepare_int4(const float* x, int k, int row, int rows, void* block) {
  float padded[kGroup];
  uint8_t* group = (uint8_t*)block;
  for (int g = 0; g * kGroup < k; ++g, group += rows * Layout::row_group(Products::kValueBytes)) {
    const auto from = quantize_group<Layout::parts>(group_of(x, k, g, padded));
    for (int part = 0; part < Layout::parts; ++part) {
      put_part_sum<Layout>(group + Layout::sum_at(rows, row, part), sum_of(from, part));
      memcpy(group + Layout::scale_at(rows, row, part), &from.scale[part], 4);
    }
    Products::store_values(from.q, group + Layout::values_at(rows) + Products::kValueBytes * row);
  }
}

// acc [R][C] = the values from which the products of a part start.
template <class Layout, int R, int C>
CP_INLINE void start_part(i32x16 (&acc)[R][C], const uint8_t* x, int part) {
  if (!Layout::offsets) return start_from(acc, x + Layout::sum_at(R, 0, part));
  unrolled<R * C>([&](int i) CP_LAMBDA { acc[i / C][i % C] = broadcast_i32(kWholeBits); });
}

// out [R][32], of which 16 C columns from the half `first` on, += what the products of one part of a group stand for.
template <class Layout, int R, int C, class Scales>
CP_INLINE void add_part(const i32x16 (&acc)[R][C], const Scales& scales, const uint8_t* x, int part, int first, float* out) {
  unrolled<C>([&](int c) CP_LAMBDA {
    const int column = kLanes * (first + c), at = part * kPanel + column;
    const f32x16 scale = scales.scale(at), less_whole = scales.less_whole(at);
    unrolled<R>([&](int r) CP_LAMBDA {
      f32x16 t = fma_once(as_f32(acc[r][c]), scale, less_whole);
      if (Layout::offsets) {
        t = fma_once(scales.offset(at), as_f32(broadcast_word(x + Layout::sum_at(R, r, part))), t);
      }
      float* total = out + kPanel * r + column;
      store(total, fma_once(t, as_f32(broadcast_word(x + Layout::scale_at(R, r, part))), load(total)));
    });
  });
}

template <int R>
constexpr int kHalvesAtOnce = R > 2 ? 1 : 2;  // as in int8

template <class Products, class Layout, int R>
CP_INLINE void add_unpacked_group(const Int4Group<Layout>& group, const uint8_t* x, float* out) {
  constexpr int C = kHalvesAtOnce<R>;
  Fetch none = {nullptr, 0};
  for (int first = 0; first < 2; first += C) {
    for (int part = 0; part < Layout::parts; ++part) {
      i32x16 acc[R][C];
      start_part<Layout>(acc, x, part);
      const uint8_t* q = x + Layout::values_at(R) + Products::kValueBytes / Layout::parts * part;
      Products::add(acc, Int4Group<Layout>::part(group, part) + 64 * first, q, Layout::k, none, 0);
      add_part<Layout>(acc, UnpackedScales<Layout>{group}, x, part, first, out);
    }
  }
}

template <class Products, class Layout, bool kZeros, int R>
CP_INLINE void add_packed_group(const uint8_t* packed, const uint8_t* x, float* out) {
  constexpr int C = kHalvesAtOnce<R>;
  const PackedScales<Layout, kZeros> scales = {(const uint16_t*)packed};
  unrolled<2 / C>([&](auto half) CP_LAMBDA {
    constexpr int kFirst = half.value * C;
    for (int part = 0; part < Layout::parts; ++part) {
      i32x16 acc[R][C];
      start_part<Layout>(acc, x, part);
      const uint8_t* w = packed + Layout::scale_bytes + kPanel / 2 * Layout::k * part;
      const uint8_t* q = x + Layout::values_at(R) + Products::kValueBytes / Layout::parts * part;
      Products::template add_packed<kFirst>(acc, w, q, Layout::k);
      add_part<Layout>(acc, scales, x, part, kFirst, out);
    }
  });
}

template <class Products, class Layout, bool kZeros, bool kPacked, int R>
static void multiply_int4_rows(const uint8_t* panel, const uint8_t* x, int groups, float* out, GroupFetch ahead) {
  constexpr int kRowGroup = Layout::row_group(Products::kValueBytes);
  for (int i = 0; i < R * kPanel; i += kLanes) store(out + i, zero());
  if constexpr (kPacked && Products::kTakesPacked) {
    for (int g = 0; g < groups; ++g, panel += Layout::packed_bytes, x += R * kRowGroup) {
      GroupFetch::next(ahead);
      add_packed_group<Products, Layout, kZeros, R>(panel, x, out);
    }
  } else {
    Int4Panel<Layout, kPacked> groups_of = {panel, kZeros, ahead};
    Int4Group<Layout> room;
    for (int g = 0; g < groups; ++g, x += R * kRowGroup) {
      add_unpacked_group<Products, Layout, R>(*Int4Panel<Layout, kPacked>::next(groups_of, room), x, out);
    }
  }
}

template <class Products, class Layout, bool kZeros, bool kPacked, int kRows>
static void multiply_int4(int rows, const void* panel, const void* block, int groups, float* sums, Fetch ahead) {
  const GroupFetch fetched = GroupFetch::of(ahead, Layout::packed_bytes);
  unrolled<kRows>([&](auto r) CP_LAMBDA {
    constexpr int R = r.value + 1;
    if (rows != R) return;
    multiply_int4_rows<Products, Layout, kZeros, kPacked, R>((const uint8_t*)panel, (const uint8_t*)block, groups, sums, fetched);
  });
}

// Few rows multiply a packed group, or unpack each group when they need it; many rows unpack a panel once.
template <class Products, int kWeightGroup, Offsets kOffsets>
constexpr LinearKernels int4_kernels() {
  using Layout = Int4Layout<kGroup / kWeightGroup, kOffsets != Offsets::none>;
  constexpr bool kZeros = kOffsets == Offsets::zeros;
  constexpr int kRowGroup = Layout::row_group(Products::kValueBytes);
  constexpr int kFewBlocks = Products::kTakesPacked ? 3 : 1;
  return {
      {kInt8BlockRows, kRowGroup, prepare_int4<Products, Layout>, multiply_int4<Products, Layout, kZeros, true, kInt8BlockRows>},
      kFewBlocks * kInt8BlockRows + 1,
      {kInt8BlockRows, kRowGroup, prepare_int4<Products, Layout>, multiply_int4<Products, Layout, kZeros, false, kInt8BlockRows>, nullptr, 1,
       sizeof(Int4Group<Layout>), unpack_int4<Layout, kZeros>},
  };
}

// Products: of weights below 16, without an offset.
template <class Products>
constexpr Int4Linears int4_linears() {
  return {{
      int4_kernels<Products, 32, Offsets::none>(),
      int4_kernels<Products, 32, Offsets::zeros>(),
      int4_kernels<Products, 32, Offsets::minima>(),
      int4_kernels<Products, 64, Offsets::none>(),
      int4_kernels<Products, 64, Offsets::zeros>(),
      int4_kernels<Products, 64, Offsets::minima>(),
  }};
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
