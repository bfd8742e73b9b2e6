#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/tried_marks.h"
#include "base/result.h"
#include "checkpoint/slot_format.h"

namespace smon_rt {

/// Marks of states that are not to be chosen again, in the agent's folder: one line each, "INCARNATION STEP REASON".
/// They outlive the agent.
///
/// Threading: one thread.
class TriedFile {
 public:
  /// folder_fd outlives it.
  explicit TriedFile(int folder_fd) : folder_fd_(folder_fd) {}

  /// Lines that are none are left out.
  std::vector<TriedMarks::Mark> read() const;
  /// On disk when this returns.
  Result<void> add(Label label, std::string_view reason);

 private:
  int folder_fd_;
};

}  // namespace smon_rt
