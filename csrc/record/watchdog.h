#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/background_thread.h"
#include "base/result.h"
#include "format/in_flight.h"

namespace smon_rt {

struct WatchdogOptions {
  // A beat costs some 20 µs where the job's work has filled the caches; two a second are enough to tell a process that
  // hangs from one that is stopped.
  std::chrono::nanoseconds every = std::chrono::milliseconds(500);
};

/// What the watchdog saw. Times in nanoseconds of CLOCK_MONOTONIC.
struct WatchdogCounters {
  std::uint64_t beats = 0;
  // Longest time between two beats: far more than `every` means that the whole process did not run (stopped, swapped
  // out, throttled), which no reading of its spans would tell.
  std::int64_t longest_gap_ns = 0;
  std::int64_t longest_drain_gap_ns = 0;  // the drain thread: more means that its file system did not answer
  std::int64_t longest_reporter_gap_ns = 0;
  std::int64_t last_step_change_ns = 0;  // when header.step was seen to change last, 0: never
};

/// Shows that the process runs, and watches that our other threads and the job's steps go on.
///
/// Threading: a thread of its own that touches nothing but memory, so that it goes on when files, locks of the job or a
/// GPU do not answer. counters() from any thread.
class Watchdog {
 public:
  explicit Watchdog(ArenaHeader& header, WatchdogOptions options = {}) : header_(header), options_(options) {}

  Result<void> start();
  void request_stop() { thread_.request_stop(); }
  bool join_until(std::chrono::steady_clock::time_point deadline) { return thread_.join_until(deadline); }
  const BackgroundThread& thread() const { return thread_; }

  WatchdogCounters counters() const;

  /// One beat at this time; what the thread does again and again.
  void beat(std::int64_t now_ns);

 private:
  ArenaHeader& header_;
  const WatchdogOptions options_;
  BackgroundThread thread_{"smon_watchdog"};

  // Written by the thread alone.
  std::int64_t last_beat_ns_ = 0;
  std::int64_t last_step_ = -1;
  std::atomic<std::uint64_t> beats_{0};
  std::atomic<std::int64_t> longest_gap_ns_{0};
  std::atomic<std::int64_t> longest_drain_gap_ns_{0};
  std::atomic<std::int64_t> longest_reporter_gap_ns_{0};
  std::atomic<std::int64_t> last_step_change_ns_{0};
};

}  // namespace smon_rt
