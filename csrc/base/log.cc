#include "base/log.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace smon_rt {

namespace {

constexpr std::array<std::string_view, 5> kLevelNames = {"off", "error", "warning", "info", "debug"};
constexpr std::size_t kMaxLineBytes = 1000;

// With both lines still less than PIPE_BUF: a pipe takes them in one piece.
constexpr std::size_t kMaxNoteBytes = 100;

constinit std::atomic<LogLevel> g_level{LogLevel::kWarning};
constinit std::atomic<std::uint64_t> g_dropped{0};

/// False unless standard error takes it at once: whoever should read it may have stopped, and the job must not wait.
bool write_at_once(const char* bytes, std::size_t size) noexcept {
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  // Anything beside POLLOUT: closed, or a pipe without a reader, where the write would raise SIGPIPE.
  if (::poll(&room, 1, 0) != 1 || room.revents != POLLOUT) return false;
  struct stat status{};
  if (::fstat(STDERR_FILENO, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode))) {
    // Another rank on the same pipe may have filled it since the poll.
    const iovec piece{const_cast<char*>(bytes), size};
    const ssize_t count = ::pwritev2(STDERR_FILENO, &piece, 1, -1, RWF_NOWAIT);
    if (count >= 0) return true;
    if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) return false;  // else a kernel that cannot do this
  }
  return ::write(STDERR_FILENO, bytes, size) >= 0;
}

}  // namespace

std::optional<LogLevel> parse_log_level(std::string_view text) noexcept {
  const auto found = std::find(kLevelNames.begin(), kLevelNames.end(), text);
  if (found == kLevelNames.end()) return std::nullopt;
  return static_cast<LogLevel>(found - kLevelNames.begin());
}

void set_log_level(LogLevel level) noexcept {
  g_level.store(level, std::memory_order_relaxed);
}

LogLevel log_level() noexcept {
  return g_level.load(std::memory_order_relaxed);
}

void log(LogLevel level, std::string_view message) noexcept {
  if (level == LogLevel::kOff || level > log_level()) return;
  const int saved_errno = errno;
  std::array<char, kMaxNoteBytes + kMaxLineBytes + 2> text;
  std::size_t length = 0;
  const std::uint64_t dropped = g_dropped.exchange(0, std::memory_order_relaxed);
  if (dropped != 0) {
    const int noted =
        std::snprintf(text.data(), kMaxNoteBytes,
                      "smon_rt: warning: %llu lines before this were dropped: standard error took no more\n",
                      static_cast<unsigned long long>(dropped));
    length = std::min(static_cast<std::size_t>(std::max(noted, 0)), kMaxNoteBytes - 1);
  }
  char* const line = text.data() + length;
  const std::string_view name = kLevelNames[static_cast<std::size_t>(level)];
  const int written = std::snprintf(line, kMaxLineBytes, "smon_rt: %s: %.*s", name.data(),
                                    static_cast<int>(std::min(message.size(), kMaxLineBytes)), message.data());
  length += std::min(static_cast<std::size_t>(std::max(written, 0)), kMaxLineBytes - 1);
  text[length++] = '\n';
  if (!write_at_once(text.data(), length)) g_dropped.fetch_add(dropped + 1, std::memory_order_relaxed);
  errno = saved_errno;
}

bool LogLimiter::may_log(std::int64_t now_ns) noexcept {
  std::int64_t next = next_ns_.load(std::memory_order_relaxed);
  if (now_ns >= next && next_ns_.compare_exchange_strong(next, now_ns + interval_ns_, std::memory_order_relaxed)) {
    return true;
  }
  suppressed_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

}  // namespace smon_rt
