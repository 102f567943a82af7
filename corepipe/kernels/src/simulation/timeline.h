// Device time of a simulated replica.  The native version of corepipe/neuron/timing/timeline.py.
#pragma once

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "simulation/step_times.h"

namespace corepipe::sim {

// Host seconds per batch; `changed`: for a batch whose sequences are not those of the previous one.
struct HostSeconds {
  double plain;
  std::optional<double> changed;
};

// The times of a batch; host: the seconds that the host took for it.
struct Timing {
  double starts_at, accepts_at, ready_at, host;
};

using Span = std::pair<double, double>;  // start and end

// Adds up the time in which all stages are busy, from the spans of their batches, each stage's in order.
class Overlap {
 public:
  explicit Overlap(int stages) : spans_(stages) {}

  void add(const std::vector<Span>& stages);  // of a batch
  double seconds() const { return seconds_; }

 private:
  std::vector<std::deque<Span>> spans_;  // of each stage those that are not counted yet
  double seconds_ = 0.0;
};

// Runs batches through the stages in the order in which they are submitted.
class Timeline {
 public:
  Timeline(int stages, HostSeconds host)
      : host_(host), free_(stages, 0.0), busy_(stages, 0.0), spans_(stages), overlap_(stages) {}

  Timing submit(const Shape& shape, const Times& times, double now);
  const HostSeconds& host() const { return host_; }

  const std::vector<double>& busy() const { return busy_; }  // of each stage
  double overlap() const { return overlap_.seconds(); }
  double work() const { return work_; }
  double hand_over() const { return hand_over_; }
  double drafted() const { return drafted_; }

 private:
  HostSeconds host_;
  double host_free_ = 0.0;
  std::vector<double> free_, busy_;
  std::vector<Span> spans_;  // of the latest batch
  Overlap overlap_;
  double drafted_ = 0.0, hand_over_ = 0.0, work_until_ = 0.0, work_ = 0.0;
  int decoding_ = 0;
};

}  // namespace corepipe::sim
