#include "agent/agent_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <utility>

namespace smon_rt {
namespace {

constexpr std::size_t kMaxOrphans = 16;

/// What a living agent says in its lock file; none where nobody has the lock.
std::optional<AgentLock::State> read_state(const std::string& path) {
  const OwnedDescriptor file(
      move_from_standard_streams(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)));
  if (!file.is_open() || ::flock(file.fd(), LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK) return std::nullopt;
  std::array<char, 1024> text{};
  if (::pread(file.fd(), text.data(), text.size() - 1, 0) <= 0) return std::nullopt;
  std::istringstream words(text.data());
  AgentLock::State state;
  if (!(words >> state.pid >> state.memory_bytes >> state.idle_since_s)) return std::nullopt;
  words.get();
  std::getline(words, state.run_id);
  return state;
}

}  // namespace

std::int64_t monotonic_s() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

Result<std::optional<AgentLock>> AgentLock::take(const AgentFolder& folder) {
  const int fd = ::openat(folder.fd(), AgentFolder::kLockName, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  OwnedDescriptor file(move_from_standard_streams(fd));
  if (file.is_open() && ::flock(file.fd(), LOCK_EX | LOCK_NB) == 0) return std::optional(AgentLock(std::move(file)));
  if (file.is_open() && errno == EWOULDBLOCK) return std::optional<AgentLock>();
  return Error{folder.path() + "/" + AgentFolder::kLockName + ": " + std::generic_category().message(errno)};
}

void AgentLock::write(const State& state) {
  std::string text = std::to_string(state.pid) + " " + std::to_string(state.memory_bytes) + " " +
                     std::to_string(state.idle_since_s) + " " + state.run_id.substr(0, 512) + "\n";
  // In one piece over what was there; what is longer of it is behind the end of the line.
  if (::pwrite(file_.fd(), text.data(), text.size(), 0) < 0) return;
}

std::vector<agent_messages::Orphan> find_orphans(const std::string& folder_path) {
  std::vector<agent_messages::Orphan> orphans;
  const std::filesystem::path own(folder_path);
  std::error_code failed;
  for (std::filesystem::directory_iterator entry(own.parent_path(), failed), end; !failed && entry != end;
       entry.increment(failed)) {
    if (entry->path() == own || orphans.size() >= kMaxOrphans) continue;
    const auto state = read_state((entry->path() / AgentFolder::kLockName).string());
    if (!state || state->idle_since_s == 0) continue;
    const std::int64_t idle_s = std::max<std::int64_t>(0, monotonic_s() - state->idle_since_s);
    orphans.push_back({state->run_id, state->pid, state->memory_bytes, static_cast<std::uint64_t>(idle_s)});
  }
  return orphans;
}

}  // namespace smon_rt
