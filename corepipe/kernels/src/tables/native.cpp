// Prints the tables of kernels that this CPU can run, best first: for a build that runs on this machine only.
#include <cstdio>

#include "isa/cpu.h"

int main() {
  for (const char* table : corepipe::tables_of_this_cpu()) std::puts(table);
}
