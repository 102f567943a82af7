// The attention functions of an ISA, and their arguments.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rows/row_table.h"

namespace corepipe {

constexpr int kKeyGroup = 16;      // keys that lie together in the cache
constexpr int kKeyBlock = 64;      // keys of one softmax step, at absolute positions
constexpr int kKeySegment = 512;   // keys whose sums are computed apart and combined in order
constexpr int kNoWindow = 0x7fffffff;  // also for `ahead`: all positions after a row

// One layer of a paged cache.  Group g of block b of a head lies at
// base + head * head_stride + (b * groups_per_block + g) * group_bytes: first its keys
// (bf16 [width / 2][16][2], fp32 [width][16]), then its values (bf16 [8][width][2], fp32 [16][width]).  In int8 either
// are fp32 scales [16], then a byte for each element in the same order; keys are rotated.
// For latents there are only keys, which are not rotated: a value is the first `shared` elements of its key.
struct KVLayer {
  char* base;
  size_t head_stride;
  size_t group_bytes;
  int groups_per_block;
  int width;  // head size, padded to 16
  bool fp32;  // keys and values are multiplied as fp32, otherwise as bf16
  bool int8;  // they are stored as int8, otherwise in the same format
  int shared = 0;  // padded to 16; 0: values are kept beside the keys

  int value_width() const { return shared > 0 ? shared : width; }
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
  bool wanted;  // q and out have the requested rows only, k and v all rows
  size_t q_stride, k_stride, v_stride, out_stride;
  int kv_heads, group, head_dim;  // group: query heads of a kv head; for latents a part of the heads is a kv head
  int value_dim;                  // elements of a value and of a result of a head
  float scale;
  int window;                     // a row attends from window - 1 positions before its own on
  bool chunked = false;           // or from the last multiple of `window` on, its own position included
  int ahead = 0;                  // up to so many positions after its own
  bool keeps = true;              // otherwise keys and values are of this Op's rows alone, and the cache is a thread's
  bool wide = false;              // an fp32 cache of numbers that are rounded to bf16
  bool values_in_place = false;   // `v` begins with the sequence's first row, and the cache has keys alone
  float softcap = 0;              // above 0: a scaled score s becomes softcap * tanh(s / softcap)
  const float* slopes = nullptr;  // [kv_heads * group], or null: slope by which a head's scores fall per position
  const float* biases = nullptr;  // [kv_heads * group][2 reach + 1], or null: added to scores by distance
  const float* sinks = nullptr;   // [kv_heads * group], or null: a score per head without a key, for the softmax
  int reach = 0;                  // distances from -reach on; kKeyBlock more than the largest difference of positions
  Rotation rotation;
  Norm q_norm, k_norm;
  Norm head_norm;                     // of queries and keys, after their rotation
  const float* tempers = nullptr;     // [max_positions], or null: final factor of a row's queries
  bool round_bf16;
  KVLayer cache;
  const int32_t* positions;
  const int32_t* tables;
  int table_width;
};

// Rows [row, row + rows) of a sequence, which are those of q and out from `query` on; one kv head, keys of segments
// [segment, segment_end), of positions below `end`.
struct AttentionItem {
  int sequence, head, row, rows, query;
  int segment, segment_end;
  int end;
  bool writes;     // stores the keys and values of its rows first
  float* partial;  // state of each segment and row; null: all segments are here, the result goes to `out`
};

// Sums of one row over some keys: the denominator by lane [16], the maximum [1, padded to 16], the weighted
// values [width of those].
inline size_t state_floats(int width) { return 2 * kKeyGroup + (size_t)width; }

constexpr int kMaxHeadDim = 576;  // DeepSeek's latents

// ISA-specific, without state; called by attention.cpp.
struct AttentionTable {
  // Bytes of scratch that `attend` needs for items of `rows` tokens.
  size_t (*scratch_bytes)(const AttentionCall&, int rows);
  // Stores keys and values of rows [row, row + rows) of one sequence.
  void (*write)(const AttentionCall&, int sequence, int row, int rows, int head);
  // `next` (or null) is the thread's next item: its first keys are fetched in advance.
  void (*attend)(const AttentionCall&, const AttentionItem&, const AttentionItem* next, void* scratch);
  // Adds up the partial results of all segments, in order: `item` covers them all, its `partial` points to
  // [segments][rows * group][state_floats], which is overwritten.
  void (*combine)(const AttentionCall&, const AttentionItem& item);
  // A thread calls these, if they are set, before and after `attend` with a bf16 cache.
  void (*begin_bf16)();
  void (*end_bf16)();
  bool widens;  // without a cache keys and values are multiplied faster as fp32 than as bf16
};

}  // namespace corepipe
