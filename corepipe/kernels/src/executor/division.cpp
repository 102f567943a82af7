#include "executor/division.h"

namespace corepipe {

namespace {

constexpr double kWorth = 0.9;  // of the time: pieces of a panel read it once each

}  // namespace

Division divide(int panels, int blocks, int threads) {
  Division best{panels, blocks, 1};
  for (int parts = 2; parts <= blocks && best.idle(threads) > 0; ++parts) {
    const Division finer{panels, blocks, parts};
    if (finer.most(threads) < kWorth * best.most(threads)) best = finer;
  }
  return best;
}

}  // namespace corepipe
