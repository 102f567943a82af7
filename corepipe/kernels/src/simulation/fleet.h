// The replicas of a simulated deployment under one router and one clock: the twin of corepipe/engine/loop/loop.py,
// agenda.py and router.py where nothing comes from outside but requests at known times.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "simulation/replica.h"

namespace corepipe::sim {

// What is asked of a deployment.
struct Asked {
  int64_t number;
  double arrival;
  int prompt_tokens, most_tokens;
  int64_t answer;
  std::vector<Segment> segments;
};

// Where nobody wants news, a replica acts when a request comes to it, or when others may see what it does: so a fleet
// costs what happens in it, not its time.
class Fleet {
 public:
  // A replica for each of `times`; margin: see corepipe/engine/loop/router.py.  told: whether news is wanted.
  Fleet(const Limits& limits, Policy policy, const std::vector<std::pair<std::shared_ptr<StepTimes>, HostSeconds>>& of,
        int margin, bool told);
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  double next_event() const;
  // Does all that is to do up to and at `until`, or until there is news: true then.
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
  bool indexed_;  // whether blocks decide which prefix a replica has
  int margin_;
  std::deque<Replica> replicas_;
  std::vector<int> loads_;
  std::vector<double> moments_;  // of each replica: of its next event, or until when it is quiet
  mutable std::vector<Moment> heap_;  // all that were ever and may still hold, the first on top
  Request asked_;
};

}  // namespace corepipe::sim
