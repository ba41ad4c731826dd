# The kernels' sources and how each is compiled, for the extension and for csrc/tests.
set(OUTRIDER_KERNEL_SOURCES)
foreach(name matrix decode pack dispatch portable avx2 avxvnni avx512 amx amx_choice neon)
  list(APPEND OUTRIDER_KERNEL_SOURCES ${CMAKE_CURRENT_LIST_DIR}/${name}.cpp)
endforeach()
list(APPEND OUTRIDER_KERNEL_SOURCES ${CMAKE_CURRENT_LIST_DIR}/../memory/allocate.cpp)

# Contraction off: a compiler that fuses a multiplication and an addition for one instruction set and not for
# another would make results differ. Fused operations are written out in the source. Loops are neither split nor
# unswitched: that doubles the code and the time to compile it, and leaves the loops over weights as they were
# (benchmarks/instruction_counts.py on avx2.cpp.o and avx512.cpp.o).
set(OUTRIDER_OPTIONS -O3 $<$<CXX_COMPILER_ID:GNU>:-fno-split-loops>
  $<$<CXX_COMPILER_ID:GNU>:-fno-unswitch-loops> -ffp-contract=off -fno-math-errno -fvisibility=hidden -Wall -Wextra)

# (The AVX-512 intrinsics of older GCC versions warn about their own undefined operands: off for that file.)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/avx2.cpp PROPERTIES
    COMPILE_OPTIONS "-mavx2;-mfma;-mf16c;-mtune=znver3")
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag("-mavxvnni -mtune=alderlake" OUTRIDER_HAS_AVXVNNI)
  if(OUTRIDER_HAS_AVXVNNI)
    set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/avxvnni.cpp PROPERTIES
      COMPILE_OPTIONS "-mavx2;-mfma;-mf16c;-mavxvnni;-mtune=alderlake;-O2")
  endif()
  set(OUTRIDER_AVX512_OPTIONS -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
    -mprefer-vector-width=512 -Wno-maybe-uninitialized -Wno-uninitialized)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/avx512.cpp PROPERTIES
    COMPILE_OPTIONS "${OUTRIDER_AVX512_OPTIONS};-mtune=cascadelake")
  check_cxx_compiler_flag("-mamx-tile -mamx-int8 -mtune=sapphirerapids" OUTRIDER_HAS_AMX)
  if(OUTRIDER_HAS_AMX)
    set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/amx.cpp PROPERTIES
      COMPILE_OPTIONS "${OUTRIDER_AVX512_OPTIONS};-mamx-tile;-mamx-int8;-mtune=sapphirerapids;-O2")
  endif()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  # (Otherwise GCC moves all loads of a group before its products, and spills a fifth of them.)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/neon.cpp PROPERTIES
    COMPILE_OPTIONS "-march=armv8.2-a+dotprod;$<$<CXX_COMPILER_ID:GNU>:-fno-schedule-insns>")
endif()

# Compiled once for all that links them.
add_library(outrider_kernels OBJECT ${OUTRIDER_KERNEL_SOURCES})
target_compile_options(outrider_kernels PRIVATE ${OUTRIDER_OPTIONS})
target_include_directories(outrider_kernels PRIVATE ${CMAKE_CURRENT_LIST_DIR}/..)
set_target_properties(outrider_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON)
