# Compiler settings and the helper functions that declare a part, its tests and its benchmarks.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
# Only the CPU kernels gain from -O3; everything else compiles a quarter faster without.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(TENSORFOLD_CCACHE ccache)
if(TENSORFOLD_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TENSORFOLD_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${TENSORFOLD_CCACHE})
endif()
find_program(TENSORFOLD_MOLD mold)
if(TENSORFOLD_MOLD AND NOT TENSORFOLD_STATIC)
  add_link_options(-fuse-ld=mold)
endif()
if(TENSORFOLD_STATIC)
  add_link_options(-static-libstdc++ -static-libgcc)
endif()

# Bits must not depend on what the compiler may fuse: an fma happens only where the source says fma.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)

if(TENSORFOLD_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${TENSORFOLD_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer> $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>)
  add_link_options(-fsanitize=${TENSORFOLD_SANITIZE})
endif()

# Contraction is off on the device too.
set(TENSORFOLD_CUDA_OPTIONS -O3 -fmad=false -lineinfo -Xcompiler=-Wall,-Wextra --Werror=all-warnings)

if(TENSORFOLD_FUZZ)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)  # the parts report their coverage too
endif()

set(TENSORFOLD_WARNINGS -Wall -Wextra -Wconversion -Wshadow -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND TENSORFOLD_WARNINGS -Wno-restrict)  # g++ 12 warns about its own std::string operator+ (its bug 105329)
endif()

# tensorfold_part(NAME [DEPENDS part...] [LIBRARIES target...]): the static library tensorfold_NAME from every source in
# this folder and below, with warnings as errors.
function(tensorfold_part name)
  cmake_parse_arguments(PART "" "" "DEPENDS;LIBRARIES;EXCLUDE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cpp)
  foreach(pattern ${PART_EXCLUDE})
    list(FILTER sources EXCLUDE REGEX ${pattern})
  endforeach()
  add_library(tensorfold_${name} STATIC ${sources})
  target_include_directories(tensorfold_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_compile_options(tensorfold_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${TENSORFOLD_WARNINGS}>)
  set(parts ${PART_DEPENDS})
  list(TRANSFORM parts PREPEND tensorfold_)
  target_link_libraries(tensorfold_${name} PUBLIC ${parts} ${PART_LIBRARIES})
endfunction()

# tensorfold_tests(NAME [DEPENDS part...] [LIBRARIES target...]): one test program from tests/NAME.
function(tensorfold_tests name)
  cmake_parse_arguments(PART "" "" "DEPENDS;LIBRARIES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp)
  if(NOT sources)
    return()
  endif()
  set(parts ${PART_DEPENDS})
  list(TRANSFORM parts PREPEND tensorfold_)
  add_executable(test_${name} ${sources})
  # The one file that names the folder, so that a compiler cache serves the others in any checkout.
  target_sources(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/source_directory.cpp)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/tests/source_directory.cpp PROPERTIES COMPILE_DEFINITIONS
                              TENSORFOLD_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_compile_options(test_${name} PRIVATE ${TENSORFOLD_WARNINGS})
  target_include_directories(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(test_${name} PRIVATE ${parts} ${PART_LIBRARIES} GTest::gtest GTest::gmock GTest::gtest_main)
  gtest_discover_tests(test_${name} TEST_PREFIX ${name}/ DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 600)
endfunction()

# tensorfold_bench(NAME [DEPENDS part...]): one Google Benchmark program from bench/NAME.cpp.
function(tensorfold_bench name)
  cmake_parse_arguments(PART "" "" "DEPENDS;LIBRARIES" ${ARGN})
  if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${name}.cpp)
    return()
  endif()
  set(parts ${PART_DEPENDS})
  list(TRANSFORM parts PREPEND tensorfold_)
  add_executable(bench_${name} ${name}.cpp)
  target_compile_options(bench_${name} PRIVATE ${TENSORFOLD_WARNINGS})
  target_compile_definitions(bench_${name} PRIVATE TENSORFOLD_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_link_libraries(bench_${name} PRIVATE ${parts} ${PART_LIBRARIES} benchmark::benchmark benchmark::benchmark_main)
endfunction()
