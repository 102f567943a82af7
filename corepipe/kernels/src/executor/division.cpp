#include "executor/division.h"

namespace corepipe {

namespace {

constexpr double kWorth = 0.9;  // of the time: each piece of a panel reads it once

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
