#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace smon_rt {

enum class WorkerPriority {
  kNormal,
  kBackground  // gives way where others want the processor, and still gets on
};

/// A few threads that do jobs, in the order in which they came. Jobs that throw end the program: none should.
///
/// Threading: add() by any. The destructor drops what has not begun and waits for what has.
class WorkerPool {
 public:
  WorkerPool(std::size_t thread_count, WorkerPriority priority);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void add(std::function<void()> job);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace smon_rt
