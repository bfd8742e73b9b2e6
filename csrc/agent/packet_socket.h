#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/owned_descriptor.h"
#include "base/result.h"
#include "checkpoint/agent_folder.h"

namespace smon_rt {

/// Where trainers and tools come to: the socket in the folder, bound anew. Whoever calls this has the folder's lock.
Result<OwnedDescriptor> listen_in(const AgentFolder& folder);

struct Peer {
  OwnedDescriptor socket;
  pid_t pid = 0;  // 0: of another pid namespace
  uid_t uid = 0;
};
/// None: nobody is waiting.
std::optional<Peer> accept_peer(int listening_fd);

enum class PacketResult { kDone, kWouldBlock, kClosed };

struct Packet {
  std::string bytes;
  std::vector<OwnedDescriptor> descriptors;
  bool is_cut = false;  // it, or its descriptors, did not fit
};
/// Never waits.
PacketResult receive_packet(int fd, Packet& packet);
PacketResult send_packet(int fd, std::string_view bytes, std::span<const int> descriptors);

}  // namespace smon_rt
