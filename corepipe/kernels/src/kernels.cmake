# The kernels' sources and what they are compiled with, for who builds them: KERNEL_SOURCES, each with its flags,
# KERNEL_OPTIONS and KERNEL_DEFINITIONS.
include(CheckCXXCompilerFlag)
include(CheckCXXSourceCompiles)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)

file(GLOB KERNEL_SOURCES CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*.cpp" "${CMAKE_CURRENT_LIST_DIR}/simulation/*.cpp")
# -ffp-contract=off: a fused multiply-add happens where it is written and nowhere else.
set(KERNEL_OPTIONS $<$<CONFIG:Release>:-O3> -Wall -Wextra -ffp-contract=off -fno-math-errno)
set(KERNEL_DEFINITIONS)

# Flags of the table in isa_<name>.cpp.
function(compile_table name)
  set_source_files_properties("${CMAKE_CURRENT_FUNCTION_LIST_DIR}/isa_${name}.cpp" PROPERTIES COMPILE_OPTIONS "${ARGN}")
endfunction()

set(TABLES)  # those that need flags
set(ARCHITECTURE "${CMAKE_SYSTEM_PROCESSOR}")
if(CMAKE_OSX_ARCHITECTURES)  # macOS compiles for another architecture without any more ado
  set(ARCHITECTURE "${CMAKE_OSX_ARCHITECTURES}")
endif()
if(ARCHITECTURE MATCHES "^(x86_64|AMD64|amd64)$")
  list(APPEND TABLES avx2 avx512_vnni avx512)
  set(AVX2_FLAGS -mavx2 -mfma -mf16c)
  set(AVX512_VNNI_FLAGS ${AVX2_FLAGS} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC takes its own _mm512_undefined_* for uninitialised variables (GCC bug 105593).
    list(APPEND AVX512_VNNI_FLAGS -Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
  list(APPEND AVX512_VNNI_FLAGS ${AVX512_OPTIONS})  # of who builds them with checks, which these tables multiply
  set(AVX512_FLAGS ${AVX512_VNNI_FLAGS} -mavx512vbmi -mavx512bf16)
  compile_table(avx2 ${AVX2_FLAGS})
  compile_table(avx512_vnni ${AVX512_VNNI_FLAGS})
  compile_table(avx512 ${AVX512_FLAGS})
  check_cxx_compiler_flag("-mamx-tile -mamx-int8 -mamx-bf16" COMPILES_AMX)  # GCC 11, Clang 12
  if(COMPILES_AMX AND CMAKE_SYSTEM_NAME STREQUAL "Linux")  # which grants tiles to those who ask; nobody else does
    list(APPEND TABLES amx)
    compile_table(amx ${AVX512_FLAGS} -mamx-tile -mamx-int8 -mamx-bf16)
  endif()
  list(REMOVE_ITEM TABLES "" ${TABLES_LEFT_OUT})  # by who builds for this machine alone; each needs those before it
  set(CHOICE)  # what isa.cpp has to choose from
  foreach(table ${TABLES})
    string(TOUPPER "COREPIPE_${table}" definition)
    list(APPEND CHOICE ${definition})
  endforeach()
  set_source_files_properties("${CMAKE_CURRENT_LIST_DIR}/isa.cpp" PROPERTIES COMPILE_DEFINITIONS "${CHOICE}")
  check_cxx_source_compiles(
    "int main() { asm(\"{vex} vpdpbusd %ymm0, %ymm0, %ymm0\"); }" ASSEMBLES_AVX_VNNI)  # binutils 2.36, LLVM 12
  if(ASSEMBLES_AVX_VNNI)
    list(APPEND KERNEL_DEFINITIONS COREPIPE_AVX_VNNI)
  endif()
elseif(ARCHITECTURE MATCHES "^(aarch64|arm64)$")
  check_cxx_compiler_flag("-march=armv8.2-a+dotprod+i8mm" COMPILES_I8MM)  # GCC 10, Clang 11
  if(COMPILES_I8MM)
    list(APPEND TABLES neon_dotprod neon_i8mm)
    list(APPEND KERNEL_DEFINITIONS COREPIPE_NEON_TABLES)
    compile_table(neon_dotprod -march=armv8.2-a+dotprod)
    compile_table(neon_i8mm -march=armv8.2-a+dotprod+i8mm)
  endif()
endif()
list(FILTER KERNEL_SOURCES EXCLUDE REGEX "/isa_(amx|avx|neon)[a-z0-9_]*\\.cpp$")
foreach(table ${TABLES})
  list(APPEND KERNEL_SOURCES "${CMAKE_CURRENT_LIST_DIR}/isa_${table}.cpp")
endforeach()
