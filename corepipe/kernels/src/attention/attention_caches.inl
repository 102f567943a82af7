// The types of cache, and how rows are multiplied with what is in them.

#pragma once

#include "attention/attention_table.h"
#include "isa/simd.h"
#if defined(__AMX_BF16__)
#include "isa/tiles.inl"
#endif

namespace corepipe {
namespace COREPIPE_SIMD {

#if defined(__AVX512F__)
constexpr int kTileRows = 6, kTileVecs = 4;
#else
constexpr int kTileRows = 2, kTileVecs = 2;
#endif

// A cache has Elements, of which kLaneBytes are 16 lanes of kDepth.  One step multiplies as many elements of a row,
// kept as Factors, with such lanes, in kPasses.  Up to kRows rows meet a block together, in tiles of kHeight rows and
// kVecs vectors, and its values in whole runs of kGrain keys.

#if defined(__AVX512F__)
// bf16 by two multiply-adds, in the order that Order says, in two passes: there are not enough registers for the
// operands of both.  Factors are bf16 numbers as fp32.
template <class Order>
struct FmaBf16Cache {
  static constexpr int kHeight = kTileRows, kVecs = kTileVecs, kLaneBytes = 64;
  typedef uint16_t Element;
  typedef float Factor;
  static constexpr bool kTiled = false;
  static constexpr int kDepth = 2, kPasses = 2, kRows = kTileRows, kGrain = kDepth;
  typedef f32x16 Lanes;
  template <int kPass>
  CP_INLINE Lanes load_lanes(const char* x) {
    const __m512i pairs = _mm512_loadu_si512(x);
    const __m512i odd = _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u));
    return {{(NativeF)(Order::element(kPass) == 1 ? odd : _mm512_slli_epi32(pairs, 16))}};
  }
  template <int kPass>
  CP_INLINE Lanes spread(const float* pair) {
    return broadcast(pair[Order::element(kPass)]);
  }
  CP_INLINE void step(f32x16& sum, Lanes a, Lanes b) { sum = fma(a, b, sum); }
  typedef typename Order::Steps Steps;
  CP_INLINE void pin(f32x16& sum) { __asm__ volatile("" : "+v"(sum.v[0])); }
  CP_INLINE void store_row(uint16_t* out, f32x16 x) { store_bf16(out, round_bf16(x)); }
  CP_INLINE void store_row(float* out, f32x16 x) { store(out, round_bf16(x)); }
};

// The bits of a cache whose pairs are widened: in order of k.
struct EvenFirst {
  static constexpr int element(int pass) { return pass; }
  struct Steps {};
};

// The bits of Intel's vdpbf16ps, in half of its time there: the odd elements first, then the even ones, and subnormal
// numbers are 0 while there are Steps.
struct IntelDotOrder {
  static constexpr int element(int pass) { return 1 - pass; }
  class Steps {
   public:
    Steps() : before_(_mm_getcsr()) {
      constexpr unsigned kDenormalsAreZero = 0x40, kFlushToZero = 0x8000;
      _mm_setcsr(before_ | kDenormalsAreZero | kFlushToZero);
    }
    ~Steps() { _mm_setcsr(before_); }
    Steps(const Steps&) = delete;
    Steps& operator=(const Steps&) = delete;

   private:
    const unsigned before_;
  };
};
#endif

#if defined(__AVX512F__) && !defined(__AVX512BF16__)
typedef FmaBf16Cache<EvenFirst> Bf16Cache;
#else
struct Bf16Cache {
  typedef uint16_t Element, Factor;
  static constexpr int kHeight = kTileRows, kVecs = kTileVecs, kLaneBytes = 64;
  static constexpr int kDepth = 2, kPasses = 1;
#if defined(__AMX_BF16__)
  static constexpr bool kTiled = true;
  static constexpr int kRows = kTile, kGrain = kKeyGroup;
#else
  static constexpr bool kTiled = false;
  static constexpr int kRows = kTileRows, kGrain = kDepth;
#endif
#if defined(__AVX512BF16__)
  struct Lanes {
    __m512i pairs;
  };
  template <int kPass>
  CP_INLINE Lanes load_lanes(const char* x) {
    return {_mm512_loadu_si512(x)};
  }
  template <int kPass>
  CP_INLINE Lanes spread(const uint16_t* pair) {
    uint32_t bits;
    memcpy(&bits, pair, sizeof bits);
    return {_mm512_set1_epi32((int)bits)};
  }
  // Inline assembly, because GCC 12 spills accumulators around the intrinsic.
  CP_INLINE void step(f32x16& sum, Lanes a, Lanes b) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum.v[0]) : "v"(a.pairs), "v"(b.pairs));
  }
#else
  struct Lanes {
    f32x16 low, high;
  };
  CP_INLINE Lanes widen(i32x16 bits) {
    Lanes r;
    for (int p = 0; p < kParts; ++p) {
      r.low.v[p] = (NativeF)(bits.v[p] << 16);
      r.high.v[p] = (NativeF)((NativeU)bits.v[p] & 0xffff0000u);
    }
    return r;
  }
  template <int kPass>
  CP_INLINE Lanes load_lanes(const char* x) {
    return widen(load((const int32_t*)x));
  }
  template <int kPass>
  CP_INLINE Lanes spread(const uint16_t* pair) {
    int32_t bits;
    memcpy(&bits, pair, sizeof bits);
    return widen(broadcast_i32(bits));
  }
  CP_INLINE void step(f32x16& sum, Lanes a, Lanes b) {
    sum = fma(a.low, b.low, sum);
    sum = fma(a.high, b.high, sum);
  }
#endif
  struct Steps {};
  CP_INLINE void pin(f32x16&) {}
  CP_INLINE void store_row(uint16_t* out, f32x16 x) {
#if defined(__AVX512BF16__)
    const __m256bh half = _mm512_cvtneps_pbh((__m512)x.v[0]);
    memcpy(out, &half, sizeof half);
#else
    store_bf16(out, round_bf16(x));
#endif
  }
};
#endif

struct Fp32Cache {
  typedef float Element, Factor;
  static constexpr int kHeight = kTileRows, kVecs = kTileVecs, kLaneBytes = 64;
  static constexpr bool kTiled = false;
  static constexpr int kDepth = 1, kPasses = 1, kRows = kTileRows, kGrain = kDepth;
  typedef f32x16 Lanes;
  template <int kPass>
  CP_INLINE Lanes load_lanes(const char* x) {
    return load((const float*)x);
  }
  template <int kPass>
  CP_INLINE Lanes spread(const float* x) {
    return broadcast(*x);
  }
  CP_INLINE void step(f32x16& sum, Lanes a, Lanes b) { sum = fma(a, b, sum); }
  struct Steps {};
  CP_INLINE void pin(f32x16&) {}
  CP_INLINE void store_row(float* out, f32x16 x) { store(out, x); }
};

#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr bool kWidens = true;
#else
constexpr bool kWidens = false;
#endif

// bf16 numbers as fp32, which need no widening at every product; six rows meet sixteen keys or elements.
struct WideBf16Cache : Fp32Cache {
  static constexpr int kHeight = 6, kVecs = 1, kRows = kHeight;
  CP_INLINE void store_row(float* out, f32x16 x) { store(out, round_bf16(x)); }
};

// The same of a cache that keeps bf16: a block of it is widened for the rows that are about to meet it.
struct WidenedBf16Cache : WideBf16Cache {};

template <class Cache>
constexpr bool kWidensBlocks = false;
template <>
constexpr bool kWidensBlocks<WidenedBf16Cache> = true;

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
