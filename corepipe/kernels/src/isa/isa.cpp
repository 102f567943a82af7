#include "isa/isa.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "isa/cpu.h"
#include "tables/parts.h"

namespace corepipe {

namespace {

KernelTable table_of(const char* name, const DenseLinears& dense, const Int4Linears& int4, const AttentionTable& attention,
                     const RowParts& rows) {
  LinearTable linear = {{}, dense.chain, dense.unaided_rows, dense.finish};
  for (int i = 0; i < kDenseKinds; ++i) linear.kinds[i] = dense.kinds[i];
  for (int i = 0; i < kInt4Kinds; ++i) linear.kinds[kDenseKinds + i] = int4.kinds[i];
  return {name, linear, attention, rows.rows, rows.sampler, rows.scan, rows.adapters};
}

// A table of this build, by its name in cpu.h.
struct Built {
  const char* name;
  KernelTable table;
};

// Best first.  kernels.cmake says which parts each needs.
const std::vector<Built>& built() {
  static const std::vector<Built> tables = {
#if defined(COREPIPE_AMX)
      {"amx", table_of("amx", amx::kDense, avx512::kInt4, amx::kAttention, avx512::kRowParts)},
#endif
#if defined(COREPIPE_AVX512_INTEL)
      {"avx512-intel",
       table_of("avx512", avx512::kIntelDense, avx512::kInt4, avx512_intel::kAttention, avx512::kRowParts)},
#endif
#if defined(COREPIPE_AVX512_AMD)
      {"avx512-amd", table_of("avx512", avx512::kDense, avx512::kInt4, avx512::kAttention, avx512::kRowParts)},
#endif
#if defined(COREPIPE_AVX512_VNNI)
      {"avx512-vnni", table_of("avx512-vnni", avx512_vnni::kDense, avx512_vnni::kInt4, avx512_vnni::kAttention,
                               avx512_vnni::kRowParts)},
#endif
#if defined(COREPIPE_AVX2_VNNI)
      {"avx2-vnni",
       table_of("avx2-vnni", avx2_vnni::kDense, avx2_vnni::kInt4, avx2::kAttention, avx2::kRowParts)},
#endif
#if defined(COREPIPE_AVX2)
      {"avx2", table_of("avx2", avx2::kDense, avx2::kInt4, avx2::kAttention, avx2::kRowParts)},
#endif
#if defined(COREPIPE_NEON_I8MM)
      {"neon-i8mm",
       table_of("neon-i8mm", neon_i8mm::kDense, neon_i8mm::kInt4, portable::kAttention, portable::kRowParts)},
#endif
#if defined(COREPIPE_NEON_DOTPROD)
      {"neon-dotprod",
       table_of("neon-dotprod", neon_dotprod::kDense, neon_dotprod::kInt4, portable::kAttention, portable::kRowParts)},
#endif
#if defined(COREPIPE_PORTABLE)
      {"portable", table_of("portable", portable::kDense, portable::kInt4, portable::kAttention, portable::kRowParts)},
#endif
#if defined(COREPIPE_PORTABLE_FUSED)
      {"portable-fused", table_of("portable", portable_fused::kDense, portable_fused::kInt4, portable_fused::kAttention,
                                  portable_fused::kRowParts)},
#endif
  };
  return tables;
}

const KernelTable* built_named(const std::string& name) {
  for (const Built& one : built()) {
    if (name == one.name) return &one.table;
  }
  return nullptr;
}

std::string listed(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

// Options that add tables to a build.
std::string build_command(const std::string& tables) { return "build them with COREPIPE_TABLES=" + tables + " make setup"; }

std::string public_name(const std::string& name) {
  return name == "avx512-amd" || name == "avx512-intel" ? "avx512" : name;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  for (const std::string& one : names) {
    if (one == name) return true;
  }
  return false;
}

}  // namespace

std::vector<const KernelTable*> available_kernels() {
  std::vector<const KernelTable*> tables;
  for (const char* name : tables_of_this_cpu()) {
    if (const KernelTable* table = built_named(name)) tables.push_back(table);
  }
  return tables;
}

std::vector<std::string> available_names() {
  std::vector<std::string> names;
  for (const KernelTable* table : available_kernels()) names.emplace_back(table->name);
  return names;
}

std::vector<std::string> left_out() {
  std::vector<std::string> names;
  for (const char* name : tables_of_this_cpu()) {
    if (built_named(name) == nullptr) names.push_back(public_name(name));
  }
  return names;
}

const KernelTable& kernels_named(const std::string& name) {
  for (const KernelTable* table : available_kernels()) {
    if (name == table->name) return *table;
  }
  if (contains(left_out(), name)) {
    throw std::invalid_argument("COREPIPE_ISA=" + name + ": this build left these kernels out; " +
                                build_command("native," + name));
  }
  throw std::invalid_argument("COREPIPE_ISA=" + name +
                              " is unknown or not supported by this CPU; use one of: " + listed(available_names()));
}

const KernelTable& kernels() {
  static const KernelTable& chosen = []() -> const KernelTable& {
    const char* name = std::getenv("COREPIPE_ISA");
    if (name != nullptr && *name != '\0') return kernels_named(name);
    const std::vector<const KernelTable*> tables = available_kernels();
    if (!tables.empty()) return *tables.front();
    throw std::invalid_argument("the kernels that were built do not run on this CPU, which runs " + listed(left_out()) +
                                "; " + build_command("native"));
  }();
  return chosen;
}

namespace {

const KernelTable& other_for_same_bits(const KernelTable& own, const std::string& name) {
  if (const KernelTable* other = built_named(name)) return *other;
  throw std::invalid_argument("--bits same on " + std::string(own.name) + " kernels takes the kernels " + name +
                              ", too, which this build left out; " + build_command("native," + name));
}

KernelTable in_one_order(const KernelTable& own) {
#if defined(__x86_64__)
  const std::string name = own.name;
  if (name == "portable") return other_for_same_bits(own, "portable-fused");
  if (name == "amx" || name == "avx512") {
    // Sums of integers are exact, in whatever order.
    constexpr int kInt8 = static_cast<int>(Kind::int8);
    KernelTable table = other_for_same_bits(own, "avx512-vnni");
    table.name = own.name;
    table.linear.kinds[kInt8] = own.linear.kinds[kInt8];
    table.linear.chain = own.linear.chain;
    table.linear.unaided_rows = own.linear.unaided_rows;
    return table;
  }
#endif
  return own;
}

}  // namespace

const KernelTable& same_bits_kernels() {
  static const KernelTable chosen = in_one_order(kernels());
  return chosen;
}

}  // namespace corepipe
