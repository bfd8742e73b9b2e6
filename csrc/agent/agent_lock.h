#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/owned_descriptor.h"
#include "base/result.h"
#include "checkpoint/agent_folder.h"
#include "checkpoint/agent_messages.h"

namespace smon_rt {

/// Elects one agent a folder: who has the lock of its file. In the file it says what others of the same user want to
/// know of it without asking it.
///
/// Threading: one thread.
class AgentLock {
 public:
  struct State {
    std::string run_id;
    std::int32_t pid = 0;
    std::uint64_t memory_bytes = 0;
    std::int64_t idle_since_s = 0;  // of CLOCK_MONOTONIC; 0: its job is here
  };

  /// None: another agent has it.
  static Result<std::optional<AgentLock>> take(const AgentFolder& folder);

  void write(const State& state);

 private:
  explicit AgentLock(OwnedDescriptor file) : file_(std::move(file)) {}

  OwnedDescriptor file_;
};

/// Agents beside this folder that live and whose jobs are gone.
std::vector<agent_messages::Orphan> find_orphans(const std::string& folder_path);

std::int64_t monotonic_s();

}  // namespace smon_rt
