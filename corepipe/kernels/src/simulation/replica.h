// A replica of one stage in a simulation: its scheduler, its device's time line and the record of both.  The native
// version of corepipe/engine/loop/replica.py, corepipe/neuron/timing/timeline.py and the record.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "simulation/record.h"
#include "simulation/scheduler.h"
#include "simulation/step_times.h"

namespace corepipe::sim {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Host seconds per batch; `changed`: for a batch whose sequences are not those of the previous one.
struct HostSeconds {
  double plain;
  std::optional<double> changed;
};

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

class Replica {
 public:
  Replica(int number, const Limits& limits, Policy policy, PrefixIndex* index, std::shared_ptr<StepTimes> times,
          HostSeconds host, Common& common)
      : scheduler_(limits, policy, index, number), number_(number), times_(std::move(times)), host_(host),
        common_(common) {}

  // The time at which a batch is due or another can be submitted.
  double next_event() const { return in_flight_ ? due_ : (idle_ ? kNever : accepts_at_); }
  void act();  // processes the next event
  void act_until(double until);  // processes all events up to and at that time
  // A lower bound of the next time at which others may see a change, if no request comes: the end of a request, or a
  // batch that is not like the previous one.
  double quiet_until();
  Admission add(Request& request);
  Scheduler& scheduler() { return scheduler_; }
  const Scheduler& scheduler() const { return scheduler_; }
  const StepTable& steps() const { return steps_; }

  bool in_flight() const { return in_flight_; }
  double busy() const { return busy_; }
  double overlap() const { return overlap_; }
  double work() const { return work_; }

 private:
  void land(double now);
  void submit(double now);
  void note_token(Request& request, bool ends, double now);

  Scheduler scheduler_;
  int number_;
  std::shared_ptr<StepTimes> times_;
  StepTimes::Strip strip_;
  HostSeconds host_;
  Common& common_;
  StepTable steps_;

  bool idle_ = true;  // the scheduler had no batch, and there was no event since
  bool in_flight_ = false;
  Shape shape_;  // of the batch in flight
  double due_ = kNever, accepts_at_ = 0.0, device_now_ = 0.0;
  int unscheduled_ = 0;

  // The time line.
  double host_free_ = 0.0, free_ = 0.0, busy_ = 0.0, overlap_ = 0.0, work_until_ = 0.0, work_ = 0.0;
  int decoding_ = 0;
};

}  // namespace corepipe::sim
