#include "killed_job.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "killed_trainer.h"

namespace smon_rt {

KilledJob::KilledJob(std::string folder, std::uint32_t seed) : folder_(std::move(folder)), random_(seed) {
  void* const shared = ::mmap(nullptr, sizeof(Store), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) {
    std::abort();
  }
  store_ = new (shared) Store();
}

KilledJob::~KilledJob() {
  for (const pid_t pid : trainers_) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  ::munmap(store_, sizeof(Store));
}

void KilledJob::start() {
  ++attempt_;
  for (auto& arrivals : store_->arrivals) {
    arrivals = 0;
  }
  store_->incarnation = 0;
  store_->has_gone_on = false;
  store_->is_killing = false;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    store_->at[rank] = 0;
    const pid_t pid = ::fork();
    if (pid == 0) {
      run_killed_trainer(*store_, {folder_, rank, attempt_});
    }
    trainers_.push_back(pid);
  }
}

bool KilledJob::run_and_kill() {
  start();
  // Into the restart as well as into training: mostly the latter. There after so many steps, not after a time: a
  // slow machine gets as far as a fast one.
  if (random_() % 5 != 0) {
    const auto steps = [this] { return store_->captures + store_->skips; };  // of all ranks
    const std::uint64_t enough = steps() + random_() % (16 * kRanks);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!(store_->has_gone_on && steps() >= enough) && !store_->has_failed &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 3000));
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 40000));
  }
  // The launcher kills the others a little later.
  std::shuffle(trainers_.begin(), trainers_.end(), random_);
  store_->is_killing = true;
  ::kill(trainers_[0], SIGKILL);
  std::this_thread::sleep_for(std::chrono::microseconds(random_() % 3000));
  for (const pid_t pid : trainers_) {
    ::kill(pid, SIGKILL);
  }
  for (const pid_t pid : std::exchange(trainers_, {})) {
    ::waitpid(pid, nullptr, 0);
  }
  return !store_->has_failed;
}

bool KilledJob::run_to_end() {
  start();
  for (const pid_t pid : std::exchange(trainers_, {})) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      fail_job(*store_, "a trainer of the last attempt ended with " + std::to_string(status));
    }
  }
  return !store_->has_failed;
}

}  // namespace smon_rt
