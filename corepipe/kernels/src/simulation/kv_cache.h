// The KV blocks of simulated requests.  The native version of corepipe/scheduler/kv_cache.py and windowed_kv_cache.py.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "simulation/blocks.h"

namespace corepipe::sim {

// Limits of one replica; see corepipe/scheduler/config.py.  A window of 0 means no window.
struct Limits {
  int stages, blocks, block_size, most_running, batch_tokens, longest;
  bool prefix_cache;
  int64_t most_waiting, most_waiting_tokens;
  int most_cached;
  std::vector<int> windows;
  std::vector<double> draft_rates;  // by position: how often a draft and all before it are accepted; none: no drafts
  int draft_rows;                   // tokens of a batch up to which drafts are added
};

struct Segment {
  int64_t id;
  int tokens;
};

enum class Status { kWaiting, kRunning, kPreempted };

// A request whose tokens are counted, not known.  See corepipe/scheduler/request.py and
// simulation/simulated_request.py.
struct Request {
  int64_t number = 0;  // the caller's number of the request
  double arrival = 0.0;
  int64_t rank = 0;  // among requests that arrive at the same time
  int prompt = 0, most_tokens = 0;
  int64_t answer = 0;  // the id of its segment
  uint64_t draft_seed = 0;
  int tokens = 0, computed = 0, done = 0;
  int cached = 0, preemptions = 0;
  Status status = Status::kWaiting;
  bool batched = false, admitted = false;  // state in the batch that is being built
  std::vector<int> table;  // rows with a block per group, or kEmpty
  int room = 0;            // positions that fit in the table
  std::vector<Segment> segments;
  std::vector<std::pair<int64_t, uint32_t>> keys;  // of the full blocks within the prompt
  double scheduled_at = -1.0, first_at = -1.0, last_at = -1.0;

  bool generates() const { return computed == tokens - 1 && tokens > prompt; }
  bool in_flight() const { return computed > done; }
  int generated() const { return tokens - prompt; }
};

class KVCache {
 public:
  static constexpr int kEmpty = -1;

  KVCache(const Limits& limits, PrefixIndex* index, int replica);

  const BlockPool& pool() const { return pool_; }
  int64_t queries() const { return queries_; }
  int64_t hits() const { return hits_; }

  int blocks_for(int tokens) const;  // most blocks held while so many tokens are computed, batch after batch
  int missing(const Request& request, int tokens) const;
  int lacking(const Request& request) const;
  int cached_prefix(Request& request);  // tokens
  int take_prefix(Request& request);    // tokens
  void count_prefix(const Request& request, int hits);
  void grow(Request& request, int blocks);
  void commit(Request& request, int count);
  void release(Request& request);
  int full_rows(int tokens) const { return (tokens - 1) / size_; }  // full rows that leave a token to compute
  // The key of full block number `row` of the request, without its group.
  Key key(Request& request, int row) const;

 private:
  int rows(int tokens) const { return (tokens + size_ - 1) / size_; }
  int first_row(int window, int rows) const;
  int found(Request& request, int row, int group) const;
  int whole_rows(Request& request) const;
  int hole(Request& request, int rows) const;  // -1: none
  int prefix_rows(Request& request) const;
  void give_back(Request& request);

  int size_, chunk_, groups_;
  std::vector<int> windows_;
  bool windowed_ = false;
  bool finds_;
  BlockPool pool_;
  int64_t queries_ = 0, hits_ = 0;
};

}  // namespace corepipe::sim
