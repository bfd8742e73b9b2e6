#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace smon_rt {

/// Starts a node's agent, where none answers:
///
///     smon-agent --detach --folder PATH --run-id ID --ttl-s SECONDS
///
/// With --detach the program forks before it has a thread: its child becomes the agent, in a session of its own
/// (torchrun ends the trainer's process group when it restarts), and the first process ends, so that the trainer has no
/// child that it does not know: with code 0 once the agent listens, or if another one has PATH/agent.lock; else with
/// another code, and one line on standard error. The agent itself writes to PATH/agent.log. It gets none of the
/// trainer's descriptors, no signal blocked or ignored, and the trainer's environment without LD_PRELOAD.
///
/// Threading: any. Waits until the deadline for the first process.
Result<void> start_agent(const std::string& program, const std::string& folder, const std::string& run_id,
                         std::uint32_t ttl_s, std::chrono::steady_clock::time_point deadline);

}  // namespace smon_rt
