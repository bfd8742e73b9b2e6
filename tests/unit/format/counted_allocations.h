#pragma once

#include <cstddef>

namespace smon_rt::test {

/// Calls of operator new by this thread, in programs that link counted_allocations.cc.
extern thread_local std::size_t allocation_count;

/// The call with this number throws; 0: none does.
extern thread_local std::size_t failing_allocation;

}  // namespace smon_rt::test
