// Four-bit weights with AVX-512 VNNI; see linear_int4.inl.
#pragma once

namespace corepipe {
namespace COREPIPE_SIMD {

template <class Layout>
CP_INLINE void unpack_group(const uint8_t* packed, bool zeros, Int4Group<Layout>& group) {
  unpack_scales(packed, zeros, group);
  const __m512i lower = _mm512_set1_epi8(15);
  const uint8_t* w = packed + Layout::scale_bytes;
  unrolled<kGroup / 4>([&](auto i) CP_LAMBDA {
    const __m512i both = _mm512_loadu_si512(w + 64 * i.value);
    _mm512_store_si512(group.weights + 128 * i.value, _mm512_and_si512(both, lower));
    const __m512i upper = _mm512_and_si512(_mm512_srli_epi16(both, 4), lower);
    _mm512_store_si512(group.weights + 128 * i.value + 64, upper);
  });
}

CP_INLINE __m512 broadcast_float(const uint8_t* x) { return _mm512_castsi512_ps(broadcast_word(x)); }

// out [R][32] += scale of x * (scale * acc, plus what the offset makes of a row's sum), of a part.
template <class Layout, int R>
CP_INLINE void add_part(const __m512i (&acc)[R][2], const Int4Group<Layout>& group, const uint8_t* x, int part,
                        float* out) {
  unrolled<2 * R>([&](auto i) CP_LAMBDA {
    constexpr int r = i.value / 2, c = i.value % 2;
    const int at = part * kPanel + kLanes * c;
    const __m512 scale = _mm512_load_ps(group.scale + at), product = _mm512_cvtepi32_ps(acc[r][c]);
    __m512 t;
    if (Layout::offsets) {
      const __m512 sum = broadcast_float(x + 4 * (R * part + r));
      t = _mm512_fmadd_ps(product, scale, _mm512_mul_ps(_mm512_load_ps(group.offset + at), sum));
    } else {
      t = _mm512_mul_ps(product, scale);
    }
    float* total = out + kPanel * r + kLanes * c;
    const __m512 scale_x = broadcast_float(x + 4 * (R * Layout::parts + r));
    _mm512_storeu_ps(total, _mm512_fmadd_ps(t, scale_x, _mm512_loadu_ps(total)));
  });
}

// The sums stay in `out`: beside those of the products there are too few registers for them and the scales.
template <class Layout, bool kPacked, int R>
static void multiply_int4_rows(Int4Panel<Layout, kPacked> panel, const uint8_t* x, int groups, float* out) {
  constexpr int kStep = 16;  // of k are unrolled: with more there would be twice the code, and no more speed
  Int4Group<Layout> room;
  Fetch none = {nullptr, 0};
  for (int i = 0; i < R * kPanel; i += kLanes) _mm512_storeu_ps(out + i, _mm512_setzero_ps());
  for (int g = 0; g < groups; ++g, x += R * Layout::row_group(kGroup)) {
    const Int4Group<Layout>& group = *Int4Panel<Layout, kPacked>::next(panel, room);
    unrolled<Layout::parts>([&](auto part) CP_LAMBDA {
      __m512i acc[R][2];
      if (Layout::offsets) {
        unrolled<R>([&](auto r) CP_LAMBDA { acc[r.value][0] = acc[r.value][1] = _mm512_setzero_si512(); });
      } else {
        start_from(acc, x + 4 * R * part.value);
      }
      const uint8_t* q = x + Layout::values_at(R) + Layout::k * part.value;
      const uint8_t* w = Int4Group<Layout>::part(group, part.value);
      for (int k = 0; k < Layout::k; k += kStep) add_products<R, kStep, 0>(acc, w + kPanel * k, q + k, none, 0);
      add_part<Layout, R>(acc, group, x, part.value, out);
    });
  }
}

template <class Layout, bool kZeros, bool kPacked, int kRows>
static void multiply_int4(int rows, const void* panel, const void* block, int groups, float* sums, Fetch ahead) {
  const GroupFetch fetched = GroupFetch::of(ahead, Layout::packed_bytes);
  const Int4Panel<Layout, kPacked> from = {(const uint8_t*)panel, kZeros, fetched};
  unrolled<kRows>([&](auto r) CP_LAMBDA {
    constexpr int R = r.value + 1;
    if (rows == R) multiply_int4_rows<Layout, kPacked, R>(from, (const uint8_t*)block, groups, sums);
  });
}

// As InterleavedRow.
template <class Layout>
struct Int4Row {
  static constexpr int sums = Layout::parts;
  uint8_t* block;
  int row, rows;

  CP_INLINE uint8_t* group(const Int4Row& to, int g) { return to.block + g * to.rows * Layout::row_group(kGroup); }
  CP_INLINE int8_t* q(const Int4Row& to, int g) {
    return (int8_t*)group(to, g) + Layout::values_at(to.rows) + kGroup * to.row;
  }
  CP_INLINE void put_scale(const Int4Row& to, int g, float scale) {
    memcpy(group(to, g) + 4 * (to.rows * Layout::parts + to.row), &scale, 4);
  }
  CP_INLINE void put_sum(const Int4Row& to, int g, int part, int32_t sum) {
    put_part_sum<Layout>(group(to, g) + 4 * (to.rows * part + to.row), sum);
  }
};

template <class Layout>
static void prepare_int4(const float* x, int k, int row, int rows, void* block) {
  prepare_row(x, k, Int4Row<Layout>{(uint8_t*)block, row, rows});
}

// Few rows wait for memory and unpack a group when they come to it; many unpack a panel once.
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

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
