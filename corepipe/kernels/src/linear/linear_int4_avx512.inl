// Four-bit weights with AVX-512 VNNI; see linear_int4.inl.
#pragma once

#include "linear/linear_avx512.inl"
#include "linear/linear_int4.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

CP_INLINE __m512 broadcast_float(const uint8_t* x) { return _mm512_castsi512_ps(broadcast_word(x)); }

// Sums of rows [R][32], in registers or in memory.
template <int R, bool kInRegisters>
struct Totals {
  __m512 sums[kInRegisters ? R : 1][2];
  float* out;

  CP_INLINE void clear(Totals& t) {
    unrolled<2 * R>([&](int i) CP_LAMBDA { put(t, i / 2, i % 2, _mm512_setzero_ps()); });
  }
  CP_INLINE __m512 get(const Totals& t, int r, int c) {
    return kInRegisters ? t.sums[r][c] : _mm512_loadu_ps(t.out + kPanel * r + kLanes * c);
  }
  CP_INLINE void put(Totals& t, int r, int c, __m512 sum) {
    if (kInRegisters) {
      t.sums[r][c] = sum;
    } else {
      _mm512_storeu_ps(t.out + kPanel * r + kLanes * c, sum);
    }
  }
  CP_INLINE void finish(const Totals& t) {
    if (kInRegisters) unrolled<R>([&](int r) CP_LAMBDA { store_pair(t.out + kPanel * r, t.sums[r]); });
  }
};

// totals += scale of x * (scale * acc, plus what the offset makes of a row's sum), of a part.
template <class Layout, int R, bool kInRegisters, class Scales>
CP_INLINE void add_part(Totals<R, kInRegisters>& totals, const __m512i (&acc)[R][2], const Scales& scales, const uint8_t* x,
                        int part) {
  unrolled<2>([&](int c) CP_LAMBDA {
    const int at = part * kPanel + kLanes * c;
    const __m512 scale = (__m512)scales.scale(at).v[0], less_whole = (__m512)scales.less_whole(at).v[0];
    unrolled<R>([&](int r) CP_LAMBDA {
      const __m512 more = _mm512_castsi512_ps(acc[r][c]);  // than the product, by kWhole
      __m512 t = _mm512_fmadd_ps(more, scale, less_whole);
      if (Layout::offsets) {
        t = _mm512_fmadd_ps((__m512)scales.offset(at).v[0], broadcast_float(x + Layout::sum_at(R, r, part)), t);
      }
      const __m512 scale_x = broadcast_float(x + Layout::scale_at(R, r, part));
      const __m512 before = Totals<R, kInRegisters>::get(totals, r, c);
      Totals<R, kInRegisters>::put(totals, r, c, _mm512_fmadd_ps(t, scale_x, before));
    });
  });
}

// acc [R][2] = the values from which the products of a part start.
template <class Layout, int R>
CP_INLINE void start_part(__m512i (&acc)[R][2], const uint8_t* x, int part) {
  if (!Layout::offsets) return start_from(acc, x + Layout::sum_at(R, 0, part));
  unrolled<R>([&](int r) CP_LAMBDA { acc[r][0] = acc[r][1] = _mm512_set1_epi32(kWholeBits); });
}

// Multiplies a panel whose groups were unpacked before, or are unpacked here one at a time.  The totals are in
// registers if there are enough, and if no unpacking uses them.
template <class Layout, bool kPacked, int R>
static void multiply_int4_rows(Int4Panel<Layout, kPacked> panel, const uint8_t* x, int groups, float* out) {
  constexpr int kStep = 16;  // of k are unrolled: with more there would be twice the code, and no more speed
  typedef Totals<R, !kPacked && R <= kInt8Rows> Sums;
  Int4Group<Layout> room;
  Fetch none = {nullptr, 0};
  Sums totals;
  totals.out = out;
  Sums::clear(totals);
  for (int g = 0; g < groups; ++g, x += R * Layout::row_group(kGroup)) {
    const Int4Group<Layout>& group = *Int4Panel<Layout, kPacked>::next(panel, room);
    unrolled<Layout::parts>([&](int part) CP_LAMBDA {
      __m512i acc[R][2];
      start_part<Layout>(acc, x, part);
      const uint8_t* q = x + Layout::values_at(R) + Layout::k * part;
      const uint8_t* w = Int4Group<Layout>::part(group, part);
      for (int k = 0; k < Layout::k; k += kStep) add_products<R, kStep, 0>(acc, w + kPanel * k, q + k, none, 0);
      add_part<Layout>(totals, acc, UnpackedScales<Layout>{group}, x, part);
    });
  }
  Sums::finish(totals);
}

// acc [R][2] += the products of a part's k, of numbers that are unpacked into registers.
template <class Layout, int R>
CP_INLINE void add_packed_products(__m512i (&acc)[R][2], const uint8_t* w, const uint8_t* q) {
  const __m512i lower = _mm512_set1_epi8(15);
  unrolled<Layout::k / 4>([&](int i) CP_LAMBDA {
    const __m512i both = _mm512_loadu_si512(w + 64 * i);
    const __m512i w0 = _mm512_and_si512(both, lower);
    const __m512i w1 = _mm512_and_si512(_mm512_srli_epi16(both, 4), lower);
    add_words(acc, w0, w1, q + 4 * i);
  });
}

// Few rows wait for memory: their weights are unpacked in registers and never stored.
template <class Layout, bool kZeros, int R>
static void multiply_int4_few(const uint8_t* panel, const uint8_t* x, int groups, float* out, GroupFetch ahead) {
  typedef Totals<R, true> Sums;
  Sums totals;
  totals.out = out;
  Sums::clear(totals);
  for (int g = 0; g < groups; ++g, panel += Layout::packed_bytes, x += R * Layout::row_group(kGroup)) {
    GroupFetch::next(ahead);
    unrolled<Layout::parts>([&](int part) CP_LAMBDA {
      __m512i acc[R][2];
      start_part<Layout>(acc, x, part);
      const uint8_t* w = panel + Layout::scale_bytes + kPanel / 2 * Layout::k * part;
      add_packed_products<Layout>(acc, w, x + Layout::values_at(R) + Layout::k * part);
      add_part<Layout>(totals, acc, PackedScales<Layout, kZeros>{(const uint16_t*)panel}, x, part);
    });
  }
  Sums::finish(totals);
}

constexpr int kInt4FewRows = 4;

template <class Layout, bool kZeros, bool kPacked, int kRows>
static void multiply_int4(int rows, const void* panel, const void* block, int groups, float* sums, Fetch ahead) {
  const GroupFetch fetched = GroupFetch::of(ahead, Layout::packed_bytes);
  const Int4Panel<Layout, kPacked> from = {(const uint8_t*)panel, kZeros, fetched};
  unrolled<kRows>([&](auto r) CP_LAMBDA {
    constexpr int R = r.value + 1;
    if (rows != R) return;
    if constexpr (kPacked && R <= kInt4FewRows) {
      multiply_int4_few<Layout, kZeros, R>(from.at, (const uint8_t*)block, groups, sums, fetched);
    } else {
      multiply_int4_rows<Layout, kPacked, R>(from, (const uint8_t*)block, groups, sums);
    }
  });
}

// As InterleavedRow.
template <class Layout>
struct Int4Row {
  static constexpr int parts = Layout::parts;
  uint8_t* block;
  int row, rows;

  CP_INLINE uint8_t* group(const Int4Row& to, int g) { return to.block + g * to.rows * Layout::row_group(kGroup); }
  CP_INLINE int8_t* q(const Int4Row& to, int g) {
    return (int8_t*)group(to, g) + Layout::values_at(to.rows) + kGroup * to.row;
  }
  CP_INLINE void put_scale(const Int4Row& to, int g, int part, float scale) {
    memcpy(group(to, g) + Layout::scale_at(to.rows, to.row, part), &scale, 4);
  }
  CP_INLINE void put_sum(const Int4Row& to, int g, int part, int32_t sum) {
    put_part_sum<Layout>(group(to, g) + Layout::sum_at(to.rows, to.row, part), sum);
  }
};

template <class Layout>
static void prepare_int4(const float* x, int k, int row, int rows, void* block) {
  prepare_row(x, k, Int4Row<Layout>{(uint8_t*)block, row, rows});
}

// Few rows wait for memory, and unpack each group when they need it; many rows unpack a panel once.
template <int kWeightGroup, Offsets kOffsets>
constexpr LinearKernels int4_kernels() {
  using Layout = Int4Layout<kGroup / kWeightGroup, kOffsets != Offsets::none>;
  constexpr bool kZeros = kOffsets == Offsets::zeros;
  constexpr int kRowGroup = Layout::row_group(kGroup);
  return {
      {kInt8WideRows, kRowGroup, prepare_int4<Layout>, multiply_int4<Layout, kZeros, true, kInt8WideRows>},
      2 * kInt8WideRows + 1,
      {kInt8Rows, kRowGroup, prepare_int4<Layout>, multiply_int4<Layout, kZeros, false, kInt8Rows>, nullptr, 1,
       sizeof(Int4Group<Layout>), unpack_int4<Layout, kZeros>},
  };
}

constexpr Int4Linears int4_linears() {
  return {{
      int4_kernels<32, Offsets::none>(),
      int4_kernels<32, Offsets::zeros>(),
      int4_kernels<32, Offsets::minima>(),
      int4_kernels<64, Offsets::none>(),
      int4_kernels<64, Offsets::zeros>(),
      int4_kernels<64, Offsets::minima>(),
  }};
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
