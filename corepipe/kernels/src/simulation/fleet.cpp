#include "simulation/fleet.h"

#include <algorithm>
#include <functional>

namespace corepipe::sim {

Fleet::Fleet(const Limits& limits, Policy policy, const std::vector<Parts>& of, int margin, bool told)
    : index_(static_cast<int>(of.size())),
      indexed_(std::all_of(limits.windows.begin(), limits.windows.end(), [](int window) { return window == 0; })),
      margin_(margin),
      loads_(of.size(), 0),
      moments_(of.size(), kNever) {
  common_.told = told;
  PrefixIndex* index = indexed_ && of.size() > 1 ? &index_ : nullptr;
  for (const Parts& parts : of) {
    replicas_.emplace_back(static_cast<int>(replicas_.size()), limits, policy, index, parts, common_);
  }
}

double Fleet::next_event() const {
  while (!heap_.empty() && moments_[heap_.front().second] != heap_.front().first) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
  }
  return heap_.empty() ? kNever : heap_.front().first;
}

bool Fleet::advance(double until) {
  for (double moment; (moment = next_event()) <= until && moment < kNever;) {
    Replica& replica = replicas_[heap_.front().second];
    if (common_.told) {  // other replicas may have an earlier event
      replica.act();
    } else {
      replica.act_until(until);
    }
    changed(heap_.front().second);
    if (!common_.news.ends.empty() || !common_.news.firsts.empty()) return true;
  }
  return false;
}

Admission Fleet::add(const Asked& asked) {
  Request& request = asked_;
  request.prompt = request.tokens = asked.prompt_tokens;
  request.answer = asked.answer;
  request.segments = asked.segments;
  request.keys.clear();
  const int number = choose_at(request, asked.arrival);
  Request& taken = replicas_[number].scheduler().fresh();
  taken.number = asked.number;
  taken.arrival = asked.arrival;
  taken.prompt = asked.prompt_tokens;
  taken.most_tokens = asked.most_tokens;
  taken.answer = asked.answer;
  taken.draft_seed = asked.draft_seed;
  taken.segments.swap(request.segments);
  taken.keys.swap(request.keys);
  const Admission admission = replicas_[number].add(taken);
  changed(number);
  return admission;
}

void Fleet::changed(int number) {
  loads_[number] = replicas_[number].scheduler().unfinished();
  const bool lazy = !common_.told && replicas_.size() > 1;
  const double moment = lazy ? replicas_[number].quiet_until() : replicas_[number].next_event();
  if (moment == moments_[number]) return;
  moments_[number] = moment;
  if (moment == kNever) return;
  heap_.emplace_back(moment, number);
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

int Fleet::choose(Request& request) {
  if (replicas_.size() == 1) return 0;
  return indexed_ ? choose_by_index(request) : choose_by_asking(request);
}

// A replica that is behind in time appears to have all its earlier blocks: some may have been evicted since, and none
// that a request needs were added.  So the chosen one is advanced, and is then still the best or not.  A replica that
// got a request at this moment is not behind, though it has not processed it yet.
int Fleet::choose_at(Request& request, double moment) {
  int number = choose(request);
  while (moments_[number] > moment && replicas_[number].next_event() <= moment) {
    replicas_[number].act_until(moment);
    number = choose(request);
  }
  return number;
}

int Fleet::least_load() const { return *std::min_element(loads_.begin(), loads_.end()); }

// Chooses among the replicas within the load margin: the longest cached prefix, then the least load, then the first.
int Fleet::choose_by_index(Request& request) {
  const int words = index_.words(), most = least_load() + margin_;
  std::vector<uint64_t> best(words, 0), narrower(words);
  for (size_t number = 0; number < loads_.size(); ++number) {
    if (loads_[number] <= most) best[number / 64] |= uint64_t{1} << number % 64;
  }
  const KVCache& kv = replicas_.front().scheduler().kv();
  const int full = kv.full_rows(request.tokens);
  for (int row = 0; row < full; ++row) {
    const uint64_t* holders = index_.holders(kv.key(request, row));
    if (holders == nullptr) break;
    uint64_t any = 0;
    for (int word = 0; word < words; ++word) any |= narrower[word] = best[word] & holders[word];
    if (!any) break;
    best.swap(narrower);
  }
  int chosen = -1;
  for (size_t number = 0; number < loads_.size(); ++number) {
    if (!(best[number / 64] >> number % 64 & 1)) continue;
    if (chosen < 0 || loads_[number] < loads_[chosen]) chosen = static_cast<int>(number);
  }
  return chosen;
}

int Fleet::choose_by_asking(Request& request) {
  const int most = least_load() + margin_;
  int chosen = -1, longest = -1;
  for (size_t number = 0; number < loads_.size(); ++number) {
    if (loads_[number] > most) continue;
    const int cached = replicas_[number].scheduler().kv().cached_prefix(request);
    if (cached > longest || (cached == longest && loads_[number] < loads_[chosen])) {
      chosen = static_cast<int>(number);
      longest = cached;
    }
  }
  return chosen;
}

}  // namespace corepipe::sim
