#include "checkpoint/agent_link.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "checkpoint/agent_folder.h"

namespace smon_rt {
namespace {

using agent_messages::kMaxDescriptors;
using agent_messages::kMaxPacketBytes;

constexpr std::size_t kControlBytes = CMSG_SPACE(kMaxDescriptors * sizeof(int));

Error error_of(const std::string& what, int error_number) {
  std::array<char, 128> buffer{};
  return Error{"checkpoint agent: " + what + ": " + ::strerror_r(error_number, buffer.data(), buffer.size())};
}

std::vector<OwnedDescriptor> take_descriptors(msghdr& header) {
  std::vector<OwnedDescriptor> taken;
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr; control = CMSG_NXTHDR(&header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof fd, sizeof fd);
      taken.emplace_back(fd);
    }
  }
  return taken;
}

}  // namespace

Result<AgentLink> AgentLink::connect(const std::string& folder) {
  auto opened = AgentFolder::open(folder);
  if (!opened) return std::move(opened).error();
  OwnedDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return error_of("socket", errno);
  const sockaddr_un address = opened->socket_address();
  if (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return error_of("cannot reach one in " + folder, errno);
  }
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return error_of("peer", errno);
  if (peer.uid != ::geteuid()) return Error{"checkpoint agent in " + folder + ": is of another user"};
  return AgentLink(std::move(socket));
}

Result<bool> AgentLink::send(const std::string& packet, std::span<const int> descriptors) {
  if (packet.size() > kMaxPacketBytes || descriptors.size() > kMaxDescriptors) {
    return Error{"checkpoint agent: a message is longer than a packet may be"};
  }
  if (!socket_.is_ours()) return Error{"checkpoint agent: the job closed our socket"};
  iovec part{const_cast<char*>(packet.data()), packet.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, kControlBytes> control{};
  if (!descriptors.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  for (;;) {
    if (::sendmsg(socket_.fd(), &header, MSG_NOSIGNAL) >= 0) return true;
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    return error_of("cannot send", errno);
  }
}

Result<std::optional<AgentLink::Packet>> AgentLink::receive() {
  if (!socket_.is_ours()) return Error{"checkpoint agent: the job closed our socket"};
  std::string bytes(kMaxPacketBytes, '\0');
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, kControlBytes> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t length = 0;
  do {
    length = ::recvmsg(socket_.fd(), &header, MSG_CMSG_CLOEXEC);
  } while (length < 0 && errno == EINTR);
  if (length < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::optional<Packet>();
    return error_of("cannot receive", errno);
  }
  std::vector<OwnedDescriptor> descriptors = take_descriptors(header);
  if (length == 0) return Error{"checkpoint agent: it closed the connection"};
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return Error{"checkpoint agent: it sent more than a packet may have"};
  }
  auto message = agent_messages::decode_agent_message({bytes.data(), static_cast<std::size_t>(length)});
  if (!message) return std::move(message).error();
  return std::optional<Packet>(Packet{std::move(*message), std::move(descriptors)});
}

}  // namespace smon_rt
