#include "checkpoint/agent_folder.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace smon_rt {
namespace {

constexpr std::size_t kMaxNameBytes = 64;

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

/// As a part of a path. The same in python/smon_rt/checkpoint_tools.
std::string plain_name(std::string_view text) {
  std::string name(text.substr(0, kMaxNameBytes));
  for (char& c : name) {
    const bool is_plain =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
    if (!is_plain) c = '_';
  }
  if (name.empty() || name[0] == '.') name.insert(0, "_");
  if (name == text) return name;
  std::array<char, 24> hash{};
  std::snprintf(hash.data(), hash.size(), "-%016llx", static_cast<unsigned long long>(fnv1a(text)));
  return name + hash.data();
}

Error error_of(const std::string& path, const std::string& what) {
  return Error{"folder of the checkpoint agent " + path + ": " + what};
}

Error error_of_errno(const std::string& path, int error_number) {
  std::array<char, 128> buffer{};
  return error_of(path, std::string(::strerror_r(error_number, buffer.data(), buffer.size())) +
                            "; another place can be given as SMON_RT_AGENT_DIR");
}

/// "" or the name of a file system that several nodes share.
const char* shared_file_system(int fd) {
  struct statfs status{};
  if (::fstatfs(fd, &status) != 0) return "";
  constexpr std::array<std::pair<std::uint32_t, const char*>, 9> kShared{{{0x6969, "NFS"},
                                                                          {0x0bd00bd0, "Lustre"},
                                                                          {0x47504653, "GPFS"},
                                                                          {0x00c36400, "Ceph"},
                                                                          {0x19830326, "BeeGFS"},
                                                                          {0xff534d42, "CIFS"},
                                                                          {0xfe534d42, "SMB"},
                                                                          {0x5346414f, "AFS"},
                                                                          {0x01021997, "9p"}}};
  const auto type = static_cast<std::uint32_t>(status.f_type);
  const auto* const found = std::ranges::find(kShared, type, &std::pair<std::uint32_t, const char*>::first);
  return found == kShared.end() ? "" : found->second;
}

Result<OwnedDescriptor> open_private(const std::string& path) {
  const int raw = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (raw < 0) {
    if (errno == ENOTDIR || errno == ELOOP) return error_of(path, "is a link, or no folder: remove it");
    return error_of_errno(path, errno);
  }
  OwnedDescriptor fd(move_from_standard_streams(raw));
  struct stat status{};
  if (!fd.is_ours(&status)) return error_of_errno(path, errno);
  if (status.st_uid != ::geteuid()) {
    return error_of(path, "belongs to user " + std::to_string(status.st_uid) + ", not to this one (" +
                              std::to_string(::geteuid()) + "): remove it, or set SMON_RT_AGENT_DIR");
  }
  if ((status.st_mode & 077) != 0) return error_of(path, "is open to other users: chmod 0700 it, or remove it");
  const char* shared = shared_file_system(fd.fd());
  if (*shared != '\0') {
    return error_of(path, std::string("is on ") + shared +
                              ", which other nodes see: set SMON_RT_AGENT_DIR to a folder "
                              "of this node");
  }
  return fd;
}

Result<void> make_one(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return error_of_errno(path, errno);
}

}  // namespace

std::string agent_folder_path(const std::string& base, std::uint32_t uid, std::string_view run_id,
                              std::string_view node) {
  std::string path = base + "/smon_rt-" + std::to_string(uid) + "/" + plain_name(run_id);
  if (!node.empty()) path += "-" + plain_name(node);
  return path;
}

Result<AgentFolder> AgentFolder::make(const std::string& path) {
  const auto slash = path.find_last_of('/');
  if (slash == std::string::npos || slash == 0) return error_of(path, "is no path of a folder in another one");
  const std::string parent = path.substr(0, slash);
  if (auto made = make_one(parent); !made) return std::move(made).error();
  if (auto opened = open_private(parent); !opened) return std::move(opened).error();
  if (auto made = make_one(path); !made) return std::move(made).error();
  return open(path);
}

Result<AgentFolder> AgentFolder::open(const std::string& path) {
  auto fd = open_private(path);
  if (!fd) return std::move(fd).error();
  return AgentFolder(path, std::move(*fd));
}

sockaddr_un AgentFolder::socket_address() const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", fd(), kSocketName);
  return address;
}

}  // namespace smon_rt
