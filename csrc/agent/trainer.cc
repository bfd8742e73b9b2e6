#include "agent/trainer.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <utility>

namespace smon_rt {
namespace {

/// Field 22 of /proc/<pid>/stat: a number that is used again is another process. 0: there is none.
std::uint64_t start_ticks(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  // The name, in brackets, may have blanks and brackets itself.
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream words(text.substr(name_end + 1));
  std::string word;
  for (int field = 3; field < 22; ++field) words >> word;
  std::uint64_t ticks = 0;
  words >> ticks;
  return ticks;
}

}  // namespace

ProcessWatch::ProcessWatch(asio::io_context& io, pid_t pid, std::function<void()> on_end)
    : pid_(pid),
      start_ticks_(start_ticks(pid)),
      pidfd_(move_from_standard_streams(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)))),
      stream_(io) {
  if (!pidfd_.is_open()) return;
  asio::error_code failed;
  stream_.assign(pidfd_.fd(), failed);
  if (failed) return;
  stream_.async_wait(asio::posix::stream_descriptor::wait_read, [on_end = std::move(on_end)](asio::error_code ended) {
    if (!ended) on_end();
  });
}

ProcessWatch::~ProcessWatch() {
  if (stream_.is_open()) stream_.release();
}

bool ProcessWatch::has_ended() const {
  if (pidfd_.is_open()) {
    pollfd event{pidfd_.fd(), POLLIN, 0};
    return ::poll(&event, 1, 0) > 0;
  }
  return start_ticks_ == 0 || start_ticks(pid_) != start_ticks_;
}

}  // namespace smon_rt
