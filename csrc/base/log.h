#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>

namespace smon_rt {

enum class LogLevel : int { kOff = 0, kError = 1, kWarning = 2, kInfo = 3, kDebug = 4 };

/// "off", "error", "warning", "info" or "debug".
std::optional<LogLevel> parse_log_level(std::string_view text) noexcept;

/// What is less important than this is left out. kWarning until set.
void set_log_level(LogLevel level) noexcept;
LogLevel log_level() noexcept;

/// Writes one line, "smon_rt: warning: <message>", to standard error: in one piece, so that ranks sharing a terminal do
/// not mix, and cut at 1,000 bytes.
///
/// Threading: any thread; never on the hot path, since it is a system call.
/// When standard error is full (a pipe that nobody reads) or gone: the line is dropped and counted, and the next one
/// that gets through says how many were. Never waits.
void log(LogLevel level, std::string_view message) noexcept;

/// Lets one message of its kind through in each interval and counts the others.
///
/// Threading: any thread.
class LogLimiter {
 public:
  static constexpr std::int64_t kMinuteNs = 60'000'000'000;

  explicit LogLimiter(std::int64_t interval_ns = kMinuteNs) : interval_ns_(interval_ns) {}

  /// now_ns of CLOCK_MONOTONIC. True at most once in an interval.
  bool may_log(std::int64_t now_ns) noexcept;
  /// How many were held back since the last one let through; 0 after.
  std::uint64_t take_suppressed() noexcept { return suppressed_.exchange(0, std::memory_order_relaxed); }

 private:
  std::int64_t interval_ns_;
  std::atomic<std::int64_t> next_ns_{0};
  std::atomic<std::uint64_t> suppressed_{0};
};

}  // namespace smon_rt
