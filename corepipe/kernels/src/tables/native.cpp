// Prints the tables of kernels that this CPU can run, best first: for a build that is to run here alone.
#include <cstdio>

#include "isa/cpu.h"

int main() {
  for (const char* table : corepipe::tables_of_this_cpu()) std::puts(table);
}
