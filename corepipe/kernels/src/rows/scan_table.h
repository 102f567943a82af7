// The functions of an ISA for recurrent layers: leaf functions, over rows of one sequence.
#pragma once

#include <cstddef>

#include "rows/row_table.h"

namespace corepipe {

// out[t] = function(bias + the sum over k of weights[k] * x[t - (taps - 1) + k]), a channel by itself: a convolution
// over the row's own and earlier ones.  `from`: the `taps` - 1 rows before the first, in their order, null where these
// are zeros; `to` becomes the last so many, and may be `from`.  Strides are in elements; out is not x.
struct Convolution {
  int tokens, taps, channels;
  const float* x;
  size_t x_stride;
  const float* weights;  // [taps][channels]
  const float* bias;     // [channels], or null
  Function function;
  const float* from;  // [taps - 1][channels]
  float* to;
  float* out;
  size_t out_stride;
  bool round;
};

// The recurrence of a state-space layer (Dao & Gu 2024, Mamba-2), of each head by itself, token after token:
//   step = clamp(softplus(dt + dt_bias)); h = e^(step * rate) h + (step x) outer b; out = h c + skip x
// with h [head_dim][states] fp32, and b and c those of the head's group.  `from`: h before the first row, null where it
// is zeros; `to` becomes h after the last, and may be `from`; of each head [head_dim / 16][states][16].
struct Scan {
  int tokens, head_dim, states, heads_of_group;
  const float *x, *b, *c, *dt;  // rows of heads x head_dim, groups x states twice, heads
  size_t x_stride, b_stride, c_stride, dt_stride;
  const float *rates, *dt_bias, *skip;  // [heads]
  float dt_least, dt_most;
  const float* from;
  float* to;
  float* out;
  size_t out_stride;
  bool round;
};

constexpr int kScanLanes = 16;  // head_dim is a multiple of it

// Results do not depend on how a sequence is cut into calls, bit for bit.
struct ScanTable {
  // Some of the channels.
  void (*convolve)(const Convolution& op, int first, int channels);
  void (*scan)(const Scan& op, int head);
};

}  // namespace corepipe
