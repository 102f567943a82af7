#include "probe.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "linear.h"
#include "pool.h"

namespace corepipe {

namespace {

using Clock = std::chrono::steady_clock;

// Repeats work() until `seconds` have passed; the shortest time of one run.
template <class Work>
double shortest(double seconds, Work&& work) {
  double best = 1e30;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    const auto start = Clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  } while (Clock::now() < end);
  return best;
}

// One word of each cache line.
uint64_t read_lines(const uint64_t* x, size_t lines) {
  uint64_t sums[4] = {};
  for (size_t i = 0; i + 4 <= lines; i += 4) {
    for (size_t j = 0; j < 4; ++j) sums[j] += x[8 * (i + j)];
  }
  return sums[0] + sums[1] + sums[2] + sums[3];
}

double probe_read(size_t bytes, int threads, double seconds) {
  constexpr size_t chunk = size_t{1} << 20;
  const int chunks = static_cast<int>(std::max<size_t>(bytes / chunk, 1));
  Pool pool(threads);
  Buffer buffer;
  uint8_t* data = buffer.reserve(chunks * chunk);
  pool.parallel(chunks, [&](int i, int) { std::fill_n(data + i * chunk, chunk, static_cast<uint8_t>(i)); });
  std::atomic<uint64_t> sink{0};
  const double best = shortest(seconds, [&] {
    pool.parallel(chunks, [&](int i, int) {
      sink.fetch_add(read_lines(reinterpret_cast<const uint64_t*>(data + i * chunk), chunk / 64),
                     std::memory_order_relaxed);
    });
  });
  return static_cast<double>(chunks) * chunk / best / 1e9;
}

constexpr int kRounds = 20000;
constexpr int kChains = 16;  // independent instructions, more than latency times throughput

#if defined(__x86_64__)

// Register operands alone: the rate of the instruction itself.
#define CP_CHAINS(instruction)                                             \
  for (int i = 0; i < kRounds; ++i) {                                      \
    _Pragma("GCC unroll 16") for (int c = 0; c < kChains; ++c) {           \
      asm volatile(instruction " %1, %1, %0" : "+v"(chains[c]) : "v"(ones)); \
    }                                                                      \
  }

__attribute__((target("avx512f"))) void vnni_rounds() {
  __m512i chains[kChains] = {}, ones = {};
  CP_CHAINS("vpdpbusd")
}

__attribute__((target("avx512f"))) void bf16_rounds() {
  __m512i chains[kChains] = {}, ones = {};
  CP_CHAINS("vdpbf16ps")
}
#undef CP_CHAINS

#else

void vnni_rounds() {}
void bf16_rounds() {}
#endif

// The AVX-512 kernels are there only where the CPU has both instructions.
bool has_instructions() { return std::string(available_kernels().front()->name) == "avx512"; }

double probe_rate(void (*rounds)(), int products, int threads, double seconds) {
  Pool pool(threads);
  const int items = 8 * threads;
  const double best = shortest(seconds, [&] { pool.parallel(items, [&](int, int) { rounds(); }); });
  return 2.0 * products * kChains * kRounds * items / best / 1e9;
}

double probe_vnni(int threads, double seconds) {
  return has_instructions() ? probe_rate(vnni_rounds, 64, threads, seconds) : 0.0;
}

double probe_bf16(int threads, double seconds) {
  return has_instructions() ? probe_rate(bf16_rounds, 32, threads, seconds) : 0.0;
}

}  // namespace

void bind_probe(nanobind::module_& m) {
  namespace nb = nanobind;
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  m.def("probe_read", &probe_read, nb::arg("bytes"), nb::arg("threads"), nb::arg("seconds"), released,
        "GB/s that `threads` read from `bytes` of memory in huge pages; the best pass.");
  m.def("probe_vnni", &probe_vnni, nb::arg("threads"), nb::arg("seconds"), released,
        "GOP/s of vpdpbusd on registers; 0 where the CPU lacks it.");
  m.def("probe_bf16", &probe_bf16, nb::arg("threads"), nb::arg("seconds"), released,
        "GFLOP/s of vdpbf16ps on registers; 0 where the CPU lacks it.");
}

}  // namespace corepipe
