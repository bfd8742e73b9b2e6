#include "agent/worker_pool.h"

#include <pthread.h>
#include <sys/resource.h>

#include <csignal>
#include <utility>

namespace smon_rt {

WorkerPool::WorkerPool(std::size_t thread_count, WorkerPriority priority) {
  // The program's signals are its main thread's.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  for (std::size_t i = 0; i < thread_count; ++i) {
    threads_.emplace_back([this, priority] {
      // A tenth of a processor that others want too. Not SCHED_IDLE: where all are busy it would get nothing, no step
      // would ever be captured, and a restart would wait for what is queued. Of 0 the kernel makes the calling thread.
      if (priority == WorkerPriority::kBackground) ::setpriority(PRIO_PROCESS, 0, 10);
      run();
    });
    ::pthread_setname_np(threads_.back().native_handle(),
                         priority == WorkerPriority::kBackground ? "smon-back" : "smon-work");
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    jobs_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::add(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void WorkerPool::run() {
  while (true) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_stopping_ || !jobs_.empty(); });
      if (is_stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace smon_rt
