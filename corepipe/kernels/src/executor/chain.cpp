#include "executor/chain.h"

#include <algorithm>
#include <set>

namespace corepipe {

namespace {

constexpr double kAttendedRows = 512;  // a row's attention to so many rows takes as long as all its other work
constexpr double kMostIdle = 1.1;      // of a division by whole sequences over an even one: synchronisation costs as much

int rounded_up(int rows, int unit) { return (rows + unit - 1) / unit * unit; }

int rows_of(const Batch& batch, int sequence) { return batch.starts[sequence + 1] - batch.starts[sequence]; }

double cost_of(int rows) { return rows * (kAttendedRows + rows); }

struct CostedSpan {
  RowSpan span;
  double cost;
};

// Sequences in their order; short ones are joined into spans, fewer the fewer remain.
std::vector<CostedSpan> spans_of(const Batch& batch, int threads, const ChainRows& chain) {
  std::vector<CostedSpan> spans;
  for (int s = 0; s < batch.sequences();) {
    const int left = (batch.rows() - batch.starts[s]) / threads;
    const int wanted = std::clamp(left / 2, chain.fewest, chain.most);
    CostedSpan one{{batch.starts[s], 0}, 0};
    do {
      one.span.rows += rows_of(batch, s);
      one.cost += cost_of(rows_of(batch, s));
      ++s;
    } while (s < batch.sequences() && one.span.rows + rows_of(batch, s) <= wanted);
    spans.push_back(one);
  }
  return spans;
}

// Returns when the last thread ends, if each takes the next span as soon as it is free.
double end_of(const std::vector<CostedSpan>& spans, int threads) {
  std::vector<double> ends(threads);
  for (const CostedSpan& one : spans) *std::min_element(ends.begin(), ends.end()) += one.cost;
  return *std::max_element(ends.begin(), ends.end());
}

// As many spans of one size as there are threads, then of a smaller size.
std::vector<RowSpan> split_rows(int rows, int threads, const ChainRows& chain) {
  std::vector<RowSpan> spans;
  for (int start = 0; start < rows;) {
    const int left = (rows - start + threads - 1) / threads;  // for each thread
    const int half = rounded_up(left / 2, chain.unit);
    const int size = left <= chain.fewest + chain.unit ? left : std::min(half, chain.most);
    for (int t = 0; t < threads && start < rows; ++t) {
      spans.push_back({start, std::min(size, rows - start)});
      start += spans.back().rows;
    }
  }
  return spans;
}

// Spans of whole sequences, the longest first; none if threads would end far apart.
std::vector<RowSpan> split_sequences(const Batch& batch, int threads, const ChainRows& chain) {
  std::vector<CostedSpan> spans = spans_of(batch, threads, chain);
  std::stable_sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) { return a.cost > b.cost; });
  double total = 0;
  for (const CostedSpan& one : spans) total += one.cost;
  if (end_of(spans, threads) > kMostIdle * total / threads) return {};
  std::vector<RowSpan> found;
  for (const CostedSpan& one : spans) found.push_back(one.span);
  return found;
}

// The rows of a span in as few pieces of nearly equal size as the chain takes at a time.
std::vector<RowSpan> pieces_of(const RowSpan& span, const ChainRows& chain) {
  const int count = (span.rows + chain.most - 1) / chain.most;
  const int size = rounded_up((span.rows + count - 1) / count, chain.unit);
  std::vector<RowSpan> pieces;
  for (int at = 0; at < span.rows; at += size) pieces.push_back({span.first + at, std::min(size, span.rows - at)});
  return pieces;
}

int chain_length(const std::vector<Stop>& stops, size_t at, bool whole_sequences) {
  size_t end = at;
  while (end < stops.size() && stops[end].program == stops[at].program && stops[end].step->run_rows &&
         (whole_sequences || !stops[end].step->whole_sequences)) {
    ++end;
  }
  return static_cast<int>(end - at);
}

// Calls body(step, span) for each of the steps and the rows that it computes at a time, in the order of a thread:
// pieces go through the steps up to one that needs all rows of a sequence.
template <class Body>
void walk(const Stop* stops, int count, const RowSpan& span, const std::vector<RowSpan>& pieces, Body&& body) {
  for (int at = 0; at < count;) {
    int end = at;
    while (end < count && !stops[end].step->whole_sequences) ++end;
    for (const RowSpan& piece : pieces) {
      for (int i = at; i < end; ++i) body(*stops[i].step, piece);
    }
    if (end < count) body(*stops[end].step, span);
    at = end + 1;
  }
}

}  // namespace

Chain chain_at(const Run& run, const std::vector<Stop>& stops, size_t at) {
  const ChainRows& rows = run.kernels.linear.chain;
  const int threads = run.pool.size();
  if (run.batch.rows() < rows.from * threads) return {};
  const int steps = chain_length(stops, at, false), more = chain_length(stops, at, true);
  if (more > steps) {
    std::vector<RowSpan> spans = split_sequences(run.batch, threads, rows);
    if (!spans.empty()) return {more, std::move(spans)};
  }
  if (steps == 0) return {};
  return {steps, split_rows(run.batch.rows(), threads, rows)};
}

void pass_chain(const Run& run, const Stop* stops, const Chain& chain) {
  std::vector<std::vector<RowSpan>> pieces;
  std::set<int> reserved;
  for (const RowSpan& span : chain.spans) {
    pieces.push_back(pieces_of(span, run.kernels.linear.chain));
    walk(stops, chain.steps, span, pieces.back(), [&](const Step& step, const RowSpan& part) {
      if (reserved.count(part.rows) == 0) step.reserve_rows(run, part.rows);
    });
    for (const RowSpan& piece : pieces.back()) reserved.insert(piece.rows);
  }
  run.pool.parallel(static_cast<int>(chain.spans.size()), [&](int item, int thread) noexcept {
    walk(stops, chain.steps, chain.spans[item], pieces[item], [&](const Step& step, const RowSpan& part) {
      step.run_rows(run, {part.first, part.rows, thread});
      if (thread == 0) run.pool.beat();
    });
  });
}

}  // namespace corepipe
