#include "simulation/timeline.h"

#include <algorithm>

namespace corepipe::sim {

Timing Timeline::submit(const Shape& shape, const Times& times, double now) {
  const bool same = !host_.changed || (shape.decodes() && decoding_ == shape.sequences);
  const double host = (same ? host_.plain : *host_.changed) + times.sent;
  decoding_ = shape.decodes() ? shape.sequences : 0;
  host_free_ = std::max(host_free_, now) + host;
  drafted_ += times.drafted;
  double arrives = host_free_;
  const StageTime* time = arrives >= free_.back() ? times.lone : times.busy;
  for (size_t stage = 0; stage < free_.size(); ++stage, ++time) {
    hand_over_ += time->moved;
    arrives += time->moved;
    const double start = std::max(arrives, free_[stage]);
    free_[stage] = arrives = start + time->seconds;
    busy_[stage] += arrives - start;
    spans_[stage] = {start, arrives};
  }
  overlap_.add(spans_);
  const double starts_at = spans_.front().first;
  work_ += arrives - std::max(starts_at, work_until_);
  work_until_ = arrives;
  return {starts_at, std::max(host_free_, free_.front() - host), arrives + times.drawn + times.result, host};
}

void Overlap::add(const std::vector<Span>& stages) {
  for (size_t stage = 0; stage < stages.size(); ++stage) spans_[stage].push_back(stages[stage]);
  const auto waits = [](const std::deque<Span>& spans) { return spans.empty(); };
  while (std::none_of(spans_.begin(), spans_.end(), waits)) {
    // The common time of the oldest spans is counted, and the one that ends first dropped.
    std::deque<Span>* first = &spans_.front();
    double start = 0.0;
    for (std::deque<Span>& spans : spans_) {
      start = std::max(start, spans.front().first);
      if (spans.front().second < first->front().second) first = &spans;
    }
    seconds_ += std::max(0.0, first->front().second - start);
    first->pop_front();
  }
}

}  // namespace corepipe::sim
