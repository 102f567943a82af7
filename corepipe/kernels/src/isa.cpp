#include "isa.h"

#include <cstdlib>
#include <initializer_list>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(COREPIPE_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(COREPIPE_NEON_TABLES) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(COREPIPE_NEON_TABLES) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace corepipe {

extern const KernelTable kPortableKernels, kPortableFusedKernels;

#if defined(__x86_64__)
extern const KernelTable kAmxKernels, kAvx512Kernels, kAvx512IntelKernels, kAvx512VnniKernels, kAvx2VnniKernels,
    kAvx2Kernels;

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

#if defined(COREPIPE_AVX_VNNI)
// Alder Lake and its successors, Sierra Forest.
bool has_avx2_vnni(const Cpu& cpu) {
  constexpr int kAvxVnni = 4;
  return has_avx2(cpu) && all(cpu.leaf7_1_eax, {kAvxVnni});
}
#endif

#if defined(COREPIPE_AVX512_VNNI)
// Cascade Lake, Ice Lake, Tiger Lake, Rocket Lake; Cooper Lake, whose BF16 comes without VBMI.
bool has_avx512_vnni(const Cpu& cpu) {
  constexpr int kF = 16, kDq = 17, kBw = 30, kVl = 31, kVnni = 11;
  return has_avx2(cpu) && all(cpu.saved, {5, 6, 7}) && all(cpu.leaf7_ebx, {kF, kDq, kBw, kVl}) &&
         all(cpu.leaf7_ecx, {kVnni});
}
#endif

#if defined(COREPIPE_AVX512)
// Sapphire Rapids and later, Zen 4 and later.
bool has_avx512(const Cpu& cpu) {
  constexpr int kVbmi = 1, kBf16 = 5;
  return has_avx512_vnni(cpu) && all(cpu.leaf7_ecx, {kVbmi}) && all(cpu.leaf7_1_eax, {kBf16});
}
#endif

#if defined(COREPIPE_AMX)
// Linux gives a process its tiles when it asks (Documentation/arch/x86/xstate.rst).
bool tiles_granted() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has_amx(const Cpu& cpu) {
  constexpr int kBf16 = 22, kTile = 24, kInt8 = 25;
  return has_avx512(cpu) && all(cpu.saved, {17, 18}) && all(cpu.leaf7_edx, {kBf16, kTile, kInt8}) && tiles_granted();
}
#endif

}  // namespace
#endif

#if defined(COREPIPE_NEON_TABLES)
extern const KernelTable kNeonI8mmKernels, kNeonDotprodKernels;

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

std::vector<const KernelTable*> available_kernels() {
  std::vector<const KernelTable*> tables;
#if defined(__x86_64__)
  const Cpu cpu;
#if defined(COREPIPE_AMX)
  if (has_amx(cpu)) tables.push_back(&kAmxKernels);
#endif
#if defined(COREPIPE_AVX512)
  // Intel's vdpbf16ps takes more than twice as long as two multiply-adds with the same result, its vpdpbusd half as long
  // as AMD's: one ISA, two ways to use it.
  if (has_avx512(cpu)) tables.push_back(cpu.intel ? &kAvx512IntelKernels : &kAvx512Kernels);
#endif
#if defined(COREPIPE_AVX512_VNNI)
  if (has_avx512_vnni(cpu)) tables.push_back(&kAvx512VnniKernels);
#endif
#if defined(COREPIPE_AVX_VNNI)
  if (has_avx2_vnni(cpu)) tables.push_back(&kAvx2VnniKernels);
#endif
  if (has_avx2(cpu)) tables.push_back(&kAvx2Kernels);
#endif
#if defined(COREPIPE_NEON_TABLES)
  if (has_i8mm()) tables.push_back(&kNeonI8mmKernels);
  if (has_dotprod()) tables.push_back(&kNeonDotprodKernels);
#endif
  tables.push_back(&kPortableKernels);
  return tables;
}

const KernelTable& kernels_named(const std::string& name) {
  std::string names;
  for (const KernelTable* table : available_kernels()) {
    if (name == table->name) return *table;
    names += (names.empty() ? "" : ", ") + std::string(table->name);
  }
  throw std::invalid_argument("COREPIPE_ISA=" + name + " is unknown or not supported by this CPU; use one of: " + names);
}

const KernelTable& kernels() {
  static const KernelTable& chosen = []() -> const KernelTable& {
    const char* name = std::getenv("COREPIPE_ISA");
    return name != nullptr && *name != '\0' ? kernels_named(name) : *available_kernels().front();
  }();
  return chosen;
}

namespace {

KernelTable in_one_order(const KernelTable& own) {
  if (&own == &kPortableKernels) return kPortableFusedKernels;
#if defined(__x86_64__)
  if (&own == &kAvx2Kernels) return own;
#if defined(COREPIPE_AVX_VNNI)
  if (&own == &kAvx2VnniKernels) return own;
#endif
#if defined(COREPIPE_AVX512_VNNI)
  // Those with AVX-512: sums of integers are exact, in whatever order.
  constexpr int kInt8 = static_cast<int>(Kind::int8);
  KernelTable table = kAvx512VnniKernels;
  table.name = own.name;
  table.linear.kinds[kInt8] = own.linear.kinds[kInt8];
  table.linear.chain = own.linear.chain;
  table.linear.unaided_rows = own.linear.unaided_rows;
  return table;
#endif
#endif
  return own;
}

}  // namespace

const KernelTable& same_bits_kernels() {
  static const KernelTable chosen = in_one_order(kernels());
  return chosen;
}

}  // namespace corepipe
