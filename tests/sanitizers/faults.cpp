// A fault of each kind that the sanitizers look for: each has to be told before silence means anything.

#include <thread>

extern "C" {

int beyond_the_end(int count) {
  int* values = new int[count]();
  const int found = values[count];
  delete[] values;
  return found;
}

int undefined(int bits) { return 1 << bits; }

int race(int times) {
  int count = 0;
  const auto add = [&count, times] {
    for (int i = 0; i < times; ++i) ++count;
  };
  std::thread other(add);
  add();
  other.join();
  return count;
}
}
