# How a folder declares what it builds. One CMakeLists.txt a folder, sources listed by name.
#
#   smon_component(NAME analysis SOURCES op_table.cc simulator.cc HEADERS op_table.h simulator.h DEPENDS base format)
#       Static library smon_analysis (alias smon_rt::analysis), position independent, hidden symbols. Headers are
#       included from csrc: #include "analysis/op_table.h". Without SOURCES it is header-only. DEPENDS names other
#       components; LINK names foreign targets (Threads::Threads). tools/check_layers.py says who may depend on whom.
#
#   smon_python_module(NAME _analysis SOURCES analysis_module.cc DEPENDS analysis format base)
#       pybind11 module smon_rt._analysis; lands in python/smon_rt of the checkout, or in the wheel.
#
#   smon_test(NAME op_graph_test LABEL unit SOURCES op_graph_test.cc DEPENDS analysis)
#       GoogleTest program; each TEST is one ctest. LABEL: unit contract integration golden gpu slow. Lives in
#       tests/<kind>/<component>/CMakeLists.txt, which tests/<kind>/CMakeLists.txt adds. Slow ones run in `make soak`.
#       Tests run beside each other, but for those of programs that say ALONE.
#
#   smon_fuzzer(NAME op_table_fuzzer SOURCES op_table_fuzzer.cc DEPENDS analysis)
#       A file with LLVMFuzzerTestOneInput in tests/fuzz; its seeds, and what it once found, in
#       tests/fuzz/corpus/op_table_fuzzer/. In the fuzz preset: a libFuzzer program, run by `make fuzz`. In the
#       others: a program that replays the corpus, as a ctest of label fuzz.
#
# Libraries and executables land under build/<preset>/ in the folder of their CMakeLists.txt; programs in
# build/<preset>/bin, fuzzers in build/<preset>/fuzzers.

include_guard(GLOBAL)

# Flags for each target of ours, and for no foreign one.
function(smon_target_defaults target)
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_compile_options(${target} PRIVATE ${SMON_RT_WARNING_FLAGS} ${SMON_RT_SANITIZER_FLAGS})
  target_link_options(${target} PRIVATE ${SMON_RT_SANITIZER_FLAGS})
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
endfunction()

# A product that is loaded into someone else's process: brings its own C++ runtime, hidden, so that it cannot meet
# another copy, and leaves no symbol undefined.
function(smon_shared_product_defaults target)
  target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL -Wl,--as-needed)
endfunction()

function(smon_link_components target visibility)
  foreach(component IN LISTS ARGN)
    target_link_libraries(${target} ${visibility} smon_rt::${component})
  endforeach()
endfunction()

function(smon_component)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SOURCES;HEADERS;DEPENDS;LINK")
  set(target smon_${arg_NAME})
  if(arg_SOURCES)
    add_library(${target} STATIC ${arg_SOURCES} ${arg_HEADERS})
    set(visibility PUBLIC)
    smon_target_defaults(${target})
    if(NOT arg_NAME IN_LIST SMON_RT_TESTED_COMPONENTS)
      # Only where something that is tested needs it.
      set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
  else()
    add_library(${target} INTERFACE ${arg_HEADERS})
    set(visibility INTERFACE)
  endif()
  add_library(smon_rt::${arg_NAME} ALIAS ${target})
  target_include_directories(${target} ${visibility} ${PROJECT_SOURCE_DIR}/csrc)
  smon_link_components(${target} ${visibility} ${arg_DEPENDS})
  target_link_libraries(${target} ${visibility} ${arg_LINK})
endfunction()

function(smon_python_module)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SOURCES;DEPENDS")
  if(NOT SMON_RT_BUILD_PYTHON)
    return()
  endif()
  # Not pybind11_add_module: it adds its own optimisation flags; ours are those of every other target.
  python_add_library(${arg_NAME} MODULE WITH_SOABI ${arg_SOURCES})
  target_link_libraries(${arg_NAME} PRIVATE pybind11::module)
  smon_target_defaults(${arg_NAME})
  smon_shared_product_defaults(${arg_NAME})
  smon_link_components(${arg_NAME} PRIVATE ${arg_DEPENDS})
  set_target_properties(${arg_NAME} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${SMON_RT_PYTHON_OUTPUT_DIR}")
endfunction()

function(smon_program target)
  smon_target_defaults(${target})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
endfunction()

# What is tested is optimised in its library; optimising the tests themselves is a third of a build's time, and half of it
# under sanitizers.
function(smon_test_optimization target)
  if(SMON_RT_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
  else()
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
endfunction()

# What each test includes, compiled once: it is half of what compiling a test takes. Under sanitizers only, so that the
# other builds notice an #include that a test lacks.
function(smon_precompile_test_headers target)
  if(NOT SMON_RT_SANITIZE)
    return()
  endif()
  if(NOT TARGET smon_test_headers)
    file(WRITE "${PROJECT_BINARY_DIR}/test_headers_main.cc" "int main() {}\n")
    add_executable(smon_test_headers EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/test_headers_main.cc")
    smon_program(smon_test_headers)
    smon_test_optimization(smon_test_headers)
    target_link_libraries(smon_test_headers PRIVATE GTest::gtest)
    target_precompile_headers(smon_test_headers PRIVATE
      <gtest/gtest.h> <algorithm> <atomic> <chrono> <cmath> <filesystem> <fstream> <functional> <map> <memory> <random>
      <set> <span> <string> <thread> <vector>)
  endif()
  target_precompile_headers(${target} REUSE_FROM smon_test_headers)
endfunction()

function(smon_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "ALONE" "NAME;LABEL" "SOURCES;DEPENDS")
  if(NOT arg_LABEL MATCHES "^(unit|contract|integration|golden|gpu|slow)$")
    message(FATAL_ERROR "smon_test(${arg_NAME}): LABEL must be unit, contract, integration, golden, gpu or slow")
  endif()
  add_executable(${arg_NAME} ${arg_SOURCES})
  smon_program(${arg_NAME})
  smon_test_optimization(${arg_NAME})
  smon_precompile_test_headers(${arg_NAME})
  smon_link_components(${arg_NAME} PRIVATE ${arg_DEPENDS})
  target_link_libraries(${arg_NAME} PRIVATE GTest::gtest_main)
  set(timeout_s 120)
  if(arg_LABEL STREQUAL slow)
    set(timeout_s 1800)
  elseif(SMON_RT_SANITIZE)
    set(timeout_s 300)
  endif()
  gtest_discover_tests(${arg_NAME}
    TEST_PREFIX "${arg_NAME}/"
    DISCOVERY_MODE PRE_TEST
    PROPERTIES LABELS ${arg_LABEL} TIMEOUT ${timeout_s} RUN_SERIAL ${arg_ALONE})
endfunction()

function(smon_fuzzer)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SOURCES;DEPENDS")
  add_executable(${arg_NAME} ${arg_SOURCES})
  smon_target_defaults(${arg_NAME})
  smon_link_components(${arg_NAME} PRIVATE ${arg_DEPENDS})
  set_target_properties(${arg_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/fuzzers")
  set(arguments "${CMAKE_CURRENT_SOURCE_DIR}/corpus/${arg_NAME}")
  if(SMON_RT_FUZZERS)
    target_link_options(${arg_NAME} PRIVATE -fsanitize=fuzzer)
    list(PREPEND arguments -runs=0)
  else()
    target_sources(${arg_NAME} PRIVATE ${PROJECT_SOURCE_DIR}/tests/fuzz/replay_main.cc)
  endif()
  add_test(NAME ${arg_NAME}/corpus COMMAND ${arg_NAME} ${arguments})
  set_tests_properties(${arg_NAME}/corpus PROPERTIES LABELS fuzz TIMEOUT 120)
endfunction()

function(smon_benchmark)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SOURCES;DEPENDS")
  add_executable(${arg_NAME} ${arg_SOURCES})
  smon_program(${arg_NAME})
  smon_link_components(${arg_NAME} PRIVATE ${arg_DEPENDS})
  target_link_libraries(${arg_NAME} PRIVATE benchmark::benchmark_main)
endfunction()
