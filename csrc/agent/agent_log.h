#pragma once

#include <cstddef>
#include <string_view>

#include "base/owned_descriptor.h"

namespace smon_rt {

/// The agent's log file: one line a message, with the date and the time (UTC). At 256 KiB it is begun anew, the one
/// before it is kept as agent.log.old.
///
/// Threading: one thread. A line that cannot be written is dropped.
class AgentLog {
 public:
  /// In the folder of this descriptor, which outlives the log. fd -1: nowhere.
  explicit AgentLog(int folder_fd) : folder_fd_(folder_fd) { open(); }

  /// Cut at 1,000 bytes; control characters become spaces.
  void write(std::string_view message);

 private:
  void open();

  int folder_fd_;
  OwnedDescriptor file_;
  std::size_t written_bytes_ = 0;
};

}  // namespace smon_rt
