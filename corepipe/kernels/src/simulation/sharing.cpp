#include "simulation/sharing.h"

#include <algorithm>

namespace corepipe::sim {

namespace {

int divided_up(int a, int b) { return (a + b - 1) / b; }

}  // namespace

std::optional<Share> Sharing::share(int in_flight, int generating) {
  if (limits_.stages == 1) {
    if (in_flight > 0) return std::nullopt;
    return Share{limits_.most_running, 0, false};
  }
  const auto [coming, tokens] = admissible();
  think(coming, tokens);
  if (in_flight >= batches_ && in_flight >= most_with_prompts(tokens)) return std::nullopt;
  int seats = divided_up(static_cast<int>(running_.size()) + coming, batches_);
  if (const int missing = batches_ - in_flight; missing > 0) {
    const auto idle = std::count_if(running_.begin(), running_.end(), [](auto* r) { return r->computed < r->tokens; });
    seats = std::min(seats, divided_up(static_cast<int>(idle) + coming, missing));
  }
  return Share{seats, divided_up(coming, batches_), generating >= batches_};
}

// Chooses the number of batches for the running requests and `coming` others with `tokens` tokens, if they are others
// than those that it was chosen for.
void Sharing::think(int coming, int64_t tokens) {
  const int64_t sequences = static_cast<int64_t>(running_.size()) + coming;
  if ((!changed_ && coming_ == coming) || sequences == 0) return;
  for (const Request* request : running_) tokens += request->tokens;
  batches_ = rounds_.generating(sequences, tokens);
  changed_ = false;
  coming_ = coming;
}

// The number of batches in flight for the prompts of running requests and `coming` tokens of others; 0: no prompts.
int Sharing::most_with_prompts(int64_t coming) const {
  int64_t waiting = coming, sequences = 0, tokens = 0;
  for (const Request* request : running_) {
    if (request->tokens == request->prompt) {
      waiting += request->tokens - request->computed;
    } else {
      ++sequences;
      tokens += request->tokens;
    }
  }
  if (waiting == 0) return 0;
  return rounds_.with_prompts(sequences, tokens, std::min<int64_t>(waiting, limits_.batch_tokens));
}

// The waiting requests that seats and blocks would admit now, if none found a cached prefix, and their tokens.
std::pair<int, int64_t> Sharing::admissible() const {
  const int seats = limits_.most_running - static_cast<int>(running_.size());
  int blocks = kv_.pool().available(), count = 0;
  int64_t tokens = 0;
  for (const auto& [turn, request] : queue_) {
    blocks -= kv_.blocks_for(request->tokens);
    if (count == seats || blocks < 0) break;
    ++count;
    tokens += request->tokens;
  }
  return {count, tokens};
}

}  // namespace corepipe::sim
