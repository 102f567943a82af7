#include "attention/latents.h"

#include <algorithm>
#include <cmath>

#include "executor/checked.h"
#include "executor/program.h"

namespace corepipe {

namespace {

constexpr int kRowsOfPart = 16;  // heads processed together: a tile of AMX; a block's values are transposed for them

// Heads that read the same keys together: the largest divisor, so that the other heads go to other threads.
int group_of(int heads) {
  int group = std::min(heads, kRowsOfPart);
  while (heads % group != 0) --group;
  return group;
}

float* floats_of(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

int latent_of(const LatentAttention& op) { return op.heads->front().key_up->n; }

}  // namespace

void Latents::run(const Run& run, const LatentAttention& op) {
  if (op.rows == 0) return;
  const size_t rows = op.rows, heads = op.heads->size(), latent = latent_of(op), key = latent + op.rotary;
  queries_.reserve(rows * heads * key * sizeof(float));
  keys_.reserve(rows * key * sizeof(float));
  found_.reserve(rows * heads * latent * sizeof(float));
  gather(run, op);
  multiply(run, op, true);
  AttentionCall call = op.call;
  call.q = floats_of(queries_), call.q_stride = heads * key;
  call.k = call.v = floats_of(keys_), call.k_stride = call.v_stride = key;
  call.out = floats_of(found_), call.out_stride = heads * latent;
  run.attention.run(run.kernels, run.pool, call);
  multiply(run, op, false);
}

// Keys, and the rotated parts of queries.
void Latents::gather(const Run& run, const LatentAttention& op) {
  const size_t heads = op.heads->size(), latent = latent_of(op), key = latent + op.rotary;
  float *const queries = floats_of(queries_), *const keys = floats_of(keys_);
  run.for_rows(op.rows, static_cast<int>(key + heads * op.rotary), [&](int r) noexcept {
    float* own = keys + r * key;
    std::copy_n(op.latent + r * op.latent_stride, latent, own);
    std::copy_n(op.key_rope + r * op.key_rope_stride, op.rotary, own + latent);
    const float* q = op.q + r * op.q_stride;
    for (size_t h = 0; h < heads; ++h) {
      std::copy_n(q + h * op.query, op.rotary, queries + (r * heads + h) * key + latent);
    }
  });
}

// Of all heads in one region.
void Latents::multiply(const Run& run, const LatentAttention& op, bool keys) {
  const int64_t heads = static_cast<int64_t>(op.heads->size()), latent = latent_of(op), key = latent + op.rotary;
  segments_.clear();
  segments_.reserve(heads);  // the Linears point into them
  linears_.clear();
  for (int64_t h = 0; h < heads; ++h) {
    const LatentHead& head = (*op.heads)[h];
    const Matrix* matrix = keys ? head.key_up : head.value_up;
    Linear linear{};
    linear.rows = op.rows, linear.k = matrix->k, linear.round_bf16 = op.round_bf16;
    linear.segments = segments_.data() + h, linear.segment_count = 1;
    if (keys) {
      linear.x = op.q + h * op.query + op.rotary, linear.x_stride = op.q_stride;
      segments_.push_back({matrix, nullptr, floats_of(queries_) + h * key, heads * key});
    } else {
      linear.x = floats_of(found_) + h * latent, linear.x_stride = heads * latent;
      segments_.push_back({matrix, nullptr, op.out + h * matrix->n, op.out_stride});
    }
    linears_.push_back(linear);
  }
  linears(run.kernels, run.pool, run.scratch, linears_);
}

void Program::latent_attention(int q_index, int latent_index, int key_rope_index, int out_index, const KVCache& cache,
                               int layer, std::vector<LatentHead> heads, float scale, int table) {
  const Value q = at(q_index), latent = at(latent_index), key_rope = at(key_rope_index);
  require(!heads.empty(), "there must be a head");
  const int count = static_cast<int>(heads.size()), value = heads[0].value_up->n, part = heads[0].key_up->k;
  for (const LatentHead& head : heads) {
    require(head.key_up->n == latent.width && head.key_up->k == part, "key_up must be [latent, part] of each head");
    require(head.value_up->k == latent.width && head.value_up->n == value, "value_up must be [value, latent]");
  }
  require(q.width == int64_t{count} * (key_rope.width + part), "a query is its rotated elements and a part");
  require(q.rows == Rows::tokens && latent.rows == Rows::tokens && key_rope.rows == Rows::tokens,
          "latents are of rows of tokens");
  require(cache.shared == latent.width && cache.head_dim == latent.width + key_rope.width,
          "the cache must hold latents and what is rotated");
  require(layer >= 0 && layer < cache.layers, "the cache has no layer " + std::to_string(layer));
  require(scale > 0 && std::isfinite(scale), "scale must be positive");
  use_table(table, cache.block_size, cache.blocks);
  const Value out = write(out_index, Rows::tokens, int64_t{count} * value);
  require(out.data != q.data && out.data != latent.data && out.data != key_rope.data, "attention can't work in place");

  LatentAttention op{};
  op.rotary = key_rope.width, op.query = key_rope.width + part, op.round_bf16 = round_bf16;
  op.q = q.data, op.q_stride = static_cast<int64_t>(q.stride);
  op.latent = latent.data, op.latent_stride = static_cast<int64_t>(latent.stride);
  op.key_rope = key_rope.data, op.key_rope_stride = static_cast<int64_t>(key_rope.stride);
  op.out = out.data, op.out_stride = static_cast<int64_t>(out.stride);
  op.call.group = group_of(count);
  op.call.kv_heads = count / op.call.group;
  op.call.head_dim = cache.head_dim, op.call.value_dim = latent.width;
  op.call.scale = scale, op.call.window = kNoWindow, op.call.round_bf16 = round_bf16;
  op.call.cache = cache.layer(layer);
  op.call.cache.head_stride = 0;  // all parts of the heads read the same keys
  append([op, table, heads = std::move(heads)](const Run& run) {
    LatentAttention now = op;
    now.heads = &heads;
    now.rows = run.batch.rows();
    now.call.positions = run.batch.positions.data();
    now.call.tables = run.batch.table(table);
    now.call.table_width = run.batch.table_width;
    run.latents.run(run, now);
  });
}

}  // namespace corepipe
