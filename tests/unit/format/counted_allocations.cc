#include "counted_allocations.h"

#include <cstdlib>
#include <new>

namespace smon_rt::test {

thread_local std::size_t allocation_count = 0;
thread_local std::size_t failing_allocation = 0;

}  // namespace smon_rt::test

// A file of its own: inlined into what allocates, compilers take new and delete for a mismatched pair.
void* operator new(std::size_t size) {
  using namespace smon_rt::test;
  ++allocation_count;
  void* memory = allocation_count == failing_allocation ? nullptr : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t /*size*/) noexcept {
  std::free(memory);
}
