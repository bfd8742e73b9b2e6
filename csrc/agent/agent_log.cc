#include "agent/agent_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <string>

#include "checkpoint/agent_folder.h"

namespace smon_rt {
namespace {

constexpr std::size_t kMaxLogBytes = std::size_t{256} << 10;
constexpr std::size_t kMaxLineBytes = 1000;
constexpr const char* kOldLogName = "agent.log.old";

}  // namespace

void AgentLog::open() {
  if (folder_fd_ < 0) return;
  const int fd =
      ::openat(folder_fd_, AgentFolder::kLogName, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  file_ = OwnedDescriptor(move_from_standard_streams(fd));
  struct stat status{};
  written_bytes_ = file_.is_ours(&status) ? static_cast<std::size_t>(status.st_size) : 0;
}

void AgentLog::write(std::string_view message) {
  if (!file_.is_open()) return;
  if (written_bytes_ > kMaxLogBytes) {
    ::renameat(folder_fd_, AgentFolder::kLogName, folder_fd_, kOldLogName);
    open();
  }
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> stamp{};
  std::strftime(stamp.data(), stamp.size(), "%Y-%m-%dT%H:%M:%SZ ", &utc);
  std::string line = stamp.data() + std::string(message.substr(0, kMaxLineBytes));
  std::ranges::replace_if(line, [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  line += '\n';
  if (const ssize_t written = ::write(file_.fd(), line.data(), line.size()); written > 0) {
    written_bytes_ += static_cast<std::size_t>(written);
  }
}

}  // namespace smon_rt
