// How the panels of a Linear, times its blocks of rows, are divided among threads.
#pragma once

namespace corepipe {

struct Division {
  int panels, blocks;
  int parts;  // pieces of a panel, by rows: of `blocks` blocks, or one less

  int pieces() const { return panels * parts; }
  int first_block(int part) const { return blocks * part / parts; }

  // Blocks that the thread with the most of them multiplies, one panel at a time each.
  int most(int threads) const { return (pieces() + threads - 1) / threads * ((blocks + parts - 1) / parts); }

  // Times in which a thread could have multiplied a block and has none left.
  int idle(int threads) const { return most(threads) * threads - panels * blocks; }
};

// Whole panels, which are read once; by rows, too, where threads would be idle otherwise, in no more pieces than that
// takes.
Division divide(int panels, int blocks, int threads);

}  // namespace corepipe
