#include "base/log.h"

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

constinit std::atomic<LogLevel> g_level{LogLevel::kWarning};

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
  std::array<char, kMaxLineBytes + 2> line;
  const std::string_view name = kLevelNames[static_cast<std::size_t>(level)];
  const int written = std::snprintf(line.data(), kMaxLineBytes, "smon_rt: %s: %.*s", name.data(),
                                    static_cast<int>(std::min(message.size(), kMaxLineBytes)), message.data());
  std::size_t length = std::min(static_cast<std::size_t>(std::max(written, 0)), kMaxLineBytes - 1);
  line[length++] = '\n';
  // A terminal that is gone is no reason to try again.
  [[maybe_unused]] const auto done = ::write(STDERR_FILENO, line.data(), length);
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
