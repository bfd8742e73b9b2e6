#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace smon_rt {

/// What this node's limits leave to this process now.
struct MemoryBudget {
  std::uint64_t available_bytes = 0;
  std::string
      limit;  // the tightest, as a person reads it: "cgroup /job: memory.max 8.0 GiB, of which 3.1 GiB are used"
};

/// The least of MemAvailable and, of each cgroup (v2 or v1) that this process is in, its limit minus what is used. What
/// is only cache that nobody has used lately counts as free. A cgroup ends processes where it could have failed a call:
/// so this is asked before memory is taken.
///
/// root: "" but for tests.
MemoryBudget read_memory_budget(const std::string& root = "");

/// An error with the numbers, if so much is not there; 1/16 of what is available, at most 1 GiB, is left to the job.
Result<void> check_memory_budget(const MemoryBudget& budget, std::uint64_t bytes, const std::string& purpose);

/// "3.1 GiB".
std::string describe_bytes(std::uint64_t bytes);

}  // namespace smon_rt
