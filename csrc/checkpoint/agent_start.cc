#include "checkpoint/agent_start.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/owned_descriptor.h"

extern char** environ;

namespace smon_rt {
namespace {

using Clock = std::chrono::steady_clock;

struct SpawnSettings {
  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};

  SpawnSettings() {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
  }
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
};

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
}

/// What the program says until it closes its standard error, which the agent behind it does not keep.
std::string read_words(int fd, Clock::time_point deadline) {
  std::string words;
  std::array<char, 1024> buffer{};
  pollfd event{fd, POLLIN, 0};
  while (words.size() < 4096 && ::poll(&event, 1, milliseconds_until(deadline)) > 0) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count <= 0) break;
    words.append(buffer.data(), static_cast<std::size_t>(count));
  }
  while (!words.empty() && words.back() == '\n') words.pop_back();
  std::ranges::replace(words, '\n', ' ');
  return words;
}

/// False: it was still running at the deadline. A job that waits for all children may have taken it.
bool wait_for_exit(pid_t pid, Clock::time_point deadline, int& status) {
  for (;;) {
    const pid_t ended = ::waitpid(pid, &status, WNOHANG);
    if (ended == pid) return true;
    if (ended < 0 && errno != EINTR) {
      status = 0;
      return true;
    }
    if (Clock::now() >= deadline) return false;
    const timespec nap{0, 2'000'000};
    ::nanosleep(&nap, nullptr);
  }
}

int spawn(const std::string& program, std::vector<std::string> arguments, int words_fd, pid_t& pid) {
  SpawnSettings settings;
  ::posix_spawn_file_actions_addopen(&settings.actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&settings.actions, 1, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_adddup2(&settings.actions, words_fd, 2);
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 34)
  ::posix_spawn_file_actions_addclosefrom_np(&settings.actions, 3);
#endif
  sigset_t none;
  sigset_t all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&settings.attributes, &none);
  ::posix_spawnattr_setsigdefault(&settings.attributes, &all);
  ::posix_spawnattr_setflags(&settings.attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<char*> argv;
  for (std::string& each : arguments) argv.push_back(each.data());
  argv.push_back(nullptr);
  std::vector<char*> environment;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
    if (!std::string_view(*each).starts_with("LD_PRELOAD=")) environment.push_back(*each);
  }
  environment.push_back(nullptr);
  return ::posix_spawn(&pid, program.c_str(), &settings.actions, &settings.attributes, argv.data(), environment.data());
}

}  // namespace

Result<void> start_agent(const std::string& program, const std::string& folder, const std::string& run_id,
                         std::uint32_t ttl_s, Clock::time_point deadline) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return Error{"cannot start " + program + ": no pipe: too many open files"};
  OwnedDescriptor words_in(ends[0]);
  OwnedDescriptor words_out(ends[1]);
  pid_t pid = -1;
  const int error_number =
      spawn(program, {program, "--detach", "--folder", folder, "--run-id", run_id, "--ttl-s", std::to_string(ttl_s)},
            words_out.fd(), pid);
  words_out.close();
  if (error_number != 0) {
    std::array<char, 128> buffer{};
    return Error{"cannot start the checkpoint agent " + program + ": " +
                 ::strerror_r(error_number, buffer.data(), buffer.size())};
  }
  const std::string words = read_words(words_in.fd(), deadline);
  int status = 0;
  if (!wait_for_exit(pid, deadline, status)) {
    ::kill(pid, SIGKILL);
    wait_for_exit(pid, Clock::now() + std::chrono::seconds(1), status);
    return Error{"the checkpoint agent " + program + " did not begin to listen in time"};
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return Error{"the checkpoint agent did not start: " + (words.empty() ? program + " ended" : words)};
}

}  // namespace smon_rt
