#include "attention/attention.h"

#include "executor/kv_cache.h"
#include "pieces.h"

namespace corepipe {

namespace {

constexpr int kKvHeads = 2, kQueriesOfHead = 3, kHeadDim = 40, kBlockSize = 16;
constexpr int kLengths[] = {700, 90};
constexpr int kBlocks = 64, kFirstBlocks = 48;  // of which so many are the first sequence's

// Two sequences whose blocks lie in no order: whole prompts, then three tokens more of each.
class Rig {
 public:
  Rig(const KernelTable& kernels, const std::string& dtype)
      : kernels_(kernels), pool_(2), attention_(2), cache_(1, kBlocks, kBlockSize, kKvHeads, kHeadDim, dtype) {}

  void run(const AttentionCall& how, Digest& digest) {
    step(how, {0, 0}, {kLengths[0], kLengths[1]}, digest);
    step(how, {kLengths[0], kLengths[1]}, {3, 3}, digest);
  }

 private:
  void step(AttentionCall call, std::vector<int> firsts, std::vector<int> counts, Digest& digest) {
    const Batch batch = batch_of(firsts, counts);
    const size_t width = kKvHeads * kHeadDim, q_width = kQueriesOfHead * width;
    const std::vector<float> q = random_.numbers(batch.rows() * q_width, 4.0f);
    const std::vector<float> k = random_.numbers(batch.rows() * width, 4.0f), v = random_.numbers(batch.rows() * width);
    std::vector<float> out(q.size());
    call.q = q.data(), call.k = k.data(), call.v = v.data(), call.out = out.data();
    call.q_stride = call.out_stride = q_width, call.k_stride = call.v_stride = width;
    call.kv_heads = kKvHeads, call.group = kQueriesOfHead, call.head_dim = kHeadDim, call.scale = 0.2f;
    call.round_bf16 = !cache_.fp32;
    call.cache = cache_.layer(0);
    call.positions = batch.positions.data(), call.tables = batch.tables.data(), call.table_width = batch.table_width;
    attention_.start(batch);
    attention_.run(kernels_, pool_, call);
    digest.add(out);
  }

  static Batch batch_of(const std::vector<int>& firsts, const std::vector<int>& counts) {
    Batch batch;
    batch.starts = {0};
    batch.table_width = kFirstBlocks;
    for (size_t s = 0; s < firsts.size(); ++s) {
      for (int i = 0; i < counts[s]; ++i) batch.positions.push_back(firsts[s] + i);
      batch.starts.push_back(batch.starts.back() + counts[s]);
      for (int b = 0; b < kFirstBlocks; ++b) {
        batch.tables.push_back(7 * (s == 0 ? b : kFirstBlocks + b % (kBlocks - kFirstBlocks)) % kBlocks);
      }
    }
    batch.tokens.assign(batch.positions.size(), 0);
    return batch;
  }

  const KernelTable& kernels_;
  Pool pool_;
  Attention attention_;
  KVCache cache_;
  Random random_{2};
};

}  // namespace

void add_attention(const KernelTable& kernels, std::vector<Piece>& pieces) {
  AttentionCall causal{}, bent{};
  causal.window = bent.window = kNoWindow;
  const std::vector<float> slopes = Random(3).numbers(kKvHeads * kQueriesOfHead, 0.1f);
  bent.window = 300, bent.softcap = 5, bent.slopes = slopes.data();
  for (const std::string dtype : {"fp32", "bf16"}) {
    Digest plain, windowed;
    Rig(kernels, dtype).run(causal, plain);
    Rig(kernels, dtype).run(bent, windowed);
    pieces.push_back({"attention." + dtype, plain.value()});
    pieces.push_back({"attention." + dtype + ".bent", windowed.value()});
  }
}

}  // namespace corepipe
