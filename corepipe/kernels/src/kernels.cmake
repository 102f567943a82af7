# The kernels' sources and what they are compiled with, for who builds them: KERNEL_SOURCES, KERNEL_OBJECTS of the tables,
# KERNEL_OPTIONS and KERNEL_DEFINITIONS.
#
# COREPIPE_TABLES says which tables of kernels are built: all; native, the one that this CPU runs fastest; runnable,
# those that it runs; or a list of names as docs/kernels.md has them, in which native and runnable may stand, too.
include(CheckCXXCompilerFlag)
include(CheckCXXSourceCompiles)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
find_program(CCACHE ccache)
if(CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE}")
endif()

set(SOURCE "${CMAKE_CURRENT_LIST_DIR}")
file(GLOB KERNEL_SOURCES CONFIGURE_DEPENDS "${SOURCE}/*/*.cpp")
list(FILTER KERNEL_SOURCES EXCLUDE REGEX "/kernels/src/tables/")
include_directories("${SOURCE}")  # includes are written from here on
# -ffp-contract=off: a fused multiply-add happens where it is written and nowhere else.
set(KERNEL_OPTIONS $<$<CONFIG:Release>:-O3> -Wall -Wextra -ffp-contract=off -fno-math-errno)
set(KERNEL_DEFINITIONS)

# What each table is put together from (isa.cpp): files of tables/ for an instruction set, which has flags.
set(ARCHITECTURE "${CMAKE_SYSTEM_PROCESSOR}")
if(CMAKE_OSX_ARCHITECTURES)  # macOS compiles for another architecture without any more ado
  set(ARCHITECTURE "${CMAKE_OSX_ARCHITECTURES}")
endif()
set(TABLES)  # that the compiler has instructions for
set(PARTS_portable portable/dense portable/int4 portable/attention portable/rows)
if(ARCHITECTURE MATCHES "^(x86_64|AMD64|amd64)$")
  set(FLAGS_avx2 -mavx2 -mfma -mf16c)
  set(FLAGS_avx2_vnni ${FLAGS_avx2} -DCOREPIPE_VNNI)
  set(FLAGS_avx512_vnni ${FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC takes its own _mm512_undefined_* for uninitialised variables (GCC bug 105593).
    list(APPEND FLAGS_avx512_vnni -Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
  list(APPEND FLAGS_avx512_vnni ${AVX512_OPTIONS})  # of who builds them with checks, which these tables multiply
  set(FLAGS_avx512 ${FLAGS_avx512_vnni} -mavx512vbmi -mavx512bf16)
  set(FLAGS_avx512_intel ${FLAGS_avx512} -DCOREPIPE_INTEL)
  set(FLAGS_amx ${FLAGS_avx512} -mamx-tile -mamx-int8 -mamx-bf16)
  set(FLAGS_portable_fused -DCOREPIPE_FUSED)

  check_cxx_compiler_flag("-mamx-tile -mamx-int8 -mamx-bf16" COMPILES_AMX)  # GCC 11, Clang 12
  if(COMPILES_AMX AND CMAKE_SYSTEM_NAME STREQUAL "Linux")  # which grants tiles to those who ask; nobody else does
    list(APPEND TABLES amx)
    set(PARTS_amx amx/dense amx/attention avx512/int4 avx512/rows)
  endif()
  list(APPEND TABLES avx512-amd avx512-intel avx512-vnni)
  set(PARTS_avx512-amd avx512/dense avx512/int4 avx512/attention avx512/rows)
  set(PARTS_avx512-intel avx512/dense avx512/int4 avx512_intel/attention avx512/rows)
  set(PARTS_avx512-vnni avx512_vnni/dense avx512_vnni/int4 avx512_vnni/attention avx512_vnni/rows)
  check_cxx_source_compiles(
    "int main() { asm(\"{vex} vpdpbusd %ymm0, %ymm0, %ymm0\"); }" ASSEMBLES_AVX_VNNI)  # binutils 2.36, LLVM 12
  if(ASSEMBLES_AVX_VNNI)
    list(APPEND TABLES avx2-vnni)
    set(PARTS_avx2-vnni avx2_vnni/dense avx2_vnni/int4 avx2/attention avx2/rows)
  endif()
  list(APPEND TABLES avx2 portable portable-fused)
  set(PARTS_avx2 avx2/dense avx2/int4 avx2/attention avx2/rows)
  set(PARTS_portable-fused portable_fused/dense portable_fused/int4 portable_fused/attention portable_fused/rows)
elseif(ARCHITECTURE MATCHES "^(aarch64|arm64)$")
  set(FLAGS_neon_dotprod -march=armv8.2-a+dotprod)
  set(FLAGS_neon_i8mm -march=armv8.2-a+dotprod+i8mm)
  check_cxx_compiler_flag("-march=armv8.2-a+dotprod+i8mm" COMPILES_I8MM)  # GCC 10, Clang 11
  if(COMPILES_I8MM)
    list(APPEND TABLES neon-i8mm neon-dotprod)
    set(PARTS_neon-i8mm neon_i8mm/dense neon_i8mm/int4 portable/attention portable/rows)
    set(PARTS_neon-dotprod neon_dotprod/dense neon_dotprod/int4 portable/attention portable/rows)
  endif()
  list(APPEND TABLES portable)
else()
  list(APPEND TABLES portable)
endif()

# Sets `out` to those of TABLES that this CPU runs, best first.
function(find_runnable out)
  if(CMAKE_CROSSCOMPILING)
    message(FATAL_ERROR "COREPIPE_TABLES: another CPU's native tables are not known here; name them, or all")
  endif()
  try_run(RAN COMPILED "${CMAKE_BINARY_DIR}/native" SOURCES "${SOURCE}/tables/native.cpp" "${SOURCE}/isa/cpu.cpp"
          CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${SOURCE}" RUN_OUTPUT_VARIABLE printed)
  string(REGEX MATCHALL "[^\n]+" found "${printed}")
  set(runnable)
  foreach(table ${found})
    if(table IN_LIST TABLES)
      list(APPEND runnable ${table})
    endif()
  endforeach()
  if("portable-fused" IN_LIST TABLES)
    list(APPEND runnable portable-fused)
  endif()
  set(${out} ${runnable} PARENT_SCOPE)
endfunction()

# Sets `out` to the tables that a list of words stands for.
function(choose_tables words out)
  set(chosen)
  foreach(word ${words})
    if(word STREQUAL "all")
      list(APPEND chosen ${TABLES})
    elseif(word MATCHES "^(native|runnable)$")
      find_runnable(runnable)
      if(word STREQUAL "native")
        list(GET runnable 0 runnable)
      endif()
      list(APPEND chosen ${runnable})
    elseif(word STREQUAL "avx512" AND "avx512-amd" IN_LIST TABLES)
      list(APPEND chosen avx512-amd avx512-intel)
    elseif(word IN_LIST TABLES)
      list(APPEND chosen ${word})
    else()
      string(REPLACE ";" ", " names "${TABLES}")
      message(FATAL_ERROR "COREPIPE_TABLES: there are no kernels ${word} for this architecture and compiler; use all, "
                          "native, runnable, or some of: ${names}")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES chosen)
  set(${out} ${chosen} PARENT_SCOPE)
endfunction()

set(COREPIPE_TABLES "native" CACHE STRING "all, native, runnable, or names of tables")
string(REPLACE "," ";" CHOSEN "${COREPIPE_TABLES}")
choose_tables("${CHOSEN}" CHOSEN)
string(REPLACE ";" ", " names "${CHOSEN}")
message(STATUS "Tables of kernels: ${names}")

set(PARTS)
set(BUILT)  # what isa.cpp has to choose from
foreach(table ${CHOSEN})
  list(APPEND PARTS ${PARTS_${table}})
  string(TOUPPER "COREPIPE_${table}" definition)
  string(REPLACE "-" "_" definition "${definition}")
  list(APPEND BUILT ${definition})
endforeach()
list(REMOVE_DUPLICATES PARTS)
set_source_files_properties("${SOURCE}/isa/isa.cpp" PROPERTIES COMPILE_DEFINITIONS "${BUILT}")
set_source_files_properties("${SOURCE}/isa/probe.cpp" PROPERTIES COMPILE_DEFINITIONS "${BUILT}")

set(KERNEL_OBJECTS)
foreach(part ${PARTS})
  string(REPLACE "/" ";" names ${part})
  list(GET names 0 simd)
  list(GET names 1 file)
  add_library(${simd}_${file} OBJECT "${SOURCE}/tables/${file}.cpp")
  set_target_properties(${simd}_${file} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)
  target_compile_definitions(${simd}_${file} PRIVATE COREPIPE_SIMD=${simd})
  target_compile_options(${simd}_${file} PRIVATE ${KERNEL_OPTIONS} -fno-stack-protector ${FLAGS_${simd}})
  list(APPEND KERNEL_OBJECTS $<TARGET_OBJECTS:${simd}_${file}>)
endforeach()
