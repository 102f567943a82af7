// What the attention, row and sampler kernels of each ISA take and offer.
#pragma once

#include <cstddef>
#include <cstdint>

namespace corepipe {

constexpr int kKeyGroup = 16;      // keys that lie together in the cache
constexpr int kKeyBlock = 64;      // keys of one softmax step, at absolute positions
constexpr int kKeySegment = 512;   // keys whose sums are built apart and combined in order
constexpr int kNoWindow = 0x7fffffff;

// One layer of a paged cache.  Group g of block b of a head lies at
// base + head * head_stride + (b * groups_per_block + g) * group_bytes: first its keys
// (bf16 [width / 2][16][2], fp32 [width][16]), then its values (bf16 [8][width][2], fp32 [16][width]).
struct KVLayer {
  char* base;
  size_t head_stride;
  size_t group_bytes;
  int groups_per_block;
  int width;  // head size, padded to 16
  bool fp32;
};

struct HeadNorm {
  const float* gain = nullptr;  // null: no norm
  float eps = 0;
};

struct Rotation {
  const float* cos = nullptr;  // [max_positions, half]; null: no rotation
  const float* sin = nullptr;
  int half = 0;
};

// One Attention op on one batch.
struct AttentionCall {
  const float *q, *k, *v;
  float* out;
  size_t q_stride, k_stride, v_stride, out_stride;
  int kv_heads, group, head_dim;  // group: query heads of a kv head
  float scale;
  int window;
  Rotation rotation;
  HeadNorm q_norm, k_norm;
  void (*rms_norm_row)(const float* x, const float* gain, float eps, int n, bool round_bf16, float* out);
  bool round_bf16;
  KVLayer cache;
  const int32_t* positions;
  const int32_t* tables;
  int table_width;
};

// Rows [row, row + rows) of a sequence, one kv head, keys of segments [segment, segment_end).
struct AttentionItem {
  int sequence, head, row, rows;
  int segment, segment_end;
  bool writes;     // stores the keys and values of its rows first
  float* partial;  // state of each segment and row; null: all segments are here, the result goes to `out`
};

// Sums of one row over some keys: the denominator by lane [16], the maximum [1, padded to 16], the weighted
// values [width].
inline size_t state_floats(int width) { return 2 * kKeyGroup + (size_t)width; }

constexpr int kMaxHeadDim = 512;

struct RowTable {
  // Rotates one head.
  void (*rope)(const float* x, float* out, int head_dim, const float* cos, const float* sin, int half,
               bool round_bf16);
  void (*add)(const float* a, const float* b, float* out, int n, bool round_bf16);
  void (*glu)(const float* gate, const float* up, float* out, int n, bool round_bf16);
  void (*round)(const float* x, float* out, int n);
  void (*widen)(const uint16_t* bf16, float* out, int n);
};

constexpr int kSampleBlock = 1024;  // elements whose weights are added up apart
constexpr int kMaximaGroup = 64;

struct SamplerTable {
  // Lowest index of the largest element; NaN counts as -inf; 0 where nothing is above -inf.  `finite`: whether x
  // has neither NaN nor infinities.
  int (*argmax)(const float* x, int n, bool* finite);
  // The largest element, NaN left out; -inf where there is none.  `finite` as above.
  float (*max)(const float* x, int n, bool* finite);
  // maxima[i] = max of x[64 i .. 64 i + 64), the last one of what is left.
  void (*group_maxima)(const float* x, int n, float* maxima);
  // out = x / divisor, NaN as -inf.
  void (*divide)(const float* x, float divisor, float* out, int n);
  // weights = exp(x - max), 0 for NaN; and their sum for each kSampleBlock elements.  weights may be null.
  void (*weigh)(const float* x, int n, float max, float* weights, double* sums);
  // Indices of the elements >= bound, ascending; returns how many (`ids` has room for n + 16).
  int (*at_least)(const float* x, int n, float bound, int32_t* ids);
};

// ISA-specific, without state; called by attention.cpp, program.cpp and sampler.cpp.
struct AttentionTable {
  // Bytes of scratch that `attend` needs for items of `rows` tokens.
  size_t (*scratch_bytes)(const AttentionCall&, int rows);
  // Stores keys and values of rows [row, row + rows) of one sequence.
  void (*write)(const AttentionCall&, int sequence, int row, int rows, int head);
  // `next` (or null) is what this thread does next: its first keys are fetched ahead.
  void (*attend)(const AttentionCall&, const AttentionItem&, const AttentionItem* next, void* scratch);
  // Adds up the partial results of all segments, in order: `item` covers them all, its `partial` points to
  // [segments][rows * group][state_floats], which is overwritten.
  void (*combine)(const AttentionCall&, const AttentionItem& item);
  // A thread calls these, where there are any, before and after `attend` with a bf16 cache.
  void (*begin_bf16)();
  void (*end_bf16)();
  RowTable rows;
  SamplerTable sampler;
};

}  // namespace corepipe
