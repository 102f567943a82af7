// Four-bit weights on the vectors of simd.h; see linear_int4.inl.
#pragma once

namespace corepipe {
namespace COREPIPE_SIMD {

template <class Layout>
CP_INLINE void unpack_group(const uint8_t* packed, bool zeros, Int4Group<Layout>& group) {
  unpack_scales(packed, zeros, group);
  const i32x16 lower = broadcast_i32(0x0f0f0f0f);
  const uint8_t* w = packed + Layout::scale_bytes;
  for (int i = 0; i < kGroup / 4; ++i) {
    i32x16 both;
    CP_PARTS(memcpy(&both.v[p], w + 64 * i + p * kNativeBytes, kNativeBytes));
    i32x16 upper;
    CP_PARTS(upper.v[p] = both.v[p] >> 4);
    const i32x16 halves[2] = {both & lower, upper & lower};
    for (int c = 0; c < 2; ++c) {
      uint8_t* to = group.weights + kInt8StepBytes * i + 64 * c;
      CP_PARTS(memcpy(to + p * kNativeBytes, &halves[c].v[p], kNativeBytes));
    }
  }
}

template <class Products, class Layout>
static void prepare_int4(const float* x, int k, int row, int rows, void* block) {
  float padded[kGroup];
  uint8_t* group = (uint8_t*)block;
  for (int g = 0; g * kGroup < k; ++g, group += rows * Layout::row_group(Products::kValueBytes)) {
    const QuantizedGroup from = quantize_group(group_of(x, k, g, padded));
    for (int part = 0; part < Layout::parts; ++part) {
      put_part_sum<Layout>(group + 4 * (rows * part + row), sum_of<Layout::parts>(from, part));
    }
    memcpy(group + 4 * (rows * Layout::parts + row), &from.scale, 4);
    Products::store_values(from, group + Layout::values_at(rows) + Products::kValueBytes * row);
  }
}

// out [R][32], of which 16 C columns from the half `first` on, += one part of a group times the rows.
template <class Products, class Layout, int R, int C>
CP_INLINE void add_part(const Int4Group<Layout>& group, const uint8_t* x, int part, int first, float* out) {
  Fetch none = {nullptr, 0};
  i32x16 acc[R][C];
  if (Layout::offsets) {
    unrolled<R * C>([&](auto i) CP_LAMBDA { acc[i.value / C][i.value % C] = broadcast_i32(kWholeBits); });
  } else {
    start_from(acc, x + 4 * R * part);
  }
  const uint8_t* q = x + Layout::values_at(R) + Products::kValueBytes / Layout::parts * part;
  Products::add(acc, Int4Group<Layout>::part(group, part) + 64 * first, q, Layout::k, none, 0);
  unrolled<R * C>([&](auto i) CP_LAMBDA {
    constexpr int r = i.value / C, c = i.value % C;
    const int column = kLanes * (first + c);
    const int at = part * kPanel + column;
    f32x16 t = fma_once(as_f32(acc[r][c]), load(group.scale + at), load(group.less_whole + at));
    if (Layout::offsets) {
      t = fma_once(load(group.offset + at), as_f32(broadcast_word(x + 4 * (R * part + r))), t);
    }
    float* total = out + kPanel * r + column;
    store(total, fma_once(t, as_f32(broadcast_word(x + 4 * (R * Layout::parts + r))), load(total)));
  });
}

template <class Products, class Layout, bool kPacked, int R>
static void multiply_int4_rows(Int4Panel<Layout, kPacked> panel, const uint8_t* x, int groups, float* out) {
  constexpr int kHalves = R > 2 ? 1 : 2;  // as in int8
  Int4Group<Layout> room;
  for (int i = 0; i < R * kPanel; i += kLanes) store(out + i, zero());
  for (int g = 0; g < groups; ++g, x += R * Layout::row_group(Products::kValueBytes)) {
    const Int4Group<Layout>& group = *Int4Panel<Layout, kPacked>::next(panel, room);
    for (int first = 0; first < 2; first += kHalves) {
      for (int part = 0; part < Layout::parts; ++part) add_part<Products, Layout, R, kHalves>(group, x, part, first, out);
    }
  }
}

template <class Products, class Layout, bool kZeros, bool kPacked, int kRows>
static void multiply_int4(int rows, const void* panel, const void* block, int groups, float* sums, Fetch ahead) {
  const GroupFetch fetched = GroupFetch::of(ahead, Layout::packed_bytes);
  const Int4Panel<Layout, kPacked> from = {(const uint8_t*)panel, kZeros, fetched};
  unrolled<kRows>([&](auto r) CP_LAMBDA {
    constexpr int R = r.value + 1;
    if (rows == R) multiply_int4_rows<Products, Layout, kPacked, R>(from, (const uint8_t*)block, groups, sums);
  });
}

// Few rows unpack a group when they come to it; many unpack a panel once.
template <class Products, int kWeightGroup, Offsets kOffsets>
constexpr LinearKernels int4_kernels() {
  using Layout = Int4Layout<kGroup / kWeightGroup, kOffsets != Offsets::none>;
  constexpr bool kZeros = kOffsets == Offsets::zeros;
  constexpr int kRowGroup = Layout::row_group(Products::kValueBytes);
  return {
      {kInt8BlockRows, kRowGroup, prepare_int4<Products, Layout>, multiply_int4<Products, Layout, kZeros, true, kInt8BlockRows>},
      kInt8BlockRows + 1,
      {kInt8BlockRows, kRowGroup, prepare_int4<Products, Layout>, multiply_int4<Products, Layout, kZeros, false, kInt8BlockRows>, nullptr, 1,
       sizeof(Int4Group<Layout>), unpack_int4<Layout, kZeros>},
  };
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
