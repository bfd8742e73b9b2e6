#include "agent/packet_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "checkpoint/agent_messages.h"

namespace smon_rt {
namespace {

using agent_messages::kMaxDescriptors;
using agent_messages::kMaxPacketBytes;

constexpr int kBacklog = 128;

struct alignas(cmsghdr) ControlBuffer {
  std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> bytes{};
};

PacketResult result_of(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == EINTR ? PacketResult::kWouldBlock
                                                                                        : PacketResult::kClosed;
}

/// Owned, so that none stays open whatever becomes of the packet.
void take_descriptors(msghdr& message, std::vector<OwnedDescriptor>& descriptors) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr; control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
}

}  // namespace

Result<OwnedDescriptor> listen_in(const AgentFolder& folder) {
  const auto error = [&](const char* call) {
    return Error{folder.path() + "/" + AgentFolder::kSocketName + ": " + call + ": " +
                 std::generic_category().message(errno)};
  };
  OwnedDescriptor fd(move_from_standard_streams(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (!fd.is_open()) return error("socket");
  if (::unlinkat(folder.fd(), AgentFolder::kSocketName, 0) != 0 && errno != ENOENT) return error("unlink");
  const sockaddr_un address = folder.socket_address();
  if (::bind(fd.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return error("bind");
  if (::listen(fd.fd(), kBacklog) != 0) return error("listen");
  return fd;
}

std::optional<Peer> accept_peer(int listening_fd) {
  const int fd = ::accept4(listening_fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return std::nullopt;
  Peer peer;
  peer.socket = OwnedDescriptor(move_from_standard_streams(fd));
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(peer.socket.fd(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    credentials.uid = static_cast<uid_t>(-1);  // nobody
  }
  peer.pid = credentials.pid;
  peer.uid = credentials.uid;
  return peer;
}

PacketResult receive_packet(int fd, Packet& packet) {
  packet.bytes.resize(kMaxPacketBytes);
  packet.descriptors.clear();
  ControlBuffer control;
  iovec part{packet.bytes.data(), packet.bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  const ssize_t got = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return result_of(errno);
  take_descriptors(message, packet.descriptors);
  packet.is_cut = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  // A packet of no bytes cannot be told from the end, and is no message either.
  if (got == 0) return PacketResult::kClosed;
  packet.bytes.resize(static_cast<std::size_t>(got));
  return PacketResult::kDone;
}

PacketResult send_packet(int fd, std::string_view bytes, std::span<const int> descriptors) {
  ControlBuffer control;
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const std::size_t count = std::min(descriptors.size(), kMaxDescriptors);
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(header), descriptors.data(), count * sizeof(int));
  }
  return ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? result_of(errno) : PacketResult::kDone;
}

}  // namespace smon_rt
