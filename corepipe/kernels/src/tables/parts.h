// The parts of a table of kernels.  Each file of this directory is one of them, compiled by itself for each instruction
// set that needs it, with COREPIPE_SIMD as its namespace: kernels.cmake says with which flags, and isa.cpp puts
// the parts together.
#pragma once

#include "attention/attention_table.h"
#include "linear/adapter_table.h"
#include "linear/linear_table.h"
#include "rows/row_table.h"
#include "rows/sampler_table.h"
#include "rows/scan_table.h"

namespace corepipe {

struct RowParts {
  RowTable rows;
  SamplerTable sampler;
  ScanTable scan;
  AdapterTable adapters;
};

// No instruction set has all of these.
#define COREPIPE_PARTS(simd)                  \
  namespace simd {                            \
  extern const DenseLinears kDense;           \
  extern const DenseLinears kIntelDense;      \
  extern const Int4Linears kInt4;             \
  extern const AttentionTable kAttention;     \
  extern const RowParts kRowParts;            \
  }

COREPIPE_PARTS(amx)
COREPIPE_PARTS(avx512)
COREPIPE_PARTS(avx512_intel)
COREPIPE_PARTS(avx512_vnni)
COREPIPE_PARTS(avx2)
COREPIPE_PARTS(avx2_vnni)
COREPIPE_PARTS(neon_dotprod)
COREPIPE_PARTS(neon_i8mm)
COREPIPE_PARTS(portable)
COREPIPE_PARTS(portable_fused)
#undef COREPIPE_PARTS

}  // namespace corepipe
