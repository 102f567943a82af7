// Recurrent layers, for the ISA of the file that includes this.
#pragma once

#include "rows/rows.inl"
#include "rows/scan_table.h"

namespace corepipe {
namespace COREPIPE_SIMD {

// ln(1 + e^x) within 3e-7 of the value: max(x, 0) + ln(1 + u) with u = e^-|x|, and ln(1 + u) = 2 atanh(u / (2 + u)),
// whose argument is 1/3 at most.
CP_INLINE f32x16 softplus(f32x16 x) {
  const f32x16 u = exp(zero() - abs(x));
  const f32x16 s = u / (broadcast(2.0f) + u), square = s * s;
  f32x16 y = broadcast(1.0f / 15);
  y = fma(y, square, broadcast(1.0f / 13));
  y = fma(y, square, broadcast(1.0f / 11));
  y = fma(y, square, broadcast(1.0f / 9));
  y = fma(y, square, broadcast(1.0f / 7));
  y = fma(y, square, broadcast(1.0f / 5));
  y = fma(y, square, broadcast(1.0f / 3));
  y = fma(y, square, broadcast(1.0f));
  return max(zero(), x) + broadcast(2.0f) * s * y;
}

// ---- convolution

// A row of the sequence by its number, which is below 0 for one before the first; null for zeros.
CP_INLINE const float* row_before(const Convolution& op, int row) {
  if (row >= 0) return op.x + row * op.x_stride;
  return op.from == nullptr ? nullptr : op.from + (size_t)(op.taps - 1 + row) * op.channels;
}

static void convolve(const Convolution& op, int first, int channels) {
  const int kept = op.taps - 1;
  with_function(op.function, [&](auto known) {
    for (int t = 0; t < op.tokens; ++t) {
      for_lanes(channels, [&](int i, int n) {
        const int at = first + i;
        f32x16 sum = op.bias == nullptr ? zero() : load_part(op.bias + at, n);
        for (int k = 0; k <= kept; ++k) {
          const float* row = row_before(op, t - kept + k);
          const f32x16 x = row == nullptr ? zero() : load_part(row + at, n);
          sum = fma(x, load_part(op.weights + (size_t)k * op.channels + at, n), sum);
        }
        store_part(op.out + t * op.out_stride + at, apply<known.value>(sum), n, op.round);
      });
    }
  });
  for (int j = 0; j < kept; ++j) {  // each comes from a later place, so that `to` may be `from`
    const float* row = row_before(op, op.tokens - kept + j);
    float* to = op.to + (size_t)j * op.channels + first;
    if (row == nullptr) {
      memset(to, 0, (size_t)channels * sizeof *to);
    } else {
      memmove(to, row + first, (size_t)channels * sizeof *to);
    }
  }
}

// ---- scan

// States that are held in registers over a stretch of tokens.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kHeldStates = 8;
#else
constexpr int kHeldStates = 4;
#endif

constexpr int kStretch = 64;  // tokens whose intermediate values the stack holds

// Of sixteen elements of a head, over a stretch: decay and step by token, what goes in and comes out [token][16].
struct Stretch {
  int tokens;
  float steps[kStretch], decays[kStretch];
  float in[kStretch * kLanes], out[kStretch * kLanes];
};

// Adds to what comes out of the stretch what these states, which are consecutive, add to it, one after the other.
template <int kCount>
CP_INLINE void pass_states(Stretch& s, const float* b, size_t b_stride, const float* c, size_t c_stride,
                           const float* from, float* to) {
  f32x16 h[kCount];
  for (int i = 0; i < kCount; ++i) h[i] = from == nullptr ? zero() : load(from + i * kLanes);
  for (int t = 0; t < s.tokens; ++t) {
    const f32x16 decay = broadcast(s.decays[t]), in = load(s.in + t * kLanes);
    f32x16 y = load(s.out + t * kLanes);
    for (int i = 0; i < kCount; ++i) {
      h[i] = fma(h[i], decay, in * broadcast(b[t * b_stride + i]));
      y = fma(h[i], broadcast(c[t * c_stride + i]), y);
    }
    store(s.out + t * kLanes, y);
  }
  for (int i = 0; i < kCount; ++i) store(to + i * kLanes, h[i]);
}

// What comes out of these states at one token, added up as above.  The state comes from memory and goes back to it: no
// sum waits for it there.
CP_INLINE f32x16 pass_token(f32x16 decay, f32x16 in, const float* b, const float* c, int states, const float* from,
                            float* to) {
  constexpr int kAhead = 2048;  // bytes, measured on Zen 3
  f32x16 y = zero();
  for (int i = 0; i < states; ++i) {
    __builtin_prefetch((const char*)(from + i * kLanes) + kAhead, 1);
    const f32x16 h = fma(load(from + i * kLanes), decay, in * broadcast(b[i]));
    store(to + i * kLanes, h);
    y = fma(h, broadcast(c[i]), y);
  }
  return y;
}

// How far time goes on at each token, and what is left of the state.
CP_INLINE void set_steps(const Scan& op, int head, int first, Stretch& s) {
  for (int t = 0; t < s.tokens; ++t) s.steps[t] = op.dt[(first + t) * op.dt_stride + head];
  const f32x16 bias = broadcast(op.dt_bias[head]), rate = broadcast(op.rates[head]);
  for_lanes(s.tokens, [&](int i, int n) {
    const f32x16 dt = softplus(load_part(s.steps + i, n) + bias);
    const f32x16 step = min(broadcast(op.dt_most), max(broadcast(op.dt_least), dt));
    store_part(s.steps + i, step, n, false);
    store_part(s.decays + i, exp(step * rate), n, false);
  });
}

// The next token of a sequence that goes on, with the bits that it has in a stretch.
__attribute__((noinline)) static void scan_token(const Scan& op, int head) {
  const size_t own = (size_t)head * op.head_dim, group = (size_t)(head / op.heads_of_group) * op.states;
  const f32x16 skip = broadcast(op.skip[head]);
  Stretch s;
  s.tokens = 1;
  set_steps(op, head, 0, s);
  const f32x16 step = broadcast(s.steps[0]), decay = broadcast(s.decays[0]);
  for (int i = 0; i < op.head_dim; i += kLanes) {
    const f32x16 x = load(op.x + own + i);
    const size_t block = (own + i) * op.states;
    const f32x16 y = pass_token(decay, x * step, op.b + group, op.c + group, op.states, op.from + block, op.to + block);
    store_part(op.out + own + i, fma(x, skip, y), kLanes, op.round);
  }
}

static void scan_head(const Scan& op, int head) {
  if (op.tokens == 1 && op.from != nullptr) return scan_token(op, head);
  const size_t own = (size_t)head * op.head_dim * op.states;
  const size_t group = (size_t)(head / op.heads_of_group) * op.states;
  const f32x16 skip = broadcast(op.skip[head]);
  Stretch s;
  for (int first = 0; first < op.tokens; first += kStretch) {
    s.tokens = op.tokens - first < kStretch ? op.tokens - first : kStretch;
    set_steps(op, head, first, s);
    const float* b = op.b + first * op.b_stride + group;
    const float* c = op.c + first * op.c_stride + group;
    const float* before = first == 0 ? op.from : op.to;
    for (int i = 0; i < op.head_dim; i += kLanes) {
      const float* x = op.x + first * op.x_stride + (size_t)head * op.head_dim + i;
      float* out = op.out + first * op.out_stride + (size_t)head * op.head_dim + i;
      for (int t = 0; t < s.tokens; ++t) {
        store(s.in + t * kLanes, load(x + t * op.x_stride) * broadcast(s.steps[t]));
        store(s.out + t * kLanes, zero());
      }
      const size_t block = own + (size_t)i * op.states;
      int state = 0;
      for (; state + kHeldStates <= op.states; state += kHeldStates) {
        const size_t at = block + (size_t)state * kLanes;
        pass_states<kHeldStates>(s, b + state, op.b_stride, c + state, op.c_stride,
                                 before == nullptr ? nullptr : before + at, op.to + at);
      }
      for (; state < op.states; ++state) {
        const size_t at = block + (size_t)state * kLanes;
        pass_states<1>(s, b + state, op.b_stride, c + state, op.c_stride,
                       before == nullptr ? nullptr : before + at, op.to + at);
      }
      for (int t = 0; t < s.tokens; ++t) {
        const f32x16 y = fma(load(x + t * op.x_stride), skip, load(s.out + t * kLanes));
        store_part(out + t * op.out_stride, y, kLanes, op.round);
      }
    }
  }
}

constexpr ScanTable kScan = {convolve, scan_head};

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
