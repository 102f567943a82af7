// The distribution of a pipeline's requests over batches.  The native version of `Sharing` in
// corepipe/scheduler/next_batch.py.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "simulation/kv_cache.h"

namespace corepipe::sim {

using Turn = std::tuple<bool, double, int64_t>;  // in the queue: smaller ones come first
using Queue = std::map<Turn, Request*>;

// The best numbers of batches; see `Pipeline` in next_batch.py.
struct Rounds {
  std::function<int(int64_t sequences, int64_t tokens)> generating;
  std::function<int(int64_t sequences, int64_t tokens, int64_t prompt)> with_prompts;
};

// The limits of the next batch; see `BatchShare` in next_batch.py.
struct Share {
  int seats, kept;
  bool prompts_only;
};

class Sharing {
 public:
  // The other arguments are those of one scheduler, and are read at each call.
  Sharing(const Limits& limits, const std::vector<Request*>& running, const Queue& queue, const KVCache& kv,
          Rounds rounds)
      : limits_(limits), running_(running), queue_(queue), kv_(kv), rounds_(std::move(rounds)) {}

  void changed() { changed_ = true; }  // the set of running requests
  // None: the batches in flight are enough; requests generate in `generating` of them.
  std::optional<Share> share(int in_flight, int generating);

 private:
  std::pair<int, int64_t> admissible() const;
  void think(int coming, int64_t tokens);
  int most_with_prompts(int64_t coming) const;

  const Limits& limits_;
  const std::vector<Request*>& running_;
  const Queue& queue_;
  const KVCache& kv_;
  Rounds rounds_;
  bool changed_ = true;  // since `batches_` was chosen
  int coming_ = 0;       // requests that might have joined then
  int batches_ = 1;
};

}  // namespace corepipe::sim
