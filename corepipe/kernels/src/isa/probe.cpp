#include "isa/probe.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <nanobind/stl/string.h>

#include "linear/linear.h"
#include "executor/pool.h"

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
  pool.parallel(chunks, [&](int i, int) noexcept { std::fill_n(data + i * chunk, chunk, static_cast<uint8_t>(i)); });
  std::atomic<uint64_t> sink{0};
  const double best = shortest(seconds, [&] {
    pool.parallel(chunks, [&](int i, int) noexcept {
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

__attribute__((target("avx512f"))) void wide_fma_rounds() {
  __m512i chains[kChains] = {}, ones = {};
  CP_CHAINS("vfmadd231ps")
}
#undef CP_CHAINS

// Eight sums, all of which are in registers; kChains products in a round.
#define CP_EIGHT(SUM)                                                                                    \
  for (int i = 0; i < kRounds * kChains / 8; ++i) {                                                      \
    asm volatile(SUM("0") SUM("1") SUM("2") SUM("3") SUM("4") SUM("5") SUM("6") SUM("7")::               \
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9"); \
  }

// No instruction multiplies bytes and adds in place: products of s16 in pairs, and their addition.
#define CP_PAIR_SUM(sum) "vpmaddwd %%ymm8, %%ymm8, %%ymm9\n\tvpaddd %%ymm9, %%ymm" sum ", %%ymm" sum "\n\t"
// Four bits times bytes: pairs of products fit into s16.
#define CP_NIBBLE_SUM(sum) "vpmaddubsw %%ymm8, %%ymm8, %%ymm9\n\tvpaddw %%ymm9, %%ymm" sum ", %%ymm" sum "\n\t"
#define CP_BYTE_SUM(sum) "%{vex%} vpdpbusd %%ymm8, %%ymm8, %%ymm" sum "\n\t"
// bf16 is widened to fp32.
#define CP_FMA_SUM(sum) "vfmadd231ps %%ymm8, %%ymm8, %%ymm" sum "\n\t"

__attribute__((target("avx2,fma"))) void pair_rounds() {
  asm volatile("vpxor %%ymm8, %%ymm8, %%ymm8" ::: "xmm8");
  CP_EIGHT(CP_PAIR_SUM)
}

__attribute__((target("avx2"))) void nibble_rounds() {
  asm volatile("vpxor %%ymm8, %%ymm8, %%ymm8" ::: "xmm8");
  CP_EIGHT(CP_NIBBLE_SUM)
}

#if defined(COREPIPE_AVX2_VNNI)
__attribute__((target("avx2"))) void byte_rounds() {
  asm volatile("vpxor %%ymm8, %%ymm8, %%ymm8" ::: "xmm8");
  CP_EIGHT(CP_BYTE_SUM)
}
#endif

__attribute__((target("avx2,fma"))) void fma_rounds() {
  asm volatile("vpxor %%ymm8, %%ymm8, %%ymm8" ::: "xmm8");
  CP_EIGHT(CP_FMA_SUM)
}
#undef CP_FMA_SUM
#undef CP_BYTE_SUM
#undef CP_NIBBLE_SUM
#undef CP_PAIR_SUM
#undef CP_EIGHT

// Four sums, as many instructions in flight as one takes; kChains of them in a round.
#define CP_TILES(instruction)                                  \
  for (int i = 0; i < kRounds * kChains / 4; ++i) {            \
    asm volatile(instruction " %%tmm6, %%tmm4, %%tmm0\n"       \
                 instruction " %%tmm7, %%tmm4, %%tmm1\n"       \
                 instruction " %%tmm6, %%tmm5, %%tmm2\n"       \
                 instruction " %%tmm7, %%tmm5, %%tmm3" ::);    \
  }

void tile_int8_rounds() { CP_TILES("tdpbsud") }
void tile_bf16_rounds() { CP_TILES("tdpbf16ps") }
#undef CP_TILES

#else

void vnni_rounds() {}
void bf16_rounds() {}
void wide_fma_rounds() {}
void pair_rounds() {}
void nibble_rounds() {}
void fma_rounds() {}
void tile_int8_rounds() {}
void tile_bf16_rounds() {}
#endif

// Null where the CPU lacks the ISA's instructions.
const KernelTable* table_named(const std::string& name) {
  for (const KernelTable* table : available_kernels()) {
    if (name == table->name) return table;
  }
  return nullptr;
}

struct Instruction {
  const char* isa;
  const char* kind;
  void (*rounds)();
  int products;
};

constexpr Instruction kInstructions[] = {
    {"amx", "int8", tile_int8_rounds, 16 * 16 * 64},
    {"amx", "bf16", tile_bf16_rounds, 16 * 16 * 32},
    {"avx512", "int8", vnni_rounds, 64},
    {"avx512", "bf16", bf16_rounds, 32},
    {"avx512-vnni", "int8", vnni_rounds, 64},
    {"avx512-vnni", "bf16", wide_fma_rounds, 16},
#if defined(COREPIPE_AVX2_VNNI)
    {"avx2-vnni", "int8", byte_rounds, 32},
#endif
    {"avx2-vnni", "bf16", fma_rounds, 8},
    {"avx2", "int8", pair_rounds, 16},
    {"avx2", "int4", nibble_rounds, 32},
    {"avx2", "bf16", fma_rounds, 8},
};

double rate_of(const Instruction& instruction, const KernelTable& table, int threads, double seconds) {
  const LinearKernel& user = table.linear.kinds[static_cast<int>(Kind::bf16)].few;
  Pool pool(threads);
  const int items = 8 * threads;
  const double best = shortest(seconds, [&] {
    pool.parallel(items, [&](int, int) noexcept {
      const Turn turn(user.begin, user.end);
      instruction.rounds();
    });
  });
  return 2.0 * instruction.products * kChains * kRounds * items / best / 1e9;
}

double probe_products(const std::string& isa, const std::string& kind, int threads, double seconds) {
  const KernelTable* table = table_named(isa);
  for (const Instruction& instruction : kInstructions) {
    if (table == nullptr || isa != instruction.isa || kind != instruction.kind) continue;
    return rate_of(instruction, *table, threads, seconds);
  }
  return 0.0;
}

}  // namespace

void bind_probe(nanobind::module_& m) {
  namespace nb = nanobind;
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  m.def("probe_read", &probe_read, nb::arg("bytes"), nb::arg("threads"), nb::arg("seconds"), released,
        "GB/s that `threads` read from `bytes` of memory in huge pages; the best pass.");
  m.def("probe_products", &probe_products, nb::arg("isa"), nb::arg("kind"), nb::arg("threads"), nb::arg("seconds"),
        released,
        "GOP/s of an ISA's instruction for products of int8 or bf16, on registers; 0 where the CPU or the ISA lacks it.");
}

}  // namespace corepipe
