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
  if (in_flight_) land(now);
  if (next_event() <= now) submit(now);
}

void Replica::act_until(double until) {
  while (next_event() <= until && next_event() < kNever) act();
}

double Replica::quiet_until() {
  if (!in_flight_ || !shape_.decodes() || shape_.logit_rows != shape_.rows) return next_event();
  const int rounds = std::min(scheduler_.rounds_left(), kAtOnce);
  if (!scheduler_.goes_round(rounds)) return next_event();
  Shape shape = shape_;
  double due = due_;
  for (int left = rounds - 1; left > 0; --left) {  // as `submit` will compute it
    shape.kv_tokens = shape.attended += shape.sequences;
    const Times times = times_->of(shape, left, strip_);
    due = due + (host_.plain + times.sent) + times.device + times.drawn + times.result;
  }
  return due;
}

void Replica::land(double now) {
  in_flight_ = false;
  scheduler_.update([&](Request& request, bool ends) { note_token(request, ends, now); });
  device_now_ = std::max(device_now_, due_);
  idle_ = false;
  accepts_at_ = std::max(accepts_at_, due_);
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
  const Shape& shape = shape_;
  const bool decodes = shape.decodes();
  const Times times = times_->of(shape, decodes ? scheduler_.rounds_left() : 1, strip_);
  const bool same = !host_.changed || (decodes && decoding_ == shape.sequences);
  const double host = (same ? host_.plain : *host_.changed) + times.sent;
  decoding_ = decodes ? shape.sequences : 0;
  host_free_ = std::max(host_free_, device_now_) + host;
  const double start = std::max(host_free_, free_), end = start + times.device;
  free_ = end;
  const double worked = end - start;
  busy_ += worked;
  overlap_ += std::max(0.0, worked);
  work_ += end - std::max(start, work_until_);
  work_until_ = end;
  accepts_at_ = std::max(host_free_, end - host);
  due_ = end + times.drawn + times.result;
  in_flight_ = true;
  steps_.append({start, due_, shape, scheduler_.kv().pool().held(), scheduler_.running(), scheduler_.waiting()}, host,
                times);
  if (unscheduled_ == 0) return;
  for (const Chunk& chunk : scheduler_.batch()) {
    if (chunk.request->scheduled_at >= 0.0) continue;
    chunk.request->scheduled_at = now;
    --unscheduled_;
  }
}

}  // namespace corepipe::sim
