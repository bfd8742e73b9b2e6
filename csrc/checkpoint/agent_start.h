#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace smon_rt {

/// Starts a node's agent, where none answers:
///
///     smon-agent --folder PATH --run-id ID [--ttl-s SECONDS]
///
/// in a session of its own (torchrun ends the trainer's process group when it restarts), without the trainer's
/// descriptors, signals blocked or ignored, or environment of LD_PRELOAD. The agent takes PATH/agent.lock, and ends at
/// once with code 0 if another one has it; what it says goes to PATH/agent.log once it can, and before to standard
/// error, which is the trainer's.
///
/// Threading: any. Does not wait for the agent: connect until a deadline. The child is reaped by a thread that waits
/// for nothing else, if it ends while this process lives.
Result<void> start_agent(const std::string& program, const std::string& folder, const std::string& run_id,
                         std::uint32_t ttl_s);

}  // namespace smon_rt
