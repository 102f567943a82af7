// Around the products of attention_tiles.inl: segments, whole items, and their results.

#pragma once

#include "attention/attention_edges.inl"
#include "attention/attention_rows.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

// ---- states

CP_INLINE void clear_states(float* state, int rows, size_t stride) {
  for (size_t i = 0; i < rows * stride; i += kLanes) store(state + i, zero());
  for (int r = 0; r < rows; ++r) state[r * stride + kLanes] = kMinusInfinity;
}

// total = total and state together.
static void fold_state(float* total, const float* state, int width) {
  const float a = total[kLanes], b = state[kLanes];
  const float maximum = a > b ? a : b, base = finite_or_zero(maximum);
  float gaps[kLanes] = {a - base, b - base};
  store(gaps, exp2_nonpositive(load(gaps)));
  const f32x16 keep = broadcast(gaps[0]), take = broadcast(gaps[1]);
  for (int i = 0; i < 2 * kLanes + width; i += kLanes) {
    store(total + i, load(total + i) * keep + load(state + i) * take);
  }
  total[kLanes] = maximum;
}

// The factor of a row's sums: 1 / denominator.  A sink only adds to the denominator.
static float share_of(const AttentionCall& call, size_t head, const float* state) {
  const float total = reduce_add(load(state));
  if (call.sinks == nullptr) return 1.0f / total;
  const float a = state[kLanes], b = call.sinks[head] * kLog2E;
  const float maximum = a > b ? a : b;
  float gaps[kLanes] = {a - maximum, b - maximum};
  store(gaps, exp2_nonpositive(load(gaps)));
  return gaps[0] / (total * gaps[0] + gaps[1]);
}

// Of a row of the item.
static void store_result(const AttentionCall& call, const AttentionItem& item, int row, const float* state) {
  const size_t head = (size_t)item.head * call.group + row % call.group;
  float* out = call.out + (item.query + row / call.group) * call.out_stride + head * call.value_dim;
  const f32x16 inverse = broadcast(share_of(call, head, state));
  for (int d = 0; d < call.value_dim; d += kLanes) {
    const int n = call.value_dim - d < kLanes ? call.value_dim - d : kLanes;
    f32x16 y = load(state + 2 * kLanes + d) * inverse;
    if (call.round_bf16) y = round_bf16(y);
    store_n(out + d, y, n);
  }
}

// ---- items

CP_INLINE int smaller(int a, int b) { return a < b ? a : b; }
CP_INLINE int larger(int a, int b) { return a > b ? a : b; }

template <class Cache>
struct Item {
  typedef typename Cache::Factor Factor;
  typedef typename Cache::Element Element;

  const AttentionCall& call;
  const AttentionItem& item;
  Shape shape;
  Factor* q;  // [rows * group][width]
  Element* room;
  Reach reach;
  int first_position, last_key;

  Item(const AttentionCall& c, const AttentionItem& i, Factor* queries = nullptr, Element* widened = nullptr)
      : call(c), item(i), q(queries), room(widened), reach{c.window, c.ahead, i.end, c.chunked} {
    shape.width = call.cache.width;
    shape.value_width = call.cache.value_width();
    shape.stride = state_floats(shape.value_width);
    first_position = call.positions[item.row];
    const size_t head = (size_t)item.head * call.group;
    shape.bend = {call.scale,
                  call.softcap,
                  call.slopes == nullptr ? nullptr : call.slopes + head,
                  call.biases == nullptr ? nullptr : call.biases + head * (2 * call.reach + 1),
                  call.reach,
                  call.group,
                  first_position};
    shape.scale = shape.bend.needed() ? kLog2E : call.scale * kLog2E;
    last_key = Reach::newest(reach, first_position + item.rows - 1);
  }

  int rows() const { return item.rows * call.group; }

  void prepare_queries() {
    alignas(64) float work[kMaxHeadDim];
    for (int r = 0; r < rows(); ++r) {
      const int token = r / call.group;
      const size_t head = (size_t)item.head * call.group + r % call.group;
      const float* x = call.q + (item.query + token) * call.q_stride + head * call.head_dim;
      if (token + kRowsAhead < item.rows) fetch_row(x + kRowsAhead * call.q_stride, call.head_dim);
      x = ready_head(call, x, call.q_norm, first_position + token, work);
      if (call.tempers != nullptr) {
        scale_row(x, call.tempers[first_position + token], work, call.head_dim, call.round_bf16);
        x = work;
      }
      if (call.cache.int8 && call.cache.shared == 0) {
        rotate_head(x, call.head_dim, shape.width, work);
        x = work;
      }
      store_head<Cache>(x, call.head_dim, shape.width, q + (size_t)r * shape.width);
    }
  }

  // Groups of the block that the item may read.
  Span groups(int block) const {
    const int begin = block * (kKeyBlock / kKeyGroup);
    return {begin, smaller(begin + kKeyBlock / kKeyGroup, last_key / kKeyGroup + 1)};
  }

  int first_block() const {
    const int start = larger(Reach::oldest(reach, first_position), item.segment * kKeySegment);
    return start / kKeyBlock;
  }

  int end_block() const {
    const int end = smaller(last_key + 1, item.segment_end * kKeySegment);
    return (end + kKeyBlock - 1) / kKeyBlock;
  }

  Ahead ahead_of(int block) const {
    Ahead ahead;
    const Span span = groups(block);
    for (int g = span.end - 1; g >= span.begin; --g) {
      ahead.groups[ahead.count++] = group_at(call, item.sequence, item.head, g);
    }
    ahead.group_bytes = call.cache.group_bytes;
    return ahead;
  }

  void meet_block(int index, float* state, Ahead& ahead) {
    KeyBlock block = key_block<Cache>(call, item.sequence, item.head, groups(index), room);
    const int64_t key = (int64_t)index * kKeyBlock, last = key + kKeyBlock - 1;
    const auto clamp = [&](int64_t position) {  // as a token of the item
      const int64_t t = position - first_position;
      return (int)(t < 0 ? 0 : t < item.rows ? t : item.rows);
    };
    const int seen_begin = clamp(key - reach.ahead), seen_end = clamp(Reach::blind(reach, last));
    const int whole_begin = clamp(last - reach.ahead);
    const bool whole = (index + 1) * kKeyBlock <= reach.end;
    const int whole_end = whole ? larger(whole_begin, clamp(Reach::blind(reach, key))) : whole_begin;
    if (whole_begin == whole_end) return meet_part(block, index, seen_begin, seen_end, state, ahead);
    meet_part(block, index, seen_begin, whole_begin, state, ahead);
    meet_whole(block, whole_begin, whole_end, state, ahead);
    meet_part(block, index, whole_end, seen_end, state, ahead);
  }

  void meet_part(KeyBlock& block, int index, int begin, int end, float* state, Ahead& ahead) {
    const Edge edge = {first_position + begin, end - begin, call.group, reach, index * kKeyBlock};
    const int row = begin * call.group;
    meet_edges<Cache>(shape, q, state, row, edge, block, ahead);
  }

  void meet_whole(const KeyBlock& block, int begin, int end, float* state, Ahead& ahead) {
    const int row = begin * call.group;
    for_tiles<Cache>((end - begin) * call.group, [&](int first, int n) {
      meet<Cache, true>(shape, q, state, row + first, n, block, Sight<Cache>{}, ahead);
    });
  }

  // `next` is the item whose first block is fetched during the last one of this.
  void run_segment(int segment, float* state, const Item* next) {
    clear_states(state, rows(), shape.stride);
    constexpr int kBlocks = kKeySegment / kKeyBlock;
    const int last = end_block() - 1;
    const int begin = larger(first_block(), segment * kBlocks), end = smaller(last + 1, (segment + 1) * kBlocks);
    for (int b = begin; b < end; ++b) {
      Ahead ahead;
      if (b < last) {
        ahead = ahead_of(b + 1);
      } else if (next != nullptr) {
        ahead = next->ahead_of(next->first_block());
      }
      meet_block(b, state, ahead);
    }
  }

  // Segments that a row takes part in.
  Span segments_of(int row) const {
    const int position = first_position + row / call.group;
    return {Reach::oldest(reach, position) / kKeySegment, Reach::newest(reach, position) / kKeySegment + 1};
  }

  void fold_segment(int segment, float* total, const float* state) {
    for (int r = 0; r < rows(); ++r) {
      const Span span = segments_of(r);
      float* t = total + r * shape.stride;
      const float* s = state + r * shape.stride;
      if (segment == span.begin) {
        memcpy(t, s, shape.stride * sizeof(float));
      } else if (segment > span.begin && segment < span.end) {
        fold_state(t, s, shape.value_width);
      }
    }
  }

  void store_results(const float* total) {
    for (int r = 0; r < rows(); ++r) store_result(call, item, r, total + r * shape.stride);
  }
};

CP_INLINE size_t aligned(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

// Queries have room for a whole tile of rows more than there are.
CP_INLINE size_t query_bytes(const AttentionCall& call, size_t n) {
  return aligned((n + kKeyGroup) * call.cache.width * sizeof(float));
}

// Are blocks of a kept cache widened for many rows?  From some rows on that costs less than widening at every product.
CP_INLINE bool may_widen(const AttentionCall& call) {
  return kWidens && !call.wide && !call.cache.fp32 && !call.cache.int8 && call.cache.shared == 0;
}

constexpr int kWidenedRows = 2 * WidenedBf16Cache::kRows;

// For a block of keys and values, widened, and for values that are made of keys.
CP_INLINE size_t room_bytes(const AttentionCall& call) {
  const bool widened = call.cache.int8 || call.cache.shared > 0 || may_widen(call);
  const size_t element = call.cache.fp32 || may_widen(call) ? sizeof(float) : sizeof(uint16_t);
  return widened ? 2 * kKeyBlock * call.cache.width * element : 0;
}

static size_t scratch_bytes(const AttentionCall& call, int rows) {
  const size_t n = (size_t)rows * call.group;
  const size_t state_bytes = aligned(n * state_floats(call.cache.value_width()) * sizeof(float));
  return room_bytes(call) + query_bytes(call, n) + 2 * state_bytes;
}

// The keys of a position lie in as many lines as a head has pairs of elements: storing them cold takes long.
CP_INLINE void fetch_for_write(const AttentionCall& call, const AttentionItem& item, int position) {
  const char* group = group_at(call, item.sequence, item.head, position / kKeyGroup);
  for (size_t at = 0; at < call.cache.group_bytes; at += 64) __builtin_prefetch(group + at, 1, 2);
}

template <class Cache>
static void attend_as(const AttentionCall& call, const AttentionItem& item, const AttentionItem* next,
                      void* scratch) {
  if (item.writes) write_rows(call, item.sequence, item.row, item.rows, item.head);
  typename Cache::Element* room = (typename Cache::Element*)scratch;
  scratch = (char*)scratch + room_bytes(call);
  Item<Cache> work(call, item, (typename Cache::Factor*)scratch, room);
  const Item<Cache> following(call, next != nullptr ? *next : item);
  char* rest = (char*)scratch + query_bytes(call, work.rows());
  const size_t floats = work.rows() * work.shape.stride;
  float* state = (float*)rest;
  float* total = (float*)(rest + aligned(floats * sizeof(float)));
  if (next != nullptr && next->writes) fetch_for_write(call, *next, following.last_key);
  work.prepare_queries();
  const bool alone = item.segment_end - item.segment == 1;
  for (int s = item.segment; s < item.segment_end; ++s) {
    if (item.partial != nullptr) state = item.partial + (s - item.segment) * floats;
    work.run_segment(s, state, next != nullptr ? &following : nullptr);
    if (item.partial == nullptr && !alone) work.fold_segment(s, total, state);
  }
  if (item.partial == nullptr) work.store_results(alone ? state : total);
}

// Over a cache of int8 as many rows as meet a block together read it in place.
template <class Cache>
static void attend_kept(const AttentionCall& call, const AttentionItem& item, const AttentionItem* next,
                        void* scratch) {
  if constexpr (!Cache::kTiled) {
    if (call.cache.int8 && call.cache.shared == 0 && item.rows * call.group <= Cache::kRows) {
      return attend_as<InPlace<Cache>>(call, item, next, scratch);
    }
  }
  attend_as<Cache>(call, item, next, scratch);
}

// With a bf16 cache several rows go by `Rows`, which gives the same bits.
template <class Rows>
static void attend(const AttentionCall& call, const AttentionItem& item, const AttentionItem* next, void* scratch) {
  if (call.wide) {
    attend_as<WideBf16Cache>(call, item, next, scratch);
  } else if (call.cache.fp32) {
    attend_kept<Fp32Cache>(call, item, next, scratch);
  } else if (item.rows * call.group == 1) {
    attend_kept<Bf16Cache>(call, item, next, scratch);
  } else if (may_widen(call) && item.rows * call.group >= kWidenedRows) {
    if constexpr (kWidens) attend_as<WidenedBf16Cache>(call, item, next, scratch);
  } else {
    attend_kept<Rows>(call, item, next, scratch);
  }
}

static void combine(const AttentionCall& call, const AttentionItem& item) {
  const Item<Fp32Cache> work(call, item);
  const size_t floats = work.rows() * work.shape.stride;
  for (int r = 0; r < work.rows(); ++r) {
    const Span span = work.segments_of(r);
    float* state = item.partial + (span.begin - item.segment) * floats + r * work.shape.stride;
    for (int s = span.begin + 1; s < span.end; ++s) {
      fold_state(state, state + (s - span.begin) * floats, work.shape.value_width);
    }
    store_result(call, item, r, state);
  }
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
