// A replica in a simulation: its scheduler, its device's time line and the record of both.  The native version of
// corepipe/engine/loop/replica.py and of the record.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "simulation/record.h"
#include "simulation/scheduler.h"
#include "simulation/step_times.h"
#include "simulation/timeline.h"

namespace corepipe::sim {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Events of requests, for a listener.
struct First {
  int64_t number;
  double at;
};
struct End {
  int64_t number;
  int tokens;  // of the request, prompt included
  double at;
};
struct News {
  std::vector<First> firsts;
  std::vector<End> ends;
};

// The record that all replicas share.
struct Common {
  RequestTable requests;
  GapTable gaps;
  News news;
  bool told = false;  // whether news is collected
};

// What a replica is made of, beside the limits of all: the times of its steps, its rounds and its host.
struct Parts {
  std::shared_ptr<StepTimes> times;
  Rounds rounds;
  HostSeconds host;
};

class Replica {
 public:
  Replica(int number, const Limits& limits, Policy policy, PrefixIndex* index, const Parts& parts, Common& common)
      : scheduler_(limits, policy, parts.rounds, index, number),
        timeline_(limits.stages, parts.host),
        number_(number),
        most_in_flight_(limits.stages > 1 ? limits.stages + 1 : 1),
        drafts_(!limits.draft_rates.empty()),
        times_(parts.times),
        strips_(most_in_flight_),
        common_(common) {}

  // The time at which a batch is due or another can be submitted.
  double next_event() const { return std::min(due(), starts_at()); }
  void act();  // processes the next event
  void act_until(double until);  // processes all events up to and at that time
  // A lower bound of the next time at which others may see a change, if no request comes: the end of a request, or a
  // batch that is not like the previous one.
  double quiet_until();
  Admission add(Request& request);
  Scheduler& scheduler() { return scheduler_; }
  const Scheduler& scheduler() const { return scheduler_; }
  const Timeline& timeline() const { return timeline_; }
  const StepTable& steps() const { return steps_; }

 private:
  double due() const { return dues_.empty() ? kNever : dues_.front(); }
  double starts_at() const {
    return idle_ || static_cast<int>(dues_.size()) >= most_in_flight_ ? kNever : accepts_at_;
  }
  void land(double now);
  void submit(double now);
  void note_token(Request& request, bool ends, double now);

  Scheduler scheduler_;
  Timeline timeline_;
  int number_, most_in_flight_;
  bool drafts_;  // steps have drafts
  std::shared_ptr<StepTimes> times_;
  StepTimes::Strips strips_;
  Common& common_;
  StepTable steps_;

  bool idle_ = true;  // the scheduler had no batch, and there was no event since
  Shape shape_;        // of the latest batch
  std::deque<double> dues_;  // of the batches in flight, oldest first
  double accepts_at_ = 0.0, device_now_ = 0.0;
  int unscheduled_ = 0;
};

}  // namespace corepipe::sim
