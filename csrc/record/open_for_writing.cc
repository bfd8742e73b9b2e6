#include "record/open_for_writing.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <thread>

#include "base/owned_descriptor.h"

namespace smon_rt {
namespace {

constexpr std::size_t kStandardStreams = 3;

/// The process whose thread has its turn; 0: nobody's. A pid, because a forked child has no thread that would end it.
constinit std::atomic<pid_t> g_turn_of{0};

/// Without it, one thread would free the numbers that another one counts on.
class Turn {
 public:
  Turn() noexcept {
    const pid_t own = ::getpid();
    for (int tries = 0; tries < kTries; ++tries) {
      pid_t holder = 0;
      // Pairs with the release of whoever had it.
      has_it_ = g_turn_of.compare_exchange_strong(holder, own, std::memory_order_acquire) ||
                (holder != own && g_turn_of.compare_exchange_strong(holder, own, std::memory_order_acquire));
      if (has_it_) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  ~Turn() {
    if (has_it_) g_turn_of.store(0, std::memory_order_release);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  static constexpr int kTries = 10;
  bool has_it_ = false;
};

/// Those of 0 to 2 that are closed, taken.
class TakenStandardStreams {
 public:
  TakenStandardStreams() noexcept {
    for (std::size_t i = 0; i < kStandardStreams && has_closed(); ++i) {
      const int fd = ::open("/", O_PATH | O_CLOEXEC);
      if (fd >= static_cast<int>(kStandardStreams)) ::close(fd);  // the job opened the last one meanwhile
      if (fd < 0 || fd >= static_cast<int>(kStandardStreams)) return;
      taken_[i] = fd;
    }
  }
  ~TakenStandardStreams() {
    struct stat root{};
    if (taken_[0] < 0 || ::stat("/", &root) != 0) return;
    for (const int fd : taken_) {
      struct stat status{};
      // The job may have put a file of its own there by dup2().
      if (fd >= 0 && ::fstat(fd, &status) == 0 && status.st_dev == root.st_dev && status.st_ino == root.st_ino) {
        ::close(fd);
      }
    }
  }
  TakenStandardStreams(const TakenStandardStreams&) = delete;
  TakenStandardStreams& operator=(const TakenStandardStreams&) = delete;

 private:
  static bool has_closed() noexcept {
    for (int fd = 0; fd < static_cast<int>(kStandardStreams); ++fd) {
      if (::fcntl(fd, F_GETFD) < 0) return true;
    }
    return false;
  }

  std::array<int, kStandardStreams> taken_{-1, -1, -1};
};

}  // namespace

int open_for_writing(const char* path, int flags, mode_t mode) noexcept {
  int fd = -1;
  int error_number = 0;
  {
    const Turn turn;
    const TakenStandardStreams taken;
    fd = move_from_standard_streams(::open(path, flags | O_CLOEXEC, mode));
    error_number = errno;
  }
  errno = error_number;
  return fd;
}

}  // namespace smon_rt
