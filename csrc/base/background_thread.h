#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "base/result.h"

namespace smon_rt {

/// One of our own threads in the job's process: named, with every signal blocked (handlers of the job must not run on
/// it, and SIGXFSZ must not end the job), and never the reason that the process ends: what its body throws is kept.
///
/// Threading: start, join_until by one controlling thread; wait_for by the body; the rest by any. wake and request_stop
/// take no lock and allocate nothing: an exit handler may call them, whatever it has interrupted.
/// Odd case: a body that hangs (in a file system that does not answer) is left alone by the destructor, so the owner
/// must keep everything that it uses until has_ended().
class BackgroundThread {
 public:
  using Duration = std::chrono::nanoseconds;
  using TimePoint = std::chrono::steady_clock::time_point;

  /// At most 15 characters, as `ps -L` and debuggers show it.
  explicit BackgroundThread(std::string name) : name_(std::move(name)) {}
  ~BackgroundThread();
  BackgroundThread(const BackgroundThread&) = delete;
  BackgroundThread& operator=(const BackgroundThread&) = delete;

  Result<void> start(std::function<void()> body);

  /// Body: sleeps until the time has passed, wake() or request_stop(). Also publishes what the thread has cost so far.
  void wait_for(Duration duration);
  bool is_stop_requested() const { return stop_requested_.load(std::memory_order_acquire); }

  void wake();
  void request_stop();

  /// False if the body has not ended by then: try again, or leave it.
  bool join_until(TimePoint deadline);
  bool has_started() const { return has_started_; }
  bool has_ended() const { return ended_.load(std::memory_order_acquire); }

  /// Time on a processor, as of the last wait_for.
  std::uint64_t cpu_ns() const { return cpu_ns_.load(std::memory_order_relaxed); }
  /// What the body threw, "" if nothing. Only once has_ended().
  const std::string& failure() const { return failure_; }

 private:
  static void* run(void* self);
  void publish_cpu_time();

  const std::string name_;
  std::function<void()> body_;
  pthread_t thread_{};
  bool has_started_ = false;
  bool is_joined_ = false;
  std::string failure_;

  std::atomic<std::uint32_t> is_woken_{0};  // what a wait sleeps on, as a futex
  std::atomic<bool> stop_requested_{false};
  std::atomic<bool> ended_{false};  // release, after failure_
  std::atomic<std::uint64_t> cpu_ns_{0};
};

/// Runs `body` to its end on a thread of its own with signals blocked, for work that must not meet the caller's signal
/// mask. Runs it on the calling thread if no thread can be had.
void run_with_signals_blocked(const std::function<void()>& body);

}  // namespace smon_rt
