// Blocks of which a row sees a part: those around its own position, and at the far end of a window.
#pragma once

#include "attention/attention_tiles.inl"

namespace corepipe {
namespace COREPIPE_SIMD {

// The values of the kGrain keys around a bound of the visible span.  Those beyond the bound are 0 in a copy, which the
// block uses until `restore`.
template <class Cache>
class MaskedKeys {
 public:
  // Keys outside `seen` are hidden in the run that `bound` lies in, unless it begins there.
  void hide(KeyBlock& block, int bound, Span seen, int width) {
    if (bound % Cache::kGrain == 0) return;
    const int run = bound / Cache::kGrain * Cache::kGrain;
    place_ = block.values + run / Cache::kDepth;
    for (int s = 0; s < kSteps; ++s) {
      original_[s] = place_[s];
      const int key = run + s * Cache::kDepth;
      const uint32_t keep = (sees(seen, key) ? 0x0000ffffu : 0) | (sees(seen, key + 1) ? 0xffff0000u : 0);
      uint32_t* copy = copy_ + s * width;
      memcpy(copy, original_[s], (size_t)width * sizeof(uint32_t));
      for (int d = 0; d < width; ++d) copy[d] &= keep;
      place_[s] = (const char*)copy;
    }
  }

  void restore() {
    if (place_ == nullptr) return;
    for (int s = 0; s < kSteps; ++s) place_[s] = original_[s];
  }

 private:
  static bool sees(Span seen, int key) { return key >= seen.begin && key < seen.end; }

  static constexpr int kSteps = Cache::kGrain / Cache::kDepth;
  const char** place_ = nullptr;
  const char* original_[kSteps];
  alignas(64) uint32_t copy_[kSteps * kMaxHeadDim];
};

// The rows of one token at a block of which it sees a part: `rows` of the item's, from `row` on.
template <class Cache>
static void meet_edge(const Shape& shape, const typename Cache::Factor* q, float* state, int row, int rows,
                      KeyBlock& block, Span span, Ahead& ahead) {
  MaskedKeys<Cache> first, last;
  first.hide(block, span.begin, span, shape.value_width);
  last.hide(block, span.end, span, shape.value_width);
  Sight<Cache> sight;
  sight.all = span;
  for (int r = 0; r < Cache::kRows; ++r) sight.rows[r] = span;
  for_tiles<Cache>(rows, [&](int from, int n) {
    meet<Cache, false>(shape, q, state, row + from, n, block, sight, ahead);
  });
  last.restore();
  first.restore();
}

// All bits of each lane that holds an infinity or a NaN, otherwise none.
CP_INLINE i32x16 not_finite(i32x16 x, const uint16_t*) {
  const i32x16 high = broadcast_i32(0x7f800000), low = broadcast_i32(0x7f80);
  return ((x & high) == high) | ((x & low) == low);
}

CP_INLINE i32x16 not_finite(i32x16 x, const float*) {
  const i32x16 exponent = broadcast_i32(0x7f800000);
  return (x & exponent) == exponent;
}

// Are the values of steps [first, last) numbers?
template <class Cache>
static bool finite_values(const KeyBlock& block, int first, int last, int width) {
  i32x16 found = broadcast_i32(0);
  for (int s = first; s < last; ++s) {
    const int32_t* row = (const int32_t*)block.values[s];
    for (int d = 0; d < width; d += kLanes) {
      found = found | not_finite(load(row + d), (const typename Cache::Element*)nullptr);
    }
  }
  int32_t lanes[kLanes], any = 0;
  store(lanes, found);
  for (int i = 0; i < kLanes; ++i) any |= lanes[i];
  return any == 0;
}

// `tokens` consecutive tokens at a block of which each sees a part.
struct Edge {
  int position;  // of the first token
  int tokens, group;
  Reach reach;
  int start;  // of the block

  CP_INLINE Span sight(const Edge& e, int token) { return visible(e.position + token, e.reach, e.start); }
};

// May the tokens meet the block as it is?  Then a value that one of them does not see is multiplied by its
// probability of 0, which changes no bit of a sum if the value is a number, as all of int8 are: a sum is never -0.
template <class Cache>
static bool can_share(const Edge& edge, const KeyBlock& block, int width) {
  if (block.scaled) return true;
  const Span first = Edge::sight(edge, 0), last = Edge::sight(edge, edge.tokens - 1);
  constexpr int kSteps = Cache::kGrain / Cache::kDepth;
  const auto step_before = [](int key) { return key / Cache::kGrain * kSteps; };
  const auto step_after = [](int key) { return (key + Cache::kGrain - 1) / Cache::kGrain * kSteps; };
  const int begin = step_before(first.begin), end = step_after(last.end);
  if (last.begin >= first.end) return finite_values<Cache>(block, begin, end, width);
  return finite_values<Cache>(block, begin, step_after(last.begin), width) &&
         finite_values<Cache>(block, step_before(first.end), end, width);
}

template <class Cache>
static void meet_edges(const Shape& shape, const typename Cache::Factor* q, float* state, int row, const Edge& edge,
                       KeyBlock& block, Ahead& ahead) {
  if ((edge.tokens > 1 || Cache::kTiled || block.scaled) && can_share<Cache>(edge, block, shape.value_width)) {
    for_tiles<Cache>(edge.tokens * edge.group, [&](int from, int n) {
      Sight<Cache> sight;
      for (int r = 0; r < n; ++r) sight.rows[r] = Edge::sight(edge, (from + r) / edge.group);
      sight.all = {sight.rows[0].begin, sight.rows[n - 1].end};
      meet<Cache, false>(shape, q, state, row + from, n, block, sight, ahead);
    });
    return;
  }
  for (int t = 0; t < edge.tokens; ++t) {
    meet_edge<Cache>(shape, q, state, row + t * edge.group, edge.group, block, Edge::sight(edge, t), ahead);
  }
}

}  // namespace COREPIPE_SIMD
}  // namespace corepipe
