#include "isa/cpu.h"

#include <cstdint>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace corepipe {

#if defined(__x86_64__)
namespace {

// cpuid leaf 7 (or 1) and the registers that the operating system saves (XCR0); __builtin_cpu_supports does
// the same, but not with every compiler's run-time library.
struct Cpu {
  uint32_t leaf1_ecx = 0, leaf7_ebx = 0, leaf7_ecx = 0, leaf7_edx = 0, leaf7_1_eax = 0, saved = 0;
  bool intel = false;

  Cpu() {
    uint32_t a, b, c, d;
    if (__get_cpuid(0, &a, &b, &c, &d)) intel = b == signature_INTEL_ebx;
    if (__get_cpuid(1, &a, &b, &c, &d)) leaf1_ecx = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) leaf7_ebx = b, leaf7_ecx = c, leaf7_edx = d;
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) leaf7_1_eax = a;
    constexpr uint32_t kOsXsave = 1u << 27;
    if (leaf1_ecx & kOsXsave) asm("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
  }
};

bool all(uint32_t word, std::initializer_list<int> bits) {
  for (int bit : bits) {
    if ((word >> bit & 1) == 0) return false;
  }
  return true;
}

bool has_avx2(const Cpu& cpu) {
  constexpr int kFma = 12, kF16c = 29, kAvx2 = 5;
  return all(cpu.saved, {1, 2}) && all(cpu.leaf1_ecx, {kFma, kF16c}) && all(cpu.leaf7_ebx, {kAvx2});
}

// Alder Lake and its successors, Sierra Forest.
bool has_avx2_vnni(const Cpu& cpu) {
  constexpr int kAvxVnni = 4;
  return has_avx2(cpu) && all(cpu.leaf7_1_eax, {kAvxVnni});
}

// Cascade Lake, Ice Lake, Tiger Lake, Rocket Lake; Cooper Lake, whose BF16 comes without VBMI.
bool has_avx512_vnni(const Cpu& cpu) {
  constexpr int kF = 16, kDq = 17, kBw = 30, kVl = 31, kVnni = 11;
  return has_avx2(cpu) && all(cpu.saved, {5, 6, 7}) && all(cpu.leaf7_ebx, {kF, kDq, kBw, kVl}) &&
         all(cpu.leaf7_ecx, {kVnni});
}

// Sapphire Rapids and later, Zen 4 and later.
bool has_avx512(const Cpu& cpu) {
  constexpr int kVbmi = 1, kBf16 = 5;
  return has_avx512_vnni(cpu) && all(cpu.leaf7_ecx, {kVbmi}) && all(cpu.leaf7_1_eax, {kBf16});
}

// Linux gives a process its tiles when it asks (Documentation/arch/x86/xstate.rst).
bool tiles_granted() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool has_amx(const Cpu& cpu) {
  constexpr int kBf16 = 22, kTile = 24, kInt8 = 25;
  return has_avx512(cpu) && all(cpu.saved, {17, 18}) && all(cpu.leaf7_edx, {kBf16, kTile, kInt8}) && tiles_granted();
}

}  // namespace
#endif

#if defined(__aarch64__)
namespace {

#if defined(__linux__)
// Documentation/arch/arm64/elf_hwcaps.rst; the headers of old systems have no name for I8MM.
constexpr unsigned long kAsimdDp = 1ul << 20, kI8mm = 1ul << 13;

bool has_dotprod() { return (getauxval(AT_HWCAP) & kAsimdDp) != 0; }
bool has_i8mm() { return has_dotprod() && (getauxval(AT_HWCAP2) & kI8mm) != 0; }
#elif defined(__APPLE__)
bool says(const char* name) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}

bool has_dotprod() { return says("hw.optional.arm.FEAT_DotProd"); }
bool has_i8mm() { return has_dotprod() && says("hw.optional.arm.FEAT_I8MM"); }
#else
bool has_dotprod() { return false; }
bool has_i8mm() { return false; }
#endif

}  // namespace
#endif

std::vector<const char*> tables_of_this_cpu() {
  std::vector<const char*> tables;
#if defined(__x86_64__)
  const Cpu cpu;
  if (has_amx(cpu)) tables.push_back("amx");
  if (has_avx512(cpu)) tables.push_back(cpu.intel ? "avx512-intel" : "avx512-amd");
  if (has_avx512_vnni(cpu)) tables.push_back("avx512-vnni");
  if (has_avx2_vnni(cpu)) tables.push_back("avx2-vnni");
  if (has_avx2(cpu)) tables.push_back("avx2");
#elif defined(__aarch64__)
  if (has_i8mm()) tables.push_back("neon-i8mm");
  if (has_dotprod()) tables.push_back("neon-dotprod");
#endif
  tables.push_back("portable");
  return tables;
}

}  // namespace corepipe
