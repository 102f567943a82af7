#include "rows/sampler.h"

#include "pieces.h"

namespace corepipe {

namespace {

constexpr int kVocab = 5003, kRowCount = 6;

template <class T>
std::vector<T> cycled(std::initializer_list<T> values) {
  std::vector<T> out;
  for (int r = 0; r < kRowCount; ++r) out.push_back(values.begin()[r % values.size()]);
  return out;
}

// Greedy, and drawn from all, from the likeliest, from a nucleus; with penalties, and with a choice of its own.
Sampling sampling() {
  Sampling s;
  s.temperature = cycled({0.0f, 1.0f, 0.7f});
  s.top_k = cycled({0, 40}), s.top_p = cycled({1.0f, 0.9f, 1.0f, 0.5f}), s.min_p = cycled({0.0f, 0.0f, 0.01f});
  s.repetition = cycled({1.0f, 1.2f}), s.presence = cycled({0.0f, 0.5f}), s.frequency = cycled({0.25f, 0.0f});
  s.seed = cycled<uint64_t>({1, 2, 3, 4, 5, 6}), s.position = cycled<int64_t>({10, 20, 30});
  s.top_logprobs = cycled({5}), s.chosen = cycled({-1, -1, 17}), s.masked = cycled({-1});
  s.bias_offsets.assign(kRowCount + 1, 0);
  for (int r = 0; r <= kRowCount; ++r) s.seen_offsets.push_back(2 * r);
  for (int r = 0; r < kRowCount; ++r) {
    s.seen_ids.insert(s.seen_ids.end(), {3 + r, 90 + r});
    s.seen_counts.insert(s.seen_counts.end(), {1, 4});
  }
  return s;
}

void add_passes(const SamplerTable& t, const std::vector<float>& x, std::vector<Piece>& pieces) {
  bool finite = false;
  Digest maxima, weights;
  std::vector<float> groups((kVocab + kMaximaGroup - 1) / kMaximaGroup), e(kVocab);
  std::vector<double> sums((kVocab + kSampleBlock - 1) / kSampleBlock);
  std::vector<int32_t> ids(kVocab + 16);
  t.group_maxima(x.data(), kVocab, groups.data());
  const float top = t.max(x.data(), kVocab, &finite);
  ids.resize(t.at_least(x.data(), kVocab, top / 2, ids.data()));
  maxima.add(groups);
  maxima.add(ids);
  maxima.add(std::vector<int>{t.argmax(x.data(), kVocab, &finite), finite});
  t.divide(x.data(), 0.7f, e.data(), kVocab);
  weights.add(e);
  t.weigh(x.data(), kVocab, top, e.data(), sums.data());
  weights.add(e);
  weights.add(sums);
  pieces.push_back({"sampler.maxima", maxima.value()});
  pieces.push_back({"sampler.weights", weights.value()});
}

}  // namespace

void add_sampler(const KernelTable& kernels, std::vector<Piece>& pieces) {
  const std::vector<float> logits = Random(5).numbers(size_t{kRowCount} * kVocab, 9.0f);
  add_passes(kernels.sampler, logits, pieces);
  std::vector<const float*> rows;
  for (int r = 0; r < kRowCount; ++r) rows.push_back(logits.data() + size_t{kVocab} * r);
  Pool pool(2);
  const Drawn drawn = Sampler(2).run(kernels, pool, rows, kVocab, sampling(), {});
  Digest tokens, logprobs;
  tokens.add(drawn.tokens);
  tokens.add(drawn.top_ids);
  tokens.add(drawn.ranks);
  logprobs.add(drawn.logprobs);
  logprobs.add(drawn.top_logprobs);
  pieces.push_back({"sampler.tokens", tokens.value()});
  pieces.push_back({"sampler.logprobs", logprobs.value()});
}

}  // namespace corepipe
