#include "base/background_thread.h"

#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <utility>

namespace smon_rt {
namespace {

// Encoding needs some 60 KB of stack; sanitizers several times that. The default of 8 MiB would count against a limit
// on locked memory (mlockall) for nothing.
constexpr std::size_t kStackBytes = std::size_t{1} << 20;

/// Signals are blocked from the first instruction on: the new thread inherits the mask of its maker.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

// A futex and no condition variable, whose lock an exit handler may not take.
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

void sleep_while_zero(std::atomic<std::uint32_t>& word, std::chrono::nanoseconds at_most) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  timespec time{};
  time.tv_sec = static_cast<time_t>(seconds.count());
  time.tv_nsec = static_cast<long>((at_most - seconds).count());
  // Returns early for many reasons: the caller looks again.
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &time, nullptr, 0);
}

void wake_sleeper(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

}  // namespace

BackgroundThread::~BackgroundThread() {
  if (!has_started_ || is_joined_) return;
  request_stop();
  // Whoever deletes us has given up on the body, or knows that it has ended.
  if (has_ended()) {
    pthread_join(thread_, nullptr);
  } else {
    pthread_detach(thread_);
  }
}

Result<void> BackgroundThread::start(std::function<void()> body) {
  body_ = std::move(body);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  const BlockedSignals blocked;
  const int error_number = pthread_create(&thread_, &attributes, &BackgroundThread::run, this);
  pthread_attr_destroy(&attributes);
  if (error_number != 0) {
    char buffer[128] = {};
    return Error{"cannot start thread " + name_ + ": " + strerror_r(error_number, buffer, sizeof buffer) +
                 ": raise the limit of processes (ulimit -u) or of the container's pids"};
  }
  has_started_ = true;
  return {};
}

void* BackgroundThread::run(void* self) {
  auto& thread = *static_cast<BackgroundThread*>(self);
  pthread_setname_np(pthread_self(), thread.name_.substr(0, 15).c_str());
  try {
    thread.body_();
  } catch (const std::exception& exception) {
    thread.failure_ = thread.name_ + " ended: " + exception.what();
  } catch (...) {
    thread.failure_ = thread.name_ + " ended by an unknown exception";
  }
  thread.publish_cpu_time();
  // release: pairs with has_ended(), so that whoever sees it may read failure_ and free what the body used.
  thread.ended_.store(true, std::memory_order_release);
  return nullptr;
}

void BackgroundThread::publish_cpu_time() {
  timespec time{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0) {
    cpu_ns_.store(static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec),
                  std::memory_order_relaxed);
  }
}

void BackgroundThread::wait_for(Duration duration) {
  publish_cpu_time();
  const TimePoint until = std::chrono::steady_clock::now() + duration;
  // acquire: pairs with the release in wake().
  while (!is_stop_requested() && is_woken_.exchange(0, std::memory_order_acquire) == 0) {
    const Duration left = until - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) return;
    sleep_while_zero(is_woken_, left);
  }
}

void BackgroundThread::wake() {
  is_woken_.store(1, std::memory_order_release);
  wake_sleeper(is_woken_);
}

void BackgroundThread::request_stop() {
  stop_requested_.store(true, std::memory_order_release);
  wake();
}

bool BackgroundThread::join_until(TimePoint deadline) {
  if (!has_started_ || is_joined_) return true;
  const auto left = deadline - std::chrono::steady_clock::now();
  // pthread_timedjoin_np takes CLOCK_REALTIME, which may be set meanwhile: convert late, and look at has_ended() too.
  timespec until{};
  clock_gettime(CLOCK_REALTIME, &until);
  const auto nanoseconds = std::max<std::int64_t>(0, std::chrono::duration_cast<Duration>(left).count());
  until.tv_sec += nanoseconds / 1'000'000'000;
  until.tv_nsec += nanoseconds % 1'000'000'000;
  if (until.tv_nsec >= 1'000'000'000) {
    until.tv_nsec -= 1'000'000'000;
    ++until.tv_sec;
  }
  if (pthread_timedjoin_np(thread_, nullptr, &until) != 0) return false;
  is_joined_ = true;
  return true;
}

void run_with_signals_blocked(const std::function<void()>& body) {
  BackgroundThread thread("smon_start");
  if (!thread.start(body)) {
    body();
    return;
  }
  while (!thread.join_until(std::chrono::steady_clock::now() + std::chrono::hours(1))) {
  }
}

}  // namespace smon_rt
