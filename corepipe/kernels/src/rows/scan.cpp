#include "rows/scan.h"

#include <cmath>

#include "executor/checked.h"
#include "executor/program.h"

namespace corepipe {

namespace {

constexpr size_t kHugeBlock = size_t{2} << 20;  // smaller ones would make a cache that is little used resident
constexpr int kMostTaps = 64;
constexpr int kChannelsOfItem = 256;

size_t bytes_of(int blocks, int block_size, size_t elements) {
  require(blocks >= 1 && block_size >= 1 && elements >= 1, "a cache needs blocks, positions and elements");
  return checked_product("a cache", {size_t(blocks), elements, sizeof(float)});
}

// Rows of a sequence, and its state: `from` is null at the start of the sequence.
struct SequenceRows {
  int first, rows;
  const float* from;
  float* to;
};

SequenceRows rows_of(const Batch& batch, int sequence, const StatePart& part) {
  const int first = batch.starts[sequence], rows = batch.starts[sequence + 1] - first;
  const int begin = batch.positions[first], size = part.cache->block_size;
  const int32_t* table = batch.table(part.cache->table) + static_cast<size_t>(sequence) * batch.table_width;
  float* to = part.cache->block(table[(begin + rows - 1) / size]) + part.offset;
  const float* from = begin == 0 ? nullptr : part.cache->block(table[(begin - 1) / size]) + part.offset;
  return {first, rows, from, to};
}

}  // namespace

StateCache::StateCache(int block_count, int size_of_block, size_t count, int table_of_blocks)
    : blocks(block_count),
      block_size(size_of_block),
      table(table_of_blocks),
      elements(count),
      arena_(bytes_of(blocks, block_size, elements), elements * sizeof(float) >= kHugeBlock) {}

void Program::keep(const StatePart& part, size_t elements) {
  require(part.cache != nullptr, "what is recurrent has a cache");
  require(part.offset <= part.cache->elements && elements <= part.cache->elements - part.offset,
          "a state ends beyond the cache's elements");
  use_table(part.cache->table, part.cache->block_size, part.cache->blocks);
}

void Program::convolve(int x_index, int out_index, Vector weights, Vector bias, Function function, StatePart part) {
  const Value x = at(x_index);
  require(x.rows == Rows::tokens, "only rows of tokens follow one another");
  require(weights.size >= 1 && weights.size % x.width == 0, "there must be a weight for each tap and channel");
  const int taps = weights.size / x.width;
  require(taps <= kMostTaps, "a convolution has at most " + std::to_string(kMostTaps) + " taps");
  require(bias.data == nullptr || bias.size == x.width, "there must be a bias for each channel");
  keep(part, static_cast<size_t>(taps - 1) * x.width);
  const Value out = write(out_index, x.rows, x.width);
  require(out.data != x.data, "a convolution can't work in place");
  append([=, round = round_bf16](const Run& run) {
    const int parts = (x.width + kChannelsOfItem - 1) / kChannelsOfItem;
    run.pool.parallel(run.batch.sequences() * parts, [&](int item, int) noexcept {
      const SequenceRows own = rows_of(run.batch, item / parts, part);
      const int first = item % parts * kChannelsOfItem;
      const Convolution op{own.rows, taps,     x.width,   x.row(own.first), x.stride,   weights.data, bias.data,
                           function,  own.from, own.to, out.row(own.first), out.stride, round};
      run.kernels.scan.convolve(op, first, std::min(kChannelsOfItem, x.width - first));
    });
  });
}

void Program::scan(const ScanValues& values, int out_index, const ScanOptions& options, StatePart part) {
  const Value x = at(values.x), b = at(values.b), c = at(values.c), dt = at(values.dt);
  const int heads = dt.width, states = options.states;
  for (const Value& value : {x, b, c, dt}) require(value.rows == Rows::tokens, "only rows of tokens follow one another");
  require(x.width % heads == 0, "x must be heads * head_dim wide");
  require(states >= 1 && b.width % states == 0 && b.width == c.width, "b and c must be groups * states wide");
  require(heads % (b.width / states) == 0, "heads must be a multiple of the groups");
  for (const Vector& vector : {options.rates, options.dt_bias, options.skip}) {
    require(vector.size == heads, "there must be a rate, a bias and a factor for each head");
  }
  require(options.dt_least >= 0 && options.dt_most >= options.dt_least, "steps are of at least 0, and no more than the most");
  const int head_dim = x.width / heads;
  require(head_dim % kScanLanes == 0, "head_dim must be a multiple of " + std::to_string(kScanLanes));
  keep(part, static_cast<size_t>(x.width) * states);
  const Value out = write(out_index, x.rows, x.width);
  for (const Value& value : {x, b, c, dt}) require(out.data != value.data, "a scan can't work in place");
  Scan op{};
  op.head_dim = head_dim, op.states = states, op.heads_of_group = heads / (b.width / states);
  op.x_stride = x.stride, op.b_stride = b.stride, op.c_stride = c.stride, op.dt_stride = dt.stride;
  op.out_stride = out.stride;
  op.rates = options.rates.data, op.dt_bias = options.dt_bias.data, op.skip = options.skip.data;
  op.dt_least = options.dt_least, op.dt_most = options.dt_most;
  op.round = round_bf16;
  append([=](const Run& run) {
    run.pool.parallel(run.batch.sequences() * heads, [&](int item, int) noexcept {
      const SequenceRows own = rows_of(run.batch, item / heads, part);
      Scan now = op;
      now.tokens = own.rows, now.from = own.from, now.to = own.to;
      now.x = x.row(own.first), now.b = b.row(own.first), now.c = c.row(own.first), now.dt = dt.row(own.first);
      now.out = out.row(own.first);
      run.kernels.scan.scan(now, item % heads);
    });
  });
}

}  // namespace corepipe
