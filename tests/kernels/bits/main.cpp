// `bits`: the tables of kernels that this CPU runs; `bits TABLE`: a line for each piece of what that table computes,
// its name and a hash of its results' bits.
#include <cinttypes>
#include <cstdio>
#include <exception>

#include "pieces.h"

int main(int count, char** arguments) try {
  using namespace corepipe;
  if (count < 2) {
    for (const KernelTable* table : available_kernels()) std::printf("%s\n", table->name);
    return 0;
  }
  const KernelTable& kernels = kernels_named(arguments[1]);
  std::vector<Piece> pieces;
  add_linears(kernels, pieces);
  add_attention(kernels, pieces);
  add_rows(kernels, pieces);
  add_sampler(kernels, pieces);
  for (const Piece& piece : pieces) std::printf("%s %016" PRIx64 "\n", piece.name.c_str(), piece.digest);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bits: %s\n", error.what());
  return 2;
}
