#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"

namespace smon_rt {

/// Every environment variable that the library reads, and what is in them; nothing where a variable is unset, empty or
/// not understood. The README's table has the same rows, from python/smon_rt/environment.py.
struct Environment {
  bool is_disabled = false;                  // SMON_RT_DISABLE: anything but "", 0, false, no, off
  std::optional<std::string> trace_dir;      // SMON_RT_TRACE_DIR
  std::optional<std::string> run_id;         // SMON_RT_RUN_ID, else TORCHELASTIC_RUN_ID unless "none"
  std::optional<double> sample_ratio;        // SMON_RT_SAMPLE_RATIO, 0 to 1
  std::optional<std::int32_t> warmup_steps;  // SMON_RT_WARMUP_STEPS, 0 or more
  bool nccl_detail = false;                  // SMON_RT_NCCL_DETAIL: 1, true, yes or on
  std::optional<LogLevel> log_level;         // SMON_RT_LOG
  std::optional<std::string> agent_dir;      // SMON_RT_AGENT_DIR, else XDG_RUNTIME_DIR
  std::optional<std::string> node;           // SMON_RT_NODE
  std::optional<std::int32_t> attempt;       // TORCHELASTIC_RESTART_COUNT
  std::optional<std::int32_t> rank;          // RANK
  std::optional<std::int32_t> world_size;    // WORLD_SIZE
  std::optional<std::int32_t> local_rank;    // LOCAL_RANK
  // Variables of others that matter for timing (CUDA_*, NCCL_*, …), as set: for the header of the trace.
  std::map<std::string, std::string> timing_variables;
  std::vector<std::string> problems;  // one line each: a typo must not stop a job, but is said
};

/// Of this process, as it is now. Call it from control paths only: getenv races with a job that sets variables.
Environment read_environment();

/// Which library NCCL was told to load as its profiler plug-in, as smon_rt's Python says: SMON_RT_NCCL_INSTANCE is
/// process:device:inode. Nothing if it was said in no or in another process. As above, from control paths only.
struct NcclInstance {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;

  friend bool operator==(const NcclInstance&, const NcclInstance&) = default;
};
std::optional<NcclInstance> parse_nccl_instance(const char* text, std::int64_t pid);
std::optional<NcclInstance> named_nccl_instance();

/// The plug-in of NCCL that the job wants behind ours, by a name that NCCL would take: SMON_RT_NCCL_CHAIN. "": none.
/// Python puts a name in the place of 1. As above, from control paths only.
std::string nccl_chain_name();

/// With another look-up, for tests. nullptr: unset.
Environment read_environment(const std::function<const char*(const char*)>& look_up);

}  // namespace smon_rt
