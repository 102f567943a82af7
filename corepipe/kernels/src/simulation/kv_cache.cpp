#include "simulation/kv_cache.h"

#include <algorithm>

namespace corepipe::sim {

namespace {

int divided(int a, int b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }  // rounded down

// The keys of the full blocks within the prompt.
void add_prompt_keys(Request& request, int size) {
  int64_t start = 0, end = size;
  for (const Segment& segment : request.segments) {
    const int64_t behind = start + segment.tokens;
    for (; end <= behind; end += size) request.keys.emplace_back(segment.id, static_cast<uint32_t>(end - start));
    start = behind;
  }
}

}  // namespace

KVCache::KVCache(const Limits& limits, PrefixIndex* index, int replica)
    : size_(limits.block_size),
      chunk_(limits.batch_tokens),
      groups_(static_cast<int>(limits.windows.size())),
      windows_(limits.windows),
      finds_(limits.prefix_cache),
      pool_(limits.blocks, limits.most_cached, index, replica) {
  for (const int window : windows_) windowed_ |= window > 0;
}

int KVCache::blocks_for(int tokens) const {
  const int all = rows(tokens);
  int sum = 0;
  for (const int window : windows_) {
    const int most = (window - 1 + size_ - 1) / size_ + (chunk_ + size_ - 2) / size_ + 1;
    sum += window > 0 ? std::min(all, most) : all;
  }
  return sum;
}

int KVCache::missing(const Request& request, int tokens) const {
  return std::max(0, rows(tokens) * groups_ - static_cast<int>(request.table.size()));
}

int KVCache::lacking(const Request& request) const {
  int held = static_cast<int>(request.table.size());
  if (windowed_) held -= static_cast<int>(std::count(request.table.begin(), request.table.end(), kEmpty));
  return std::max(0, blocks_for(request.tokens) - held);
}

Key KVCache::key(Request& request, int row) const {
  if (request.keys.empty()) add_prompt_keys(request, size_);
  if (row < static_cast<int>(request.keys.size())) return {request.keys[row].first, request.keys[row].second, 0};
  return {request.answer, static_cast<uint32_t>((row + 1) * size_ - request.prompt), 0};
}

int KVCache::found(Request& request, int row, int group) const {
  Key wanted = key(request, row);
  wanted.group = group;
  return pool_.find(wanted);
}

// Leading rows with a block in every group without a window; at least one token is left to compute.
int KVCache::whole_rows(Request& request) const {
  const int most = full_rows(request.tokens);
  for (int row = 0; row < most; ++row) {
    for (int group = 0; group < groups_; ++group) {
      if (windows_[group] == 0 && found(request, row, group) < 0) return row;
    }
  }
  return most;
}

int KVCache::first_row(int window, int rows) const {
  return std::max(0, divided(rows * size_ - window + 1, size_));
}

int KVCache::hole(Request& request, int rows) const {
  for (int group = 0; group < groups_; ++group) {
    if (windows_[group] == 0) continue;
    for (int row = rows - 1; row >= first_row(windows_[group], rows); --row) {
      if (found(request, row, group) < 0) return row;
    }
  }
  return -1;
}

int KVCache::prefix_rows(Request& request) const {
  if (!finds_) return 0;
  int rows = whole_rows(request);
  for (int lacks; (lacks = hole(request, rows)) >= 0;) rows = lacks;
  return rows;
}

int KVCache::cached_prefix(Request& request) { return prefix_rows(request) * size_; }

int KVCache::take_prefix(Request& request) {
  const int rows = prefix_rows(request);
  for (int row = 0; row < rows; ++row) {
    for (int group = 0; group < groups_; ++group) {
      const bool behind = windows_[group] > 0 && row < first_row(windows_[group], rows);
      const int block = behind ? kEmpty : found(request, row, group);
      request.table.push_back(block);
      if (block != kEmpty) pool_.share(block);
    }
  }
  return request.room = rows * size_;
}

void KVCache::count_prefix(const Request& request, int hits) {
  if (!finds_) return;
  queries_ += request.tokens;
  hits_ += hits;
}

void KVCache::grow(Request& request, int blocks) {
  pool_.allocate(blocks, request.table);
  request.room += blocks / groups_ * size_;
}

void KVCache::commit(Request& request, int count) {
  if (finds_) {
    for (int row = (request.done - count) / size_; row < request.done / size_; ++row) {
      Key known = key(request, row);
      for (int group = 0; group < groups_; ++group) {
        known.group = group;
        pool_.publish(request.table[row * groups_ + group], known);
      }
    }
  }
  if (windowed_) give_back(request);
}

// Frees blocks outside of all windows, in such an order that the oldest is evicted first.
void KVCache::give_back(Request& request) {
  std::vector<int> behind;
  for (int group = 0; group < groups_; ++group) {
    if (windows_[group] == 0) continue;
    int place = (divided(request.done - windows_[group] + 1, size_) - 1) * groups_ + group;
    for (; place >= 0 && request.table[place] != kEmpty; place -= groups_) behind.push_back(place);
  }
  std::sort(behind.begin(), behind.end());
  for (const int place : behind) {
    pool_.release(request.table[place]);
    request.table[place] = kEmpty;
  }
}

void KVCache::release(Request& request) {
  for (auto block = request.table.rbegin(); block != request.table.rend(); ++block) {
    if (*block != kEmpty) pool_.release(*block);
  }
  request.table.clear();
  request.room = 0;
}

}  // namespace corepipe::sim
