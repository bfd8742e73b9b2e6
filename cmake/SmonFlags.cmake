# Compiler flags shared by every target of ours; smon_target_defaults() applies them.

set(SMON_RT_WARNING_FLAGS -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # libstdc++'s own std::stable_sort calls a function that it has itself deprecated, and clang says so at each use.
  # GCC's loop hints (#pragma GCC ivdep) mean nothing to it.
  list(APPEND SMON_RT_WARNING_FLAGS -Wno-deprecated-declarations -Wno-unknown-pragmas)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 takes "text" + std::string for overlapping copies when it inlines (its bug 105651).
  list(APPEND SMON_RT_WARNING_FLAGS -Wno-restrict)
endif()
if(SMON_RT_WARNINGS_AS_ERRORS)
  list(APPEND SMON_RT_WARNING_FLAGS -Werror)
endif()

set(SMON_RT_SANITIZER_FLAGS "")
if(SMON_RT_SANITIZE)
  set(SMON_RT_SANITIZER_FLAGS -fsanitize=${SMON_RT_SANITIZE} -fno-omit-frame-pointer -g1)
  if(SMON_RT_SANITIZE MATCHES undefined)
    # Undefined behaviour ends the program like every other finding, instead of printing a line nobody reads.
    list(APPEND SMON_RT_SANITIZER_FLAGS -fno-sanitize-recover=all)
  endif()
endif()

if(SMON_RT_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "SMON_RT_FUZZERS needs clang, got ${CMAKE_CXX_COMPILER_ID}: use the fuzz preset")
  endif()
  # Coverage for libFuzzer in the libraries too; main() comes only with -fsanitize=fuzzer in smon_fuzzer().
  list(APPEND SMON_RT_SANITIZER_FLAGS -fsanitize=fuzzer-no-link)
endif()
