// The replicas of a simulated deployment under one router and one clock: the native version of the loop and the router
// in corepipe/engine/loop/, for requests at known times and no other input.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "simulation/replica.h"

namespace corepipe::sim {

// A request to a deployment.
struct Asked {
  int64_t number;
  double arrival;
  int prompt_tokens, most_tokens;
  int64_t answer;
  uint64_t draft_seed;
  std::vector<Segment> segments;
};

// Without news, a replica is advanced only when a request comes to it, or when others may see its changes: so the cost
// of a fleet depends on its events, not on its time.
class Fleet {
 public:
  // A replica of each of these parts; margin: see corepipe/engine/loop/loop.py.  told: whether news is collected.
  Fleet(const Limits& limits, Policy policy, const std::vector<Parts>& of, int margin, bool told);
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  double next_event() const;
  // Processes all events up to and at `until`, or until there is news; returns true then.
  bool advance(double until);
  Admission add(const Asked& asked);

  std::deque<Replica>& replicas() { return replicas_; }
  const Common& common() const { return common_; }
  News take_news() { return std::exchange(common_.news, {}); }

 private:
  using Moment = std::pair<double, int>;

  int choose(Request& request);
  int choose_at(Request& request, double moment);
  int choose_by_index(Request& request);
  int choose_by_asking(Request& request);
  void changed(int number);
  int least_load() const;

  Common common_;
  PrefixIndex index_;
  bool indexed_;  // whether the cached prefix of a replica is looked up in the index
  int margin_;
  std::deque<Replica> replicas_;
  std::vector<int> loads_;
  std::vector<double> moments_;  // for each replica the time of its next event, or until which it is quiet
  mutable std::vector<Moment> heap_;  // present and outdated moments, the earliest on top
  Request asked_;
};

}  // namespace corepipe::sim
