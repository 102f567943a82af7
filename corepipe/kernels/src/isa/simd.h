// Sixteen fp32 lanes that compile to the registers of the ISA at hand: one zmm, two ymm, or four
// 128-bit vectors (SSE2, NEON).  A reduction adds in the same order everywhere.
//
// The files in tables/ are compiled with COREPIPE_SIMD (amx, avx512, avx512_vnni, avx2, portable, ...) defined:
// everything lives in namespace corepipe::COREPIPE_SIMD, so that no two ISAs share a symbol.  For the
// same reason code in that namespace calls no inline or template function of the standard library: the
// linker keeps one copy of those, and it might be one this CPU can't run.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef COREPIPE_SIMD
#error "define COREPIPE_SIMD before including simd.h"
#endif

#define CP_INLINE static inline __attribute__((always_inline))

#if defined(__SSE2__) && !defined(__FMA__)
#include "isa/multiply_add_sse2.h"
#endif

namespace corepipe {
namespace COREPIPE_SIMD {

#if defined(__AVX512F__)
constexpr int kNativeBytes = 64;
#elif defined(__AVX2__)
constexpr int kNativeBytes = 32;
#else
constexpr int kNativeBytes = 16;
#endif
constexpr int kLanes = 16;
constexpr int kNativeLanes = kNativeBytes / 4;
constexpr int kParts = kLanes / kNativeLanes;

typedef float NativeF __attribute__((vector_size(kNativeBytes)));
typedef int32_t NativeI __attribute__((vector_size(kNativeBytes)));
typedef uint32_t NativeU __attribute__((vector_size(kNativeBytes)));

struct f32x16 {
  NativeF v[kParts];
};

// Also the type of masks: -1 in a lane that holds, else 0.
struct i32x16 {
  NativeI v[kParts];
};

// body(Index<0>), ..., body(Index<N - 1>), unrolled before GCC decides what lives in registers: `#pragma GCC
// unroll` comes too late for that.  A body that takes an int is compiled once, one that takes `auto` N times: for what
// has to be a constant expression.
template <int I>
struct Index {
  static constexpr int value = I;
  __attribute__((always_inline)) constexpr operator int() const { return I; }
};

template <int... I, class Body>
CP_INLINE void for_each_index(std::integer_sequence<int, I...>, Body&& body) {
  (body(Index<I>{}), ...);
}

template <int N, class Body>
CP_INLINE void unrolled(Body&& body) {
  for_each_index(std::make_integer_sequence<int, N>{}, body);
}

#define CP_LAMBDA __attribute__((always_inline))

// `statement` for each part p; written out, as GCC unrolls short loops too late to keep `v` in registers.
#define CP_PARTS(...)                   \
  do {                                  \
    CP_PART(0, __VA_ARGS__)             \
    CP_PART(1, __VA_ARGS__)             \
    CP_PART(2, __VA_ARGS__)             \
    CP_PART(3, __VA_ARGS__)             \
  } while (false)
#define CP_PART(part, ...)              \
  if constexpr (part < kParts) {        \
    constexpr int p = part;             \
    __VA_ARGS__;                        \
  }

// ---- bits

CP_INLINE f32x16 as_f32(i32x16 a) {
  f32x16 r;
  CP_PARTS(r.v[p] = (NativeF)a.v[p]);
  return r;
}

CP_INLINE i32x16 as_i32(f32x16 a) {
  i32x16 r;
  CP_PARTS(r.v[p] = (NativeI)a.v[p]);
  return r;
}

// ---- load, store, broadcast (no alignment needed)

CP_INLINE f32x16 load(const float* x) {
  f32x16 r;
  CP_PARTS(memcpy(&r.v[p], x + p * kNativeLanes, kNativeBytes));
  return r;
}

CP_INLINE i32x16 load(const int32_t* x) {
  i32x16 r;
  CP_PARTS(memcpy(&r.v[p], x + p * kNativeLanes, kNativeBytes));
  return r;
}

CP_INLINE void store(float* x, f32x16 a) { CP_PARTS(memcpy(x + p * kNativeLanes, &a.v[p], kNativeBytes)); }
CP_INLINE void store(int32_t* x, i32x16 a) { CP_PARTS(memcpy(x + p * kNativeLanes, &a.v[p], kNativeBytes)); }

// The first n (0 .. 16) elements; the other lanes are 0.  Touches no memory beyond them.
CP_INLINE f32x16 load_n(const float* x, int n) {
#if defined(__AVX512F__)
  f32x16 r;
  r.v[0] = (NativeF)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), x);
  return r;
#else
  float lanes[kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i] = x[i];
  return load(lanes);
#endif
}

CP_INLINE void store_n(float* x, f32x16 a, int n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(x, (__mmask16)((1u << n) - 1u), (__m512)a.v[0]);
#else
  float lanes[kLanes];
  store(lanes, a);
  for (int i = 0; i < n; ++i) x[i] = lanes[i];
#endif
}

CP_INLINE f32x16 broadcast(float s) {
  f32x16 r;
  CP_PARTS(r.v[p] = s - NativeF{});
  return r;
}

CP_INLINE i32x16 broadcast_i32(int32_t s) {
  i32x16 r;
  CP_PARTS(r.v[p] = s - NativeI{});
  return r;
}

CP_INLINE f32x16 zero() {
  f32x16 r;
  CP_PARTS(r.v[p] = NativeF{});
  return r;
}

CP_INLINE i32x16 lane_index() {
  const int32_t lanes[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(lanes);
}

// ---- arithmetic

#define CP_BINARY(type, op)                                  \
  CP_INLINE type operator op(type a, type b) {               \
    type r;                                                  \
    CP_PARTS(r.v[p] = a.v[p] op b.v[p]); \
    return r;                                                \
  }
CP_BINARY(f32x16, +)
CP_BINARY(f32x16, -)
CP_BINARY(f32x16, *)
CP_BINARY(f32x16, /)
CP_BINARY(i32x16, &)
CP_BINARY(i32x16, |)
#undef CP_BINARY

// Modulo 2^32: bits of floats are added and taken from each other, too.
CP_INLINE i32x16 operator+(i32x16 a, i32x16 b) {
  i32x16 r;
  CP_PARTS(r.v[p] = (NativeI)((NativeU)a.v[p] + (NativeU)b.v[p]));
  return r;
}

CP_INLINE i32x16 operator-(i32x16 a, i32x16 b) {
  i32x16 r;
  CP_PARTS(r.v[p] = (NativeI)((NativeU)a.v[p] - (NativeU)b.v[p]));
  return r;
}

#define CP_COMPARE(type, op)                                            \
  CP_INLINE i32x16 operator op(type a, type b) {                        \
    i32x16 r;                                                           \
    CP_PARTS(r.v[p] = (NativeI)(a.v[p] op b.v[p])); \
    return r;                                                           \
  }
CP_COMPARE(f32x16, <)
CP_COMPARE(f32x16, >)
CP_COMPARE(f32x16, ==)
CP_COMPARE(f32x16, !=)
CP_COMPARE(i32x16, <)
CP_COMPARE(i32x16, >)
CP_COMPARE(i32x16, ==)
#undef CP_COMPARE

CP_INLINE f32x16 select(i32x16 mask, f32x16 yes, f32x16 no) {
  f32x16 r;
  CP_PARTS(r.v[p] = mask.v[p] ? yes.v[p] : no.v[p]);
  return r;
}

// a * b + c, rounded once everywhere, in software where the CPU has no such instruction: for results whose bits are the
// same on every ISA.
CP_INLINE f32x16 fma_once(f32x16 a, f32x16 b, f32x16 c) {
  f32x16 r;
#if defined(__AVX512F__)
  r.v[0] = (NativeF)_mm512_fmadd_ps((__m512)a.v[0], (__m512)b.v[0], (__m512)c.v[0]);
#elif defined(__FMA__)
  CP_PARTS(r.v[p] = (NativeF)_mm256_fmadd_ps((__m256)a.v[p], (__m256)b.v[p], (__m256)c.v[p]));
#elif defined(__aarch64__)
  CP_PARTS(r.v[p] = (NativeF)vfmaq_f32((float32x4_t)c.v[p], (float32x4_t)a.v[p], (float32x4_t)b.v[p]));
#elif defined(__SSE2__)
  CP_PARTS(r.v[p] = (NativeF)multiply_add((__m128)a.v[p], (__m128)b.v[p], (__m128)c.v[p]));
#else
  CP_PARTS(for (int i = 0; i < kNativeLanes; ++i) r.v[p][i] = __builtin_fmaf(a.v[p][i], b.v[p][i], c.v[p][i]));
#endif
  return r;
}

// a * b + c, rounded once where the CPU has an instruction for that (AVX-512, AVX2, NEON), or COREPIPE_FUSED asks for it;
// twice on plain SSE2.
CP_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__FMA__) || defined(__aarch64__) || defined(COREPIPE_FUSED)
  return fma_once(a, b, c);
#else
  return a * b + c;
#endif
}

// The second operand where either is NaN, as maxps.
CP_INLINE f32x16 max(f32x16 a, f32x16 b) {
  f32x16 r;
#if defined(__AVX512F__)
  r.v[0] = (NativeF)_mm512_max_ps((__m512)a.v[0], (__m512)b.v[0]);
#elif defined(__AVX2__)
  CP_PARTS(r.v[p] = (NativeF)_mm256_max_ps((__m256)a.v[p], (__m256)b.v[p]));
#else
  CP_PARTS(r.v[p] = a.v[p] > b.v[p] ? a.v[p] : b.v[p]);
#endif
  return r;
}

// The second operand where either is NaN, as minps.
CP_INLINE f32x16 min(f32x16 a, f32x16 b) {
  f32x16 r;
#if defined(__AVX512F__)
  r.v[0] = (NativeF)_mm512_min_ps((__m512)a.v[0], (__m512)b.v[0]);
#elif defined(__AVX2__)
  CP_PARTS(r.v[p] = (NativeF)_mm256_min_ps((__m256)a.v[p], (__m256)b.v[p]));
#else
  CP_PARTS(r.v[p] = a.v[p] < b.v[p] ? a.v[p] : b.v[p]);
#endif
  return r;
}

CP_INLINE f32x16 abs(f32x16 a) { return as_f32(as_i32(a) & broadcast_i32(0x7fffffff)); }

// ---- reductions: lane i meets i + 8, then i + 4, i + 2, i + 1

typedef float Quad __attribute__((vector_size(16)));

// Folds to four lanes with `op`, a callable over vectors of any width.
template <class Op>
CP_INLINE Quad fold_to_quad(f32x16 a, Op op) {
#if defined(__AVX512F__)
  typedef float Oct __attribute__((vector_size(32)));
  const __m512d d = (__m512d)a.v[0];
  const Oct o = op((Oct)_mm512_castpd512_pd256(d), (Oct)_mm512_extractf64x4_pd(d, 1));
  return op((Quad)_mm256_castps256_ps128((__m256)o), (Quad)_mm256_extractf128_ps((__m256)o, 1));
#elif defined(__AVX2__)
  const NativeF o = op(a.v[0], a.v[1]);
  return op((Quad)_mm256_castps256_ps128((__m256)o), (Quad)_mm256_extractf128_ps((__m256)o, 1));
#else
  return op(op(a.v[0], a.v[2]), op(a.v[1], a.v[3]));
#endif
}

CP_INLINE float reduce_add(f32x16 a) {
  const Quad q = fold_to_quad(a, [](auto x, auto y) { return x + y; });
  return (q[0] + q[2]) + (q[1] + q[3]);
}

CP_INLINE float reduce_max(f32x16 a) {
  const Quad q = fold_to_quad(a, [](auto x, auto y) { return x > y ? x : y; });
  const float even = q[0] > q[2] ? q[0] : q[2];
  const float odd = q[1] > q[3] ? q[1] : q[3];
  return even > odd ? even : odd;
}

// The largest lane of the bits of non-negative floats, as a float; a NaN is larger than all.
CP_INLINE float reduce_max_bits(i32x16 a) {
  int32_t bits;
#if defined(__AVX512F__)
  bits = _mm512_reduce_max_epi32((__m512i)a.v[0]);
#elif defined(__AVX2__)
  const __m256i half = _mm256_max_epi32((__m256i)a.v[0], (__m256i)a.v[1]);
  __m128i quad = _mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  quad = _mm_max_epi32(quad, _mm_shuffle_epi32(quad, 0x4e));
  bits = _mm_cvtsi128_si32(_mm_max_epi32(quad, _mm_shuffle_epi32(quad, 0xb1)));
#elif defined(__aarch64__)
  const int32x4_t top = vmaxq_s32(vmaxq_s32((int32x4_t)a.v[0], (int32x4_t)a.v[1]),
                                vmaxq_s32((int32x4_t)a.v[2], (int32x4_t)a.v[3]));
  bits = vmaxvq_s32(top);
#else
  int32_t lanes[kLanes];
  store(lanes, a);
  bits = lanes[0];
  for (int i = 1; i < kLanes; ++i) bits = lanes[i] > bits ? lanes[i] : bits;
#endif
  float largest;
  memcpy(&largest, &bits, sizeof largest);
  return largest;
}

// ---- bf16

// Rounds each lane to the nearest bf16, ties to even, and keeps it as fp32.  NaN stays a (quiet) NaN; AVX-512's
// own conversion makes subnormal numbers (below 1.2e-38) 0.
CP_INLINE f32x16 round_bf16(f32x16 a) {
  f32x16 r;
#if defined(__AVX512BF16__)
  const __m256i half = (__m256i)_mm512_cvtneps_pbh((__m512)a.v[0]);
  r.v[0] = (NativeF)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
#else
  CP_PARTS(const NativeU bits = (NativeU)a.v[p];
           const NativeU rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
           const NativeU quiet = (bits | 0x00400000u) & 0xffff0000u;
           r.v[p] = (NativeF)(a.v[p] == a.v[p] ? rounded : quiet));
#endif
  return r;
}

// Sixteen stored bf16 values.
CP_INLINE f32x16 load_bf16(const uint16_t* x) {
#if defined(__AVX512F__)
  f32x16 r;
  r.v[0] = (NativeF)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)x)), 16);
  return r;
#elif defined(__AVX2__)
  f32x16 r;
  for (int p = 0; p < 2; ++p) {
    const __m128i half = _mm_loadu_si128((const __m128i*)(x + 8 * p));
    r.v[p] = (NativeF)_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
  }
  return r;
#else
  typedef uint16_t Half __attribute__((vector_size(kNativeBytes / 2)));
  f32x16 r;
  CP_PARTS(Half half; memcpy(&half, x + p * kNativeLanes, sizeof half);
           r.v[p] = (NativeF)(__builtin_convertvector(half, NativeU) << 16));
  return r;
#endif
}

// Stores lanes that round_bf16 has rounded (others lose their low bits).
CP_INLINE void store_bf16(uint16_t* x, f32x16 a) {
#if defined(__AVX512F__)
  const __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)a.v[0], 16));
  _mm256_storeu_si256((__m256i*)x, half);
#elif defined(__AVX2__)
  const __m256i lo = _mm256_srli_epi32((__m256i)a.v[0], 16);
  const __m256i hi = _mm256_srli_epi32((__m256i)a.v[1], 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xd8);
  _mm256_storeu_si256((__m256i*)x, packed);
#else
  typedef uint16_t Half __attribute__((vector_size(kNativeBytes / 2)));
  CP_PARTS(const Half half = __builtin_convertvector((NativeU)a.v[p] >> 16, Half);
           memcpy(x + p * kNativeLanes, &half, sizeof half));
#endif
}

// ---- fp16

// Sixteen stored finite fp16 values.
CP_INLINE f32x16 load_fp16(const uint16_t* x) {
#if defined(__AVX512F__)
  f32x16 r;
  r.v[0] = (NativeF)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)x));
  return r;
#elif defined(__F16C__)
  f32x16 r;
  CP_PARTS(r.v[p] = (NativeF)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(x + p * kNativeLanes))));
  return r;
#else
  // Exponent and mantissa in place, times what the exponents' biases differ by: exact, also below 2^-14.
  const i32x16 bits = as_i32(load_bf16(x));
  i32x16 magnitude;
  CP_PARTS(magnitude.v[p] = (bits.v[p] & 0x7fffffff) >> 3);
  const f32x16 value = as_f32(magnitude) * broadcast(5.192296858534828e33f);  // 2^112
  return as_f32(as_i32(value) | (bits & broadcast_i32((int32_t)0x80000000u)));
#endif
}

// ---- exp

// x * 2^n for whole n in [-150, 129], rounded once where the result is subnormal.
CP_INLINE f32x16 times_power_of_2(f32x16 x, f32x16 n) {
  f32x16 r;
#if defined(__AVX512F__)
  r.v[0] = (NativeF)_mm512_scalef_ps((__m512)x.v[0], (__m512)n.v[0]);
#else
  // In two exact halves, as 2^n itself may be out of range.
  CP_PARTS(const NativeI whole = __builtin_convertvector(n.v[p], NativeI);
           const NativeI half = whole >> 1;
           const NativeI rest = whole - half;
           r.v[p] = x.v[p] * (NativeF)((half + 127) << 23) * (NativeF)((rest + 127) << 23));
#endif
  return r;
}

// e^x within about 1 ulp; exp(-inf) = 0, exp(inf) = inf, NaN stays NaN.  Cephes' expf polynomial, after
// taking n = round(x / ln 2) out.
CP_INLINE f32x16 exp(f32x16 x) {
  x = min(broadcast(89.0f), max(broadcast(-104.0f), x));
  const f32x16 magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const f32x16 n = fma(x, broadcast(1.44269504088896341f), magic) - magic;
  f32x16 r = fma(n, broadcast(-0.693359375f), x);
  r = fma(n, broadcast(2.12194440e-4f), r);
  f32x16 y = broadcast(1.9875691500e-4f);
  y = fma(y, r, broadcast(1.3981999507e-3f));
  y = fma(y, r, broadcast(8.3334519073e-3f));
  y = fma(y, r, broadcast(4.1665795894e-2f));
  y = fma(y, r, broadcast(1.6666665459e-1f));
  y = fma(y, r, broadcast(5.0000001201e-1f));
  y = fma(y, r * r, r) + broadcast(1.0f);
  return times_power_of_2(y, n);
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
