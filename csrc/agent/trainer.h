#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include <functional>
#include <memory>
#include <string>

#include "agent/connection.h"
#include "base/owned_descriptor.h"
#include "checkpoint/agent_messages.h"

namespace smon_rt {

/// Says when a process has ended: by a pidfd, else (an old kernel) when it is asked. Not by its socket, which children
/// of the process may hold open, or the process lose.
///
/// Threading: the thread of the io_context.
class ProcessWatch {
 public:
  /// on_end: once, from the io_context; not after this is destroyed.
  ProcessWatch(asio::io_context& io, pid_t pid, std::function<void()> on_end);
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  bool has_ended() const;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
  std::uint64_t start_ticks_;
  OwnedDescriptor pidfd_;
  asio::posix::stream_descriptor stream_;
};

/// A trainer that has said hello, and what is known of its rank.
struct Trainer {
  agent_messages::Hello hello;
  std::shared_ptr<Connection> connection;  // the newest; perhaps closed
  bool is_welcomed = false;                // there: nothing comes to a trainer before its welcome
  std::unique_ptr<ProcessWatch> process;   // none once it has ended
  std::uint32_t layout_epoch = 0;
  std::uint64_t captures = 0;
  std::uint64_t skips = 0;
  std::uint64_t copy_ns = 0;
  std::uint64_t blocked_ns = 0;

  bool is_alive() const { return process != nullptr && !process->has_ended(); }
  bool is_connected() const { return connection != nullptr && connection->is_open(); }
};

}  // namespace smon_rt
