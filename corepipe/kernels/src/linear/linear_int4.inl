// Four-bit weights, each group of 32 or 64 of k with a scale and maybe an offset: what is the same on every ISA.
//
// A panel has for each 64 of k: scales [parts][32] fp16, offsets alike where there are any, and [16][16][4] bytes, of
// which the lower four bits are of columns 0-15 and the upper four of columns 16-31.  A group of 64 is unpacked to the
// numbers as int8 has its own, [16][32][4], so that the same products take them.  A row has groups of the same size. A
// block has for each 64 of k: [parts][R] what the sums of a row's q are for, scales [parts][R] f32, and q as the ISA
// has them.
//
// For each group of weights, in order of k: t = scale * (product - 8 * sum) where there are no offsets, else
// t = fma(offset, sum, scale * product); total = fma(t, scale of x, total).  The products and sums are whole numbers
// that fp32 holds: each ISA gives the same bits.
//
// Products are added to the bits of kWhole, a float whose last bit stands for 1: what they make is the float
// kWhole + product, and scale * product is fma(that, scale, -kWhole * scale), rounded once, with no conversion before.
#pragma once

#include "linear/linear.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

constexpr float kWhole = 12582912.0f;  // 1.5 * 2^23: with any product beside it below 2^24
constexpr int32_t kWholeBits = 0x4b400000;

template <int kParts, bool kOffsets>
struct Int4Layout {
  static constexpr int parts = kParts;       // groups in 64 of k
  static constexpr int k = kGroup / kParts;  // elements of each
  static constexpr bool offsets = kOffsets;
  static constexpr int numbers = kParts * kPanel;  // scales, or offsets
  static constexpr int scale_bytes = 2 * numbers * (kOffsets ? 2 : 1);
  static constexpr int packed_bytes = scale_bytes + kPanel * kGroup / 2;

  // Of a row in a block's group; where its values begin.
  static constexpr int row_group(int value_bytes) { return 8 * kParts + value_bytes; }
  static constexpr int sum_at(int rows, int row, int part) { return 4 * (rows * part + row); }
  static constexpr int scale_at(int rows, int row, int part) { return 4 * (rows * (kParts + part) + row); }
  static constexpr int values_at(int rows) { return rows * 8 * kParts; }
};

// A panel's 64 of k, unpacked.
template <class Layout>
struct alignas(64) Int4Group {
  uint8_t weights[kPanel * kGroup];
  float scale[Layout::numbers];
  float less_whole[Layout::numbers];                         // -kWhole times the scale, exact
  float offset[Layout::offsets ? Layout::numbers : kLanes];  // what is added to q * scale

  CP_INLINE const uint8_t* part(const Int4Group& group, int p) {
    return group.weights + p * Layout::k * kPanel;
  }
};

// Of a zero point the offset is -zero * scale, which fp32 holds.
template <class Layout>
CP_INLINE void unpack_scales(const uint8_t* packed, bool zeros, Int4Group<Layout>& group) {
  const uint16_t* halves = (const uint16_t*)packed;
  for (int i = 0; i < Layout::numbers; i += kLanes) {
    const f32x16 scale = load_fp16(halves + i);
    store(group.scale + i, scale);
    store(group.less_whole + i, broadcast(-kWhole) * scale);
    if (!Layout::offsets) continue;
    const f32x16 offset = load_fp16(halves + Layout::numbers + i);
    store(group.offset + i, zeros ? offset * scale : offset);
  }
}

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
      uint8_t* to = group.weights + 128 * i + 64 * c;
      CP_PARTS(memcpy(to + p * kNativeBytes, &halves[c].v[p], kNativeBytes));
    }
  }
}

// Prefetches a part of a later panel: so many lines for each group that is unpacked.
struct GroupFetch {
  const uint8_t* from;
  int lines;

  CP_INLINE GroupFetch of(Fetch ahead, int bytes) {
    return {ahead.from, ahead.parts == 0 ? 0 : (bytes / 64 + ahead.parts - 1) / ahead.parts};
  }

  CP_INLINE void next(GroupFetch& ahead) {
    constexpr int kIntoL2 = 2;
    for (int i = 0; i < ahead.lines; ++i, ahead.from += 64) __builtin_prefetch(ahead.from, 0, kIntoL2);
  }
};

// The groups of a panel one after the other: as they are packed, unpacked here one at a time, or unpacked before.
template <class Layout, bool kPacked>
struct Int4Panel {
  using Group = Int4Group<Layout>;
  const uint8_t* at;
  bool zeros;
  GroupFetch ahead;

  CP_INLINE const Group* next(Int4Panel& panel, Group& room) {
    const Group* group = (const Group*)panel.at;
    if (kPacked) {
      unpack_next(panel.at, panel.zeros, panel.ahead, room);
      group = &room;
    }
    panel.at += kPacked ? Layout::packed_bytes : (int)sizeof(Group);
    return group;
  }

 private:
  // Not inlined, so that it takes no registers from the sums.
  __attribute__((noinline)) static void unpack_next(const uint8_t* at, bool zeros, GroupFetch& ahead, Group& room) {
    GroupFetch::next(ahead);
    unpack_group(at, zeros, room);
  }
};

// Products of unpacked panels do not read memory, so the unpacking prefetches the panels after it.
template <class Layout, bool kZeros>
static void unpack_int4(const void* panel, int groups, void* out) {
  constexpr int kBytesAhead = 4096;
  const uint8_t* packed = (const uint8_t*)panel;
  GroupFetch ahead = {packed + kBytesAhead, Layout::packed_bytes / 64};
  for (int g = 0; g < groups; ++g, packed += Layout::packed_bytes) {
    GroupFetch::next(ahead);
    unpack_group(packed, kZeros, ((Int4Group<Layout>*)out)[g]);
  }
}

// The scales and offsets of a group, by where they are among its numbers: as unpacked before, or from what is packed.
template <class Layout>
struct UnpackedScales {
  const Int4Group<Layout>& group;

  f32x16 scale(int at) const { return load(group.scale + at); }
  f32x16 less_whole(int at) const { return load(group.less_whole + at); }
  f32x16 offset(int at) const { return load(group.offset + at); }
};

template <class Layout, bool kZeros>
struct PackedScales {
  const uint16_t* halves;

  f32x16 scale(int at) const { return load_fp16(halves + at); }
  f32x16 less_whole(int at) const { return broadcast(-kWhole) * scale(at); }
  f32x16 offset(int at) const {
    const f32x16 offset = load_fp16(halves + Layout::numbers + at);
    return kZeros ? offset * scale(at) : offset;
  }
};

// Stores the use of a part's sum: without offsets the bits that products start from, with offsets the sum itself.
template <class Layout>
CP_INLINE void put_part_sum(uint8_t* to, int32_t sum) {
  const int32_t start = (int32_t)((uint32_t)kWholeBits - 8u * (uint32_t)sum);
  const float whole = (float)sum;
  memcpy(to, Layout::offsets ? (const void*)&whole : (const void*)&start, 4);
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
