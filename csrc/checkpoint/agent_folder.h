#pragma once

#include <sys/un.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/owned_descriptor.h"
#include "base/result.h"

namespace smon_rt {

/// Where the agent of a run on this node is found: <base>/smon_rt-<uid>/<run>, with "-<node>" behind it if a name is
/// given, as tests do that have two "nodes" on one machine. Characters of the run id that a path should not have are
/// '_', and it is cut at 64; a hash then keeps two such ids apart.
std::string agent_folder_path(const std::string& base, std::uint32_t uid, std::string_view run_id,
                              std::string_view node);

/// The folder of an agent, opened: mode 0700, of this user, no link, and on no file system that other nodes see (its
/// lock would elect one agent for all, and its socket leads to this node only). The same is asked of smon_rt-<uid>.
///
/// Threading: one thread.
class AgentFolder {
 public:
  static constexpr const char* kSocketName = "agent.sock";
  static constexpr const char* kLockName = "agent.lock";
  static constexpr const char* kLogName = "agent.log";
  static constexpr const char* kTriedName = "tried";

  /// Makes what of the last two parts of the path is missing.
  static Result<AgentFolder> make(const std::string& path);
  /// Only if it is there.
  static Result<AgentFolder> open(const std::string& path);

  int fd() const { return fd_.fd(); }
  const std::string& path() const { return path_; }

  /// Of its socket, to bind or to connect to while this folder is open: by the descriptor, since an address has room
  /// for 107 characters only.
  sockaddr_un socket_address() const;

 private:
  AgentFolder(std::string path, OwnedDescriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  OwnedDescriptor fd_;
};

}  // namespace smon_rt
