#include "simulation/replica.h"

#include <algorithm>

namespace corepipe::sim {

Admission Replica::add(Request& request) {
  const double arrival = request.arrival;
  device_now_ = std::max(device_now_, arrival);
  idle_ = false;
  accepts_at_ = std::max(accepts_at_, arrival);
  const Admission admission = scheduler_.add(request);
  unscheduled_ += admission == Admission::kTaken;
  return admission;
}

void Replica::act() {
  const double now = next_event();
  while (due() <= now) land(now);
  while (starts_at() <= now) submit(now);
}

void Replica::act_until(double until) {
  while (next_event() <= until && next_event() < kNever) act();
}

double Replica::quiet_until() {
  if (most_in_flight_ > 1 || dues_.empty() || drafts_ || !shape_.generates()) return next_event();
  const int rounds = std::min(scheduler_.rounds_left(), kAtOnce);
  if (!scheduler_.goes_round(rounds)) return next_event();
  Shape shape = shape_;
  double due = dues_.front();
  for (int left = rounds - 1; left > 0; --left) {  // as `submit` will compute it
    shape.kv_tokens = shape.attended += shape.sequences;
    const Times times = times_->of(shape, left, strips_);
    due = due + (timeline_.host().plain + times.sent) + times.lone->seconds + times.drawn + times.result;
  }
  return due;
}

void Replica::land(double now) {
  const double due = dues_.front();
  dues_.pop_front();
  scheduler_.update([&](Request& request, bool ends) { note_token(request, ends, now); });
  device_now_ = std::max(device_now_, due);
  idle_ = false;
  accepts_at_ = std::max(accepts_at_, due);
}

void Replica::note_token(Request& request, bool ends, double now) {
  if (request.first_at < 0.0) {
    request.first_at = now;
    if (common_.told) common_.news.firsts.push_back({request.number, now});
  } else {
    common_.gaps.append(now - request.last_at, 1);
  }
  request.last_at = now;
  if (!ends) return;
  const int results = request.most_tokens > 0 ? request.generated() : 1;
  common_.requests.append({request.arrival, request.scheduled_at, request.first_at, now, request.prompt, results,
                           request.cached, request.preemptions, number_});
  if (common_.told) common_.news.ends.push_back({request.number, request.tokens, now});
}

void Replica::submit(double now) {
  idle_ = !scheduler_.schedule();
  if (idle_) return;
  shape_ = scheduler_.shape();
  const Times times = times_->of(shape_, drafts_ ? 1 : scheduler_.rounds_left(), strips_);
  const Timing timing = timeline_.submit(shape_, times, device_now_);
  accepts_at_ = timing.accepts_at;
  dues_.push_back(timing.ready_at);
  const int held = scheduler_.kv().pool().held();
  steps_.append({timing.starts_at, timing.ready_at, shape_, held, scheduler_.running(), scheduler_.waiting()},
                timing.host, times);
  if (unscheduled_ == 0) return;
  for (const Chunk& chunk : scheduler_.batch()) {
    if (chunk.request->scheduled_at >= 0.0) continue;
    chunk.request->scheduled_at = now;
    --unscheduled_;
  }
}

}  // namespace corepipe::sim
