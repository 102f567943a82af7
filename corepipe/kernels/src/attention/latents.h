// Attention over latents, one a token for all heads (DeepSeek-V2, 2024, section 2.1).
#pragma once

#include <vector>

#include "attention/attention_table.h"
#include "linear/linear.h"
#include "linear/matrix.h"

namespace corepipe {

struct Run;

// The matrices of a head: from the part of its queries that is not rotated to latents [latent, part], and from the
// attention over latents to its values [value, latent].
struct LatentHead {
  const Matrix *key_up, *value_up;
};

// The queries of each head are key_up @ q; the attention runs over the latents; value_up makes the head's result of it.
// A key is a latent, then the rotated elements that all heads share; a head's query its rotated elements, then others.
struct LatentAttention {
  const std::vector<LatentHead>* heads;
  int rotary;  // elements
  int query;   // elements of a head's query
  bool round_bf16;
  int rows;
  const float* q;  // [rows][heads * query]
  int64_t q_stride;
  const float* latent;  // [rows][latent]
  int64_t latent_stride;
  const float* key_rope;  // [rows][rotary]
  int64_t key_rope_stride;
  float* out;  // [rows][heads * value]
  int64_t out_stride;
  AttentionCall call;  // but for q, k, v and out
};

// The attentions over latents of one pool, with their working memory.  It grows outside of regions alone.
class Latents {
 public:
  // Throws as `linear` does.
  void run(const Run& run, const LatentAttention& op);

 private:
  void gather(const Run& run, const LatentAttention& op);
  void multiply(const Run& run, const LatentAttention& op, bool keys);

  Buffer queries_, keys_, found_;
  std::vector<Segment> segments_;
  std::vector<Linear> linears_;
};

}  // namespace corepipe
