#include "executor/program.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "executor/checked.h"

namespace corepipe {

namespace {

constexpr int kUnlimited = std::numeric_limits<int>::max();

Rotation rotation_at(const RopeTable& table) { return {table.cos, table.sin, table.half}; }

Norm norm_of(const NormSpec& spec) { return {spec.kind, spec.gain.data, spec.bias.data, spec.eps}; }

// The norm of `width` elements.
Norm norm_over(const NormSpec& spec, int width) {
  const auto fits = [width](const Vector& v) { return v.data == nullptr || v.size == width; };
  require(fits(spec.gain) && fits(spec.bias), "a norm's gain and bias must be as wide as what it is over");
  require(spec.kind != NormKind::rms || spec.gain.data != nullptr, "an RMS norm needs a gain");
  return norm_of(spec);
}

// A row from outside, rounded if the Program rounds.
void copy_row(const RowTable& rows, const float* from, float* to, int width, bool round) {
  if (round) return rows.round(from, to, width);
  std::memcpy(to, from, width * sizeof(float));
}

}  // namespace

Program::Program(std::vector<int> widths, int rows, bool round)
    : max_rows(rows),
      round_bf16(round),
      token_limit(kUnlimited),
      position_limit(kUnlimited),
      type_limit(kUnlimited),
      block_limits{kUnlimited} {
  require(rows >= 1, "max_rows must be at least 1");
  size_t floats = 0;
  for (int width : widths) {
    require(width >= 1, "widths must be at least 1");
    const size_t stride = (static_cast<size_t>(width) + 15) / 16 * 16;
    values_.push_back({nullptr, width, stride, Rows::tokens});
    floats = checked_sum("a program's memory", floats, checked_product("a program's memory", {stride, size_t(rows)}));
  }
  arena_ = std::make_unique<Arena>(checked_product("a program's memory", {floats, sizeof(float)}), true);
  float* next = reinterpret_cast<float*>(arena_->data());
  for (Value& value : values_) {
    value.data = next;
    next += value.stride * rows;
  }
}

const Value& Program::value(int index) const {
  require(index >= 0 && index < values(), "no value " + std::to_string(index) + " in this program");
  return values_[index];
}

Value& Program::at(int index) { return const_cast<Value&>(value(index)); }

// The value as an output of `width` elements a row.
Value& Program::write(int index, Rows rows, int64_t width) {
  Value& out = at(index);
  require(out.width == width, "value " + std::to_string(index) + " is " + std::to_string(out.width) +
                                  " wide, the result " + std::to_string(width));
  out.rows = rows;
  return out;
}

Step& Program::append(std::function<void(const Run&)> run) {
  require(!frozen_, "the program belongs to an Executor: no Op can be added");
  steps_.emplace_back();
  steps_.back().run = std::move(run);
  return steps_.back();
}

Step& Program::append_exchange(Step::Kind kind, const Value& x, const Value& out) {
  Step& step = append(nullptr);
  step.kind = kind, step.x = x, step.out = out;
  return step;
}

// An Op whose rows each depend only on the same row of its operands: body(run, row).
template <class Body>
void Program::append_rows(Rows rows, int width, Body body) {
  static_assert(std::is_nothrow_invocable_v<Body&, const Run&, int>, "a region can't throw: declare its body noexcept");
  Step& step = append([=](const Run& run) {
    run.for_rows(run.rows(rows), width, [&](int r) noexcept { body(run, r); });
  });
  if (rows != Rows::tokens) return;
  step.reserve_rows = [](const Run&, int) {};
  step.run_rows = [=](const Run& run, const RowRange& range) {
    for (int r = range.first; r < range.first + range.rows; ++r) body(run, r);
  };
}

void Program::embed(int out_index, const StoredTable& table) {
  const Value out = write(out_index, Rows::tokens, table.width);
  token_limit = std::min(token_limit, table.rows);
  append([=, round = round_bf16](const Run& run) {
    const RowTable& rows = run.kernels.rows;
    run.for_rows(run.batch.rows(), table.width, [&](int r) noexcept {
      const void* stored = table.row(run.batch.tokens[r]);
      if (table.is_bf16) {
        rows.widen(static_cast<const uint16_t*>(stored), out.row(r), table.width);
      } else {
        copy_row(rows, static_cast<const float*>(stored), out.row(r), table.width, round);
      }
    });
  });
}

void Program::patches(int out_index) {
  const Value out = write(out_index, Rows::tokens, at(out_index).width);
  require(patch_width == 0 || patch_width == out.width, "patches have one width");
  patch_width = out.width;
  append_rows(Rows::tokens, out.width, [=, round = round_bf16](const Run& run, int r) noexcept {
    const float* patch = run.batch.patches.data() + static_cast<size_t>(r) * out.width;
    copy_row(run.kernels.rows, patch, out.row(r), out.width, round);
  });
}

void Program::first_rows(int out_index, Vector rows) {
  const Value out = at(out_index);
  require(out.rows == Rows::tokens, "only rows of tokens have positions");
  require(rows.size >= 1 && rows.size % out.width == 0, "the first rows must be as wide as the others");
  const int count = rows.size / out.width;
  append_rows(Rows::tokens, out.width, [=, round = round_bf16](const Run& run, int r) noexcept {
    const int position = run.batch.positions[r];
    if (position >= count) return;
    const float* row = rows.data + static_cast<size_t>(position) * out.width;
    copy_row(run.kernels.rows, row, out.row(r), out.width, round);
  });
}

void Program::add_embedding(int x_index, int out_index, const StoredTable& table, RowIndex by, int offset) {
  const Value x = at(x_index);
  require(x.rows == Rows::tokens, "only rows of tokens have positions and types");
  require(x.width == table.width, "the table must be as wide as x");
  require(offset >= 0 && offset < table.rows, "the offset lies beyond the table");
  const bool typed = by == RowIndex::type;
  int& limit = typed ? type_limit : position_limit;
  limit = std::min(limit, table.rows - offset);
  reads_types = reads_types || typed;
  const Value out = write(out_index, x.rows, x.width);
  append_rows(x.rows, x.width, [=, round = round_bf16](const Run& run, int r) noexcept {
    const int32_t index = typed ? run.batch.types[r] : run.batch.positions[r];
    const void* stored = table.row(static_cast<size_t>(index) + offset);
    run.kernels.rows.add_stored(x.row(r), stored, table.is_bf16, out.row(r), x.width, round);
  });
}

void Program::norm(int x_index, int out_index, const NormSpec& spec, int groups) {
  const Value x = at(x_index);
  const bool grouped = spec.gain.data != nullptr;  // it runs over each part as wide as its gain
  require(!grouped || (spec.gain.size >= 1 && x.width % spec.gain.size == 0), "the gain must divide the value's width");
  const int gain = grouped ? spec.gain.size : x.width;
  const Norm norm = norm_over(spec, gain);
  require(groups == 1 || (grouped && groups >= 1 && gain % groups == 0), "groups of a gain must be equal");
  const int width = gain / groups;
  const Value out = write(out_index, x.rows, x.width);
  append_rows(x.rows, x.width, [=, round = round_bf16](const Run& run, int r) noexcept {
    Norm own = norm;
    for (int i = 0; i < x.width; i += width) {
      if (grouped) own.gain = norm.gain + i % gain;
      if (norm.bias != nullptr) own.bias = norm.bias + i % gain;
      run.kernels.rows.norm(own, x.row(r) + i, width, round, out.row(r) + i);
    }
  });
}

// Checks the arguments of `linear`: the segments and the added values must fit x.
Value Program::addend(int index, const Value& x, int width) {
  if (index < 0) return {};
  const Value value = at(index);
  require(value.rows == x.rows, "x and the residual differ in rows");
  require(value.width == width, "the residual must be as wide as the result");
  return value;
}

std::vector<Segment> Program::segments_of(const Value& x, const std::vector<LinearSegment>& specs, bool glu) {
  require(!specs.empty(), "a linear needs a segment");
  require(!glu || (specs.size() == 2 && specs[0].matrix->n == specs[1].matrix->n), "glu takes two equal segments");
  std::vector<Segment> segments;
  for (const LinearSegment& spec : specs) {
    require(spec.matrix->k == x.width, "x is " + std::to_string(x.width) + " wide, the matrix takes " +
                                           std::to_string(spec.matrix->k));
    require(spec.bias.data == nullptr || spec.bias.size == spec.matrix->n, "the bias must have n elements");
    const bool unused = glu && !segments.empty();  // of glu's two outputs only the first is written
    const Value out = unused ? Value{} : write(spec.out, x.rows, spec.matrix->n);
    require(out.data != x.data, "a linear can't work in place");
    segments.push_back({spec.matrix, spec.bias.data, out.data, static_cast<int64_t>(out.stride)});
  }
  return segments;
}

void Program::linear(int x_index, const std::vector<LinearSegment>& specs, const LinearSurroundings& around) {
  const Value x = at(x_index);
  const Norm norm = norm_over(around.norm, x.width);
  require(around.residual < 0 || (specs.size() == 1 && !around.glu), "a residual goes with one segment and no glu");
  require(around.outer < 0 || around.residual >= 0, "an outer residual goes with a residual");
  require(around.function == Function::none || (around.residual < 0 && around.factor == 1.0f),
          "a function goes without a factor and a residual");
  require(!specs.empty(), "a linear needs a segment");
  const Value base = addend(around.residual, x, specs[0].matrix->n), outer = addend(around.outer, x, specs[0].matrix->n);
  const std::vector<Segment> segments = segments_of(x, specs, around.glu);
  const Function function = around.function;
  const float factor = around.factor;
  const bool glu = around.glu;
  const int first_number = static_cast<int>(linear_shapes_.size());
  for (const LinearSegment& spec : specs) linear_shapes_.emplace_back(spec.matrix->n, spec.matrix->k);
  const int* core = &number_;  // known when the Program belongs to an Executor
  const auto linear_of = [=, round = round_bf16](const Run& run) {
    Linear op{};
    op.x = x.data;
    op.x_stride = static_cast<int64_t>(x.stride);
    op.rows = run.rows(x.rows);
    op.k = x.width;
    op.segments = segments.data();
    op.segment_count = static_cast<int>(segments.size());
    op.norm = norm;
    op.function = function;
    op.factor = factor;
    op.residual = base.data;
    op.residual_stride = static_cast<int64_t>(base.stride);
    op.outer = outer.data;
    op.outer_stride = static_cast<int64_t>(outer.stride);
    op.glu = glu;
    op.round_bf16 = round;
    op.adapted = run.adapted(x.rows);
    op.core = *core;
    op.first_number = first_number;
    return op;
  };
  Step& step = append([=](const Run& run) { corepipe::linear(run.kernels, run.pool, run.scratch, linear_of(run)); });
  if (x.rows != Rows::tokens) return;
  step.reserve_rows = [=](const Run& run, int rows) {
    corepipe::reserve_rows(run.kernels, run.scratch, linear_of(run), rows);
  };
  step.run_rows = [=](const Run& run, const RowRange& range) {
    linear_rows(run.kernels, run.scratch, linear_of(run), range.first, range.rows, range.thread);
  };
}

void Program::limit_positions(const RopeTable& table, int head_dim) {
  if (table.cos == nullptr) return;
  require(table.half >= 1 && 2 * table.half <= head_dim, "the rotation is wider than the head");
  require(table.positions >= 1, "the rotation's tables are empty");
  position_limit = std::min(position_limit, table.positions);
}

void Program::rope(int x_index, int out_index, int head_dim, RopeTable table) {
  const Value x = at(x_index);
  require(head_dim >= 1 && x.width % head_dim == 0, "head_dim must divide the value's width");
  require(x.rows == Rows::tokens, "only rows of tokens have positions");
  limit_positions(table, head_dim);
  const Value out = write(out_index, x.rows, x.width);
  append_rows(x.rows, x.width, [=, round = round_bf16](const Run& run, int r) noexcept {
    const size_t at = static_cast<size_t>(run.batch.positions[r]) * table.half;
    for (int i = 0; i < x.width; i += head_dim) {
      run.kernels.rows.rope(x.row(r) + i, out.row(r) + i, head_dim, table.cos + at, table.sin + at, table.half, round);
    }
  });
}

void Program::use_table(int table, int size_of_block, int blocks) {
  require(table >= 0, "table counts from 0");
  require(block_size == 0 || block_size == size_of_block, "the caches of a program differ in block_size");
  block_size = size_of_block;
  if (block_limits.size() <= static_cast<size_t>(table)) block_limits.resize(table + 1, kUnlimited);
  block_limits[table] = std::min(block_limits[table], blocks);
}

// The place of an attention's keys and values: a layer of the cache, or memory of the present batch.
KVLayer Program::memory_of(const Value& q, const Value& k, const KVCache* cache, int layer, int heads, int table) {
  require(heads >= 1 && q.width % heads == 0, "q must be heads * head_dim wide");
  const int d = q.width / heads;
  if (cache == nullptr) {
    require(d <= kMaxHeadDim, "head_dim must be 1 .. " + std::to_string(kMaxHeadDim));
    require(k.width % d == 0 && heads % (k.width / d) == 0, "heads must be a multiple of k's");
    whole_sequences = true;
    return layer_of(d, !round_bf16);
  }
  require(heads % cache->kv_heads == 0, "heads must be a multiple of the cache's kv_heads");
  require(d == cache->head_dim && cache->shared == 0, "q must be heads * head_dim wide, of what is no latent");
  require(k.width == int64_t{cache->kv_heads} * d, "k and v must be kv_heads * head_dim wide");
  require(layer >= 0 && layer < cache->layers, "the cache has no layer " + std::to_string(layer));
  use_table(table, cache->block_size, cache->blocks);
  return cache->layer(layer);
}

void Program::attention(int q_index, int k_index, int v_index, int out_index, const KVCache* cache, int layer,
                        int heads, const AttentionOptions& options) {
  const Value q = at(q_index), k = at(k_index), v = at(v_index);
  const KVLayer memory = memory_of(q, k, cache, layer, heads, options.table);
  const int d = q.width / heads;
  require(v.width == k.width, "k and v must be kv_heads * head_dim wide");
  require(k.rows == Rows::tokens && v.rows == Rows::tokens, "keys and values are of rows of tokens");
  require(options.window >= 1, "window must be at least 1");
  require(!options.chunked || (options.causal && options.window != kNoWindow),
          "chunks are of what is causal, as long as a window");
  require(options.scale > 0 && std::isfinite(options.scale), "scale must be positive");
  require(options.softcap >= 0 && std::isfinite(options.softcap), "softcap must be positive");
  require(options.slopes.data == nullptr || options.slopes.size == heads, "there must be a slope for each head");
  require(options.causal == (cache != nullptr), "what is causal has a cache, and nothing else");
  require(options.causal || options.slopes.data == nullptr, "slopes are of what is causal");
  require(options.sinks.data == nullptr || options.sinks.size == heads, "there must be a sink for each head");
  const int reach = (options.biases.size / heads - 1) / 2;
  if (options.biases.data != nullptr) {
    require(!options.causal && options.biases.size == heads * (2 * reach + 1) && reach > kKeyBlock,
            "biases are of what is not causal, of each head by distances to both sides");
    position_limit = std::min(position_limit, reach - kKeyBlock + 1);
  }
  limit_positions(options.rope, d);
  if (options.tempers.data != nullptr) position_limit = std::min(position_limit, options.tempers.size);
  const Value out = write(out_index, q.rows, q.width);
  require(out.data != k.data && out.data != v.data && out.data != q.data, "attention can't work in place");

  AttentionCall call{};
  call.q = q.data, call.k = k.data, call.v = v.data, call.out = out.data;
  call.q_stride = q.stride, call.k_stride = k.stride, call.v_stride = v.stride, call.out_stride = out.stride;
  call.wanted = q.rows == Rows::logits;
  call.kv_heads = k.width / d;
  call.group = heads / call.kv_heads;
  call.head_dim = call.value_dim = d;
  call.scale = options.scale;
  call.window = options.window, call.chunked = options.chunked;
  if (!options.causal) {
    call.keeps = false;
    call.ahead = options.window == kNoWindow ? kNoWindow : options.window / 2;
    call.window = options.window == kNoWindow ? kNoWindow : options.window / 2 + 1;
  }
  call.softcap = options.softcap;
  call.slopes = options.slopes.data;
  call.biases = options.biases.data;
  call.reach = reach;
  call.sinks = options.sinks.data;
  call.rotation = rotation_at(options.rope);
  call.q_norm = norm_over(options.q_norm, d);
  call.k_norm = norm_over(options.k_norm, d);
  call.head_norm = norm_over(options.head_norm, d);
  call.tempers = options.tempers.data;
  call.round_bf16 = round_bf16;
  call.cache = memory;
  const auto call_of = [call, table = options.table](const Run& run) {
    AttentionCall now = call;
    now.positions = run.batch.positions.data();
    now.tables = run.batch.table(table);
    now.table_width = run.batch.table_width;
    return now;
  };
  Step& step = append([call_of](const Run& run) { run.attention.run(run.kernels, run.pool, call_of(run)); });
  if (call.keeps || call.wanted) return;
  step.whole_sequences = true;
  step.reserve_rows = [call_of](const Run& run, int) {
    run.attention.reserve(run.kernels, run.pool.size(), call_of(run));
  };
  step.run_rows = [call_of](const Run& run, const RowRange& range) {
    run.attention.run_sequences(run.kernels, call_of(run), range.first, range.rows, range.thread);
  };
}

void Program::activate(Function function, int x_index, int out_index) {
  const Value x = at(x_index);
  const Value out = write(out_index, x.rows, x.width);
  append_rows(x.rows, x.width, [=, round = round_bf16](const Run& run, int r) noexcept {
    run.kernels.rows.activate(function, x.row(r), out.row(r), x.width, round);
  });
}

void Program::glu(Function function, int gate_index, int up_index, int out_index) {
  const Value gate = at(gate_index), up = at(up_index);
  require(gate.width == up.width && gate.rows == up.rows, "gate and up differ in shape");
  const Value out = write(out_index, gate.rows, gate.width);
  append_rows(gate.rows, gate.width, [=, round = round_bf16](const Run& run, int r) noexcept {
    run.kernels.rows.glu(function, gate.row(r), up.row(r), out.row(r), gate.width, round);
  });
}

void Program::clamp(int x_index, float limit, int out_index) {
  const Value x = at(x_index);
  require(limit > 0, "limit must be positive");
  const Value out = write(out_index, x.rows, x.width);
  append_rows(x.rows, x.width, [=, round = round_bf16](const Run& run, int r) noexcept {
    const float* from = x.row(r);
    float* to = out.row(r);
    for (int i = 0; i < x.width; ++i) to[i] = from[i] < -limit ? -limit : from[i] > limit ? limit : from[i];
    if (round) run.kernels.rows.round(to, to, x.width);
  });
}

void Program::scale(int x_index, float factor, int by_index, int out_index) {
  const Value x = at(x_index);
  const Value by = by_index < 0 ? Value{} : at(by_index);
  require(by_index < 0 || (by.width == 1 && by.rows == x.rows), "there must be one factor for each row");
  const Value out = write(out_index, x.rows, x.width);
  append_rows(x.rows, x.width, [=, round = round_bf16](const Run& run, int r) noexcept {
    const float own = by.data == nullptr ? factor : factor * *by.row(r);
    run.kernels.rows.scale(x.row(r), own, out.row(r), x.width, round);
  });
}

void Program::add(int a_index, int b_index, int out_index) {
  const Value a = at(a_index), b = at(b_index);
  require(a.width == b.width && a.rows == b.rows, "the operands differ in shape");
  const Value out = write(out_index, a.rows, a.width);
  append_rows(a.rows, a.width, [=, round = round_bf16](const Run& run, int r) noexcept {
    run.kernels.rows.add(a.row(r), b.row(r), out.row(r), a.width, round);
  });
}

void Program::select_rows(int x_index, int out_index) {
  const Value x = at(x_index);
  require(x.rows == Rows::tokens, "the rows have been selected before");
  const Value out = write(out_index, Rows::logits, x.width);
  append([=](const Run& run) {
    // Ascending rows, so x and out may be one.
    for (int r = 0; r < run.batch.logits(); ++r) {
      std::memmove(out.row(r), x.row(run.batch.logit_rows[r]), x.width * sizeof(float));
    }
  });
}

void Program::pool(Pooling pooling, int x_index, int out_index) {
  const Value x = at(x_index);
  require(x.rows == Rows::tokens, "the rows have been selected before");
  const Value out = write(out_index, Rows::logits, x.width);
  require(out.data != x.data, "pooling can't work in place");
  one_logit_row = true;
  append([=, round = round_bf16](const Run& run) {
    const std::vector<int32_t>& starts = run.batch.starts;
    const int width = x.width * (run.batch.rows() / run.batch.sequences());
    run.for_rows(run.batch.sequences(), width, [&](int s) noexcept {
      const int rows = starts[s + 1] - starts[s];
      run.kernels.rows.pool(pooling, x.row(starts[s]), x.stride, rows, out.row(s), x.width, round);
    });
  });
}

void Program::all_reduce(int x_index, int out_index, std::vector<int> group) {
  const Value x = at(x_index);
  const Value out = write(out_index, x.rows, x.width);
  Step& step = append_exchange(Step::Kind::all_reduce, x, out);
  step.group = std::move(group);
}

void Program::all_gather(int x_index, int out_index, std::vector<int> group, std::vector<int> widths) {
  const Value x = at(x_index);
  require(group.size() == widths.size(), "all_gather takes a width for each of its group");
  int64_t total = 0;
  for (int width : widths) {
    require(width >= 0, "widths must be at least 0");
    total += width;
  }
  const Value out = write(out_index, x.rows, total);
  require(out.data != x.data, "all_gather can't work in place");
  Step& step = append_exchange(Step::Kind::all_gather, x, out);
  step.group = std::move(group), step.widths = std::move(widths);
}

void Program::send(int x_index, int peer, Rows rows) {
  require(at(x_index).rows == rows, "send: the value holds other rows");
  append_exchange(Step::Kind::send, at(x_index), {}).peer = peer;
}

void Program::receive(int out_index, int peer, Rows rows) {
  append_exchange(Step::Kind::receive, {}, write(out_index, rows, at(out_index).width)).peer = peer;
}

}  // namespace corepipe
