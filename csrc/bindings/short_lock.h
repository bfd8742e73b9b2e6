#pragma once

#include <time.h>

#include <atomic>

namespace smon_rt::bindings {

/// A lock for a few hundred instructions: a mutex of pthreads alone runs fifty. Whoever finds it taken sleeps, so that
/// a holder of lower priority gets on.
class ShortLock {
 public:
  void lock() {
    while (is_taken_.exchange(true, std::memory_order_acquire)) sleep();
  }
  void unlock() { is_taken_.store(false, std::memory_order_release); }

 private:
  [[gnu::noinline, gnu::cold]] static void sleep() {
    const timespec a_moment{0, 1000};
    ::nanosleep(&a_moment, nullptr);
  }

  std::atomic<bool> is_taken_{false};
};

}  // namespace smon_rt::bindings
