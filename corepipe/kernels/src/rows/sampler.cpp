#include "rows/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace corepipe {

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kGreedyBelow = 1e-30f;  // GREEDY_BELOW of the definition
constexpr int kBins = 1024;
constexpr int kChunk = 256;
constexpr int kFew = 16;  // with fewer than one token in so many allowed, sampling works on a row of those tokens

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

struct Candidate {
  float x, weight;
  int32_t id;
};

// The order of top-k and top-p: likeliest first, then lowest id.
bool before(const Candidate& a, const Candidate& b) { return a.x > b.x || (a.x == b.x && a.id < b.id); }

}  // namespace

namespace {

// The natural logarithm within 2 ulp, by operations that IEEE 754 defines to the last bit, which differs between C
// libraries: 2 atanh((m - 1) / (m + 1)) of a number m near 1, plus the logarithm of a power of two.
double log_of(double x) {
  if (!(x > 0 && std::isfinite(x))) return std::log(x);
  int exponent;
  double m = std::frexp(x, &exponent);
  if (m < 0.7071067811865476) m *= 2, --exponent;
  const double s = (m - 1) / (m + 1), square = s * s;  // at most 0.0295
  double sum = 0;
  for (int n = 23; n >= 1; n -= 2) sum = sum * square + 1.0 / n;
  return exponent * 0.6931471805599453 + 2 * s * sum;
}

}  // namespace

double uniform(uint64_t seed, int64_t position) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  const uint64_t bits = mix(mix(seed + kGolden) + kGolden * (static_cast<uint64_t>(position) + 1));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// One thread's working memory, and the work on one row.  `size`: the tokens to consider, the whole vocabulary or the
// few allowed ones.
struct alignas(128) Sampler::Thread {
  const SamplerTable* table = nullptr;
  int vocab = 0, size = 0;
  std::vector<float> logits, few, weights, maxima;
  std::vector<int32_t> ids, allowed;
  std::vector<double> sums, chunks;
  std::vector<Candidate> candidates, members;

  void prepare(const SamplerTable& t, int v);
  void run(const float* raw, const Sampling& s, int row, const uint32_t* mask, Drawn& drawn) noexcept;
  int choose(const float* raw, const Sampling& s, int row, const uint32_t* mask, bool* finite);
  int choose_masked(const float* x, const Sampling& s, int row, const uint32_t* mask);
  int choose_of(const float* x, const Sampling& s, int row);
  bool is_adjusted(const Sampling& s, int row) const;
  const float* adjusted(const float* raw, const Sampling& s, int row);
  int gather(const float* x, const uint32_t* mask);
  int blocks() const { return (size + kSampleBlock - 1) / kSampleBlock; }
  int draw(const float* x, float largest, const Sampling& s, int row);
  int draw_from_all(double u) const;
  int draw_candidate(double u);
  void collect(const float* x, int found);
  float floor_of_top(const float* x, int count);
  void keep_top_k(const float* x, int k);
  void keep_nucleus_of_few(double p);
  void keep_nucleus(const float* x, float top, double p);
  Candidate last_of_nucleus(const float* x, int found, float top, float bottom, double target);
  double log_sum(const float* raw, bool* finite);
  void report_best(const float* raw, int count, double log_sum, int32_t* top_ids, float* logprobs);
};

void Sampler::Thread::prepare(const SamplerTable& t, int v) {
  table = &t;
  if (v == vocab) return;
  logits.resize(v);
  few.resize(v / kFew + 1);
  allowed.resize(v / kFew + 1);
  weights.resize(v);
  maxima.resize((v + kMaximaGroup - 1) / kMaximaGroup);
  ids.resize(v + 16);
  sums.resize((v + kSampleBlock - 1) / kSampleBlock);
  chunks.reserve(v / kChunk + 1);
  candidates.reserve(v);
  members.resize(v + 1);
  vocab = v;  // the whole vocabulary
}

void Sampler::Thread::run(const float* raw, const Sampling& s, int row, const uint32_t* mask, Drawn& drawn) noexcept {
  bool* finite = &drawn.finite[row];
  size = vocab;
  const int token = choose(raw, s, row, mask, finite);
  drawn.tokens[row] = token;
  const int wanted = s.top_logprobs[row];
  if (wanted < 0 && s.chosen[row] < 0) return;
  size = vocab;
  const double sum = log_sum(raw, finite);
  const float x = std::isnan(raw[token]) ? kNone : raw[token];
  drawn.logprobs[row] = static_cast<float>(x - sum);
  if (s.chosen[row] >= 0) drawn.ranks[row] = table->at_least(raw, vocab, x, ids.data());
  const size_t at = static_cast<size_t>(row) * drawn.top_width;
  if (wanted > 0) report_best(raw, wanted, sum, &drawn.top_ids[at], &drawn.top_logprobs[at]);
}

// `finite` is set from the raw row, by the pass that finds its maximum, if there is one.  A mask is null
// if all tokens are allowed.
int Sampler::Thread::choose(const float* raw, const Sampling& s, int row, const uint32_t* mask, bool* finite) {
  if (s.chosen[row] >= 0) return s.chosen[row];
  if (mask == nullptr && !is_adjusted(s, row)) {
    const bool greedy = s.temperature[row] < kGreedyBelow;
    return greedy ? table->argmax(raw, vocab, finite) : draw(raw, table->max(raw, vocab, finite), s, row);
  }
  table->max(raw, vocab, finite);
  const float* x = is_adjusted(s, row) ? adjusted(raw, s, row) : raw;
  return mask == nullptr ? choose_of(x, s, row) : choose_masked(x, s, row, mask);
}

// Bias and penalties keep -inf, so a mask may be applied after them.  If few tokens are allowed, sampling uses a row of
// those, in the order of their ids: the others have weight 0.
int Sampler::Thread::choose_masked(const float* x, const Sampling& s, int row, const uint32_t* mask) {
  size = gather(x, mask);
  if (size == 0) return 0;
  if (size < static_cast<int>(few.size())) {
    const int at = choose_of(few.data(), s, row);
    return few[at] > kNone ? allowed[at] : 0;
  }
  size = vocab;
  table->mask(x, mask, logits.data(), vocab);
  return choose_of(logits.data(), s, row);
}

int Sampler::Thread::choose_of(const float* x, const Sampling& s, int row) {
  bool unused;
  const bool greedy = s.temperature[row] < kGreedyBelow;
  return greedy ? table->argmax(x, size, &unused) : draw(x, table->max(x, size, &unused), s, row);
}

// Puts the allowed tokens into `few`, until it is full; returns their number.
int Sampler::Thread::gather(const float* x, const uint32_t* mask) {
  const int most = static_cast<int>(few.size());
  int found = 0;
  for (int base = 0; base < vocab; base += 32) {
    for (uint32_t bits = mask[base / 32]; bits != 0; bits &= bits - 1) {
      const int id = base + __builtin_ctz(bits);
      if (id >= vocab || found == most) return found;
      few[found] = x[id];
      allowed[found++] = id;
    }
  }
  return found;
}

bool Sampler::Thread::is_adjusted(const Sampling& s, int row) const {
  return s.bias_offsets[row] != s.bias_offsets[row + 1] || s.seen_offsets[row] != s.seen_offsets[row + 1];
}

// A copy of the row after bias and penalties.
const float* Sampler::Thread::adjusted(const float* raw, const Sampling& s, int row) {
  const int bias_begin = s.bias_offsets[row], bias_end = s.bias_offsets[row + 1];
  const int seen_begin = s.seen_offsets[row], seen_end = s.seen_offsets[row + 1];
  std::copy(raw, raw + vocab, logits.begin());
  for (int i = bias_begin; i < bias_end; ++i) logits[s.bias_ids[i]] += s.bias_values[i];
  for (int i = seen_begin; i < seen_end; ++i) {
    float& x = logits[s.seen_ids[i]];
    x = x > 0 ? x / s.repetition[row] : x * s.repetition[row];
    const float count = static_cast<float>(s.seen_counts[i]);
    if (count > 0) x = x - s.presence[row] - s.frequency[row] * count;
  }
  return logits.data();
}

// `largest` of x.
int Sampler::Thread::draw(const float* x, float largest, const Sampling& s, int row) {
  const float top = largest / s.temperature[row];
  bool unused;
  if (!std::isfinite(top)) return table->argmax(x, size, &unused);
  table->divide(x, s.temperature[row], logits.data(), size);
  x = logits.data();
  table->weigh(x, size, top, weights.data(), sums.data());
  const double u = uniform(s.seed[row], s.position[row]);
  const int k = s.top_k[row];
  const double p = s.top_p[row];
  const float min_p = s.min_p[row];
  if (k > 0 && k < size) {
    keep_top_k(x, k);
    if (p < 1) keep_nucleus_of_few(p);
    std::sort(candidates.begin(), candidates.end(),
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  } else if (p < 1) {
    keep_nucleus(x, top, p);
  } else if (min_p > 0) {
    collect(x, table->at_least(weights.data(), size, min_p, ids.data()));
  } else {
    return draw_from_all(u);
  }
  if (min_p > 0) {
    const auto unlikely = [&](const Candidate& c) { return c.weight < min_p; };
    candidates.erase(std::remove_if(candidates.begin(), candidates.end(), unlikely), candidates.end());
  }
  return draw_candidate(u);
}

// The first token, by id, up to which the weights exceed u times their sum.
int Sampler::Thread::draw_from_all(double u) const {
  double total = 0;
  for (int block = 0; block < blocks(); ++block) total += sums[block];
  const double target = u * total;
  double cumulated = 0;
  for (int block = 0; block < blocks(); ++block) {
    if (cumulated + sums[block] > target) {
      double inside = cumulated;
      for (int i = block * kSampleBlock; i < std::min(size, (block + 1) * kSampleBlock); ++i) {
        inside += weights[i];
        if (inside > target) return i;
      }
    }
    cumulated += sums[block];
  }
  int last = size - 1;  // rounding has left a remainder at the end
  while (last > 0 && weights[last] == 0) --last;
  return last;
}

// The same over the candidates, which are in order of id.
int Sampler::Thread::draw_candidate(double u) {
  const int n = static_cast<int>(candidates.size());
  chunks.assign((n + kChunk - 1) / kChunk, 0.0);
  double total = 0;
  for (int c = 0; c * kChunk < n; ++c) {
    double lanes[4] = {};
    for (int i = c * kChunk; i < std::min(n, (c + 1) * kChunk); ++i) lanes[i % 4] += candidates[i].weight;
    chunks[c] = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
    total += chunks[c];
  }
  const double target = u * total;
  double cumulated = 0;
  for (int c = 0; c * kChunk < n; ++c) {
    if (cumulated + chunks[c] > target) {
      double inside = cumulated;
      for (int i = c * kChunk; i < std::min(n, (c + 1) * kChunk); ++i) {
        inside += candidates[i].weight;
        if (inside > target) return candidates[i].id;
      }
    }
    cumulated += chunks[c];
  }
  int last = n - 1;
  while (last > 0 && candidates[last].weight == 0) --last;
  return candidates[last].id;
}

void Sampler::Thread::collect(const float* x, int found) {
  candidates.resize(found);
  for (int i = 0; i < found; ++i) candidates[i] = {x[ids[i]], weights[ids[i]], ids[i]};
}

// A bound that at least `count` elements reach and not many more: the count-th largest of the maxima of
// groups.  -inf where there are fewer groups.
float Sampler::Thread::floor_of_top(const float* x, int count) {
  const int groups = (size + kMaximaGroup - 1) / kMaximaGroup;
  if (count > groups) return kNone;
  table->group_maxima(x, size, maxima.data());
  std::nth_element(maxima.begin(), maxima.begin() + (count - 1), maxima.begin() + groups, std::greater<float>());
  return maxima[count - 1];
}

void Sampler::Thread::keep_top_k(const float* x, int k) {
  collect(x, table->at_least(x, size, floor_of_top(x, k), ids.data()));
  std::nth_element(candidates.begin(), candidates.begin() + (k - 1), candidates.end(), before);
  candidates.resize(k);
}

void Sampler::Thread::keep_nucleus_of_few(double p) {
  std::sort(candidates.begin(), candidates.end(), before);
  double total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  size_t kept = 0;
  for (double sum = 0; kept < candidates.size(); ) {
    sum += candidates[kept++].weight;
    if (sum >= p * total) break;
  }
  candidates.resize(kept);
}

// Tokens whose total weight is less than the part that top-p leaves out need not be considered.
void Sampler::Thread::keep_nucleus(const float* x, float top, double p) {
  double total = 0;
  for (int block = 0; block < blocks(); ++block) total += sums[block];
  const double share = (1 - std::max(p, 0.0)) * total / size;
  const float bottom = static_cast<float>(top + log_of(share) - 1e-3);
  const int found = table->at_least(x, size, bottom, ids.data());
  const Candidate last = last_of_nucleus(x, found, top, bottom, p * total);
  collect(x, table->at_least(x, size, last.x, ids.data()));
  const auto beyond = [&](const Candidate& c) { return c.x == last.x && c.id > last.id; };
  candidates.erase(std::remove_if(candidates.begin(), candidates.end(), beyond), candidates.end());
}

// The token with which the weights, likeliest first, reach `target`.  Bins of equal width over x find the
// neighbourhood; only its members are sorted.
Candidate Sampler::Thread::last_of_nucleus(const float* x, int found, float top, float bottom, double target) {
  const float scale = kBins / std::max(top - bottom, 1e-6f);
  const auto bin_of = [&](int i) { return std::min(kBins - 1, static_cast<int>((top - x[ids[i]]) * scale)); };
  double bins[kBins] = {};
  for (int i = 0; i < found; ++i) bins[bin_of(i)] += weights[ids[i]];
  double sum = 0;
  for (int b = 0; b < kBins; ++b) {
    if (sum + bins[b] < target || bins[b] == 0) {
      sum += bins[b];
      continue;
    }
    int n = 0;
    for (int i = 0; i < found; ++i) {  // without an unpredictable branch
      members[n] = {x[ids[i]], weights[ids[i]], ids[i]};
      n += bin_of(i) == b;
    }
    std::sort(members.begin(), members.begin() + n, before);
    for (int i = 0; i < n; ++i) {
      sum += members[i].weight;
      if (sum >= target) return members[i];
    }
  }
  return {bottom, 0, size};  // rounding has kept the sum below the target: all tokens are in
}

double Sampler::Thread::log_sum(const float* raw, bool* finite) {
  const float top = table->max(raw, vocab, finite);
  table->weigh(raw, vocab, top, nullptr, sums.data());
  double total = 0;
  for (int block = 0; block < blocks(); ++block) total += sums[block];
  return top + log_of(total);
}

void Sampler::Thread::report_best(const float* raw, int count, double log_sum, int32_t* top_ids, float* logprobs) {
  count = std::min(count, vocab);
  const int found = table->at_least(raw, vocab, floor_of_top(raw, count), ids.data());
  for (int i = 0; i < found; ++i) members[i] = {raw[ids[i]], 0, ids[i]};
  const int n = std::min(count, found);
  std::partial_sort(members.begin(), members.begin() + n, members.begin() + found, before);
  for (int i = 0; i < n; ++i) {
    top_ids[i] = members[i].id;
    logprobs[i] = static_cast<float>(members[i].x - log_sum);
  }
}

Sampler::Sampler(int threads) {
  for (int t = 0; t < threads; ++t) threads_.push_back(std::make_unique<Thread>());
}

Sampler::~Sampler() = default;

Drawn Sampler::run(const KernelTable& kernels, Pool& pool, const std::vector<const float*>& rows, int vocab,
                   const Sampling& sampling, const std::vector<uint32_t>& masks) {
  const int n = static_cast<int>(rows.size());
  Drawn drawn;
  for (int wanted : sampling.top_logprobs) drawn.top_width = std::max(drawn.top_width, wanted);
  drawn.tokens.resize(n);
  drawn.finite = std::make_unique<bool[]>(n);
  std::fill_n(drawn.finite.get(), n, true);
  drawn.ranks.assign(n, 0);
  drawn.logprobs.assign(n, kNaN);
  drawn.top_ids.assign(static_cast<size_t>(n) * drawn.top_width, -1);
  drawn.top_logprobs.assign(static_cast<size_t>(n) * drawn.top_width, kNaN);
  for (auto& thread : threads_) thread->prepare(kernels.sampler, vocab);
  const size_t words = mask_words(vocab);
  pool.parallel(n, [&](int row, int thread) noexcept {
    const int at = sampling.masked[row];
    threads_[thread]->run(rows[row], sampling, row, at < 0 ? nullptr : &masks[at * words], drawn);
  });
  return drawn;
}

}  // namespace corepipe
