#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/owned_descriptor.h"
#include "base/result.h"
#include "checkpoint/agent_messages.h"

namespace smon_rt {

/// A connection to an agent: packets with descriptors beside them, never waiting for anything.
///
/// Threading: one thread at a time.
class AgentLink {
 public:
  struct Packet {
    agent_messages::AgentMessage message;
    std::vector<OwnedDescriptor> descriptors;
  };

  /// To who listens in that folder, if it is of this user.
  static Result<AgentLink> connect(const std::string& folder);

  /// False: there is no room now; poll for POLLOUT.
  Result<bool> send(const std::string& packet, std::span<const int> descriptors);
  /// Nothing: none is there now. An error: the agent is gone, or says what cannot be understood.
  Result<std::optional<Packet>> receive();

  int fd() const { return socket_.fd(); }

 private:
  explicit AgentLink(OwnedDescriptor socket) : socket_(std::move(socket)) {}

  OwnedDescriptor socket_;
};

}  // namespace smon_rt
