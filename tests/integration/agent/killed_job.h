#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace smon_rt {

/// A job of a few trainers on one node, over the C interface and a real smon-agent, whose trainers are killed. Each
/// trainer's state follows from its rank and step alone, so that a restored one can be compared bit for bit.
///
/// The trainers are forked from the test, which never calls the library itself; memory that they share is their store.
class KilledJob {
 public:
  static constexpr std::size_t kRanks = 3;

  /// What trainers tell each other and the test.
  struct Store {
    std::atomic<std::uint32_t> arrivals[64];  // a barrier each, of one attempt
    std::atomic<std::uint32_t> incarnation;   // the newest that any agent has heard of
    std::atomic<std::uint32_t> list_sizes[kRanks];
    std::atomic<std::uint32_t> list_incarnations[kRanks][8];
    std::atomic<std::uint64_t> list_steps[kRanks][8];
    std::atomic<std::uint64_t> at[kRanks];  // the last step that a rank ended
    std::atomic<bool> has_gone_on;
    std::atomic<bool> is_killing;  // the first of them may be dead
    // Over all attempts.
    std::atomic<std::uint64_t> agreed_step;
    std::atomic<std::uint32_t> agreed_incarnation;
    std::atomic<std::uint64_t> restored_step;
    std::atomic<std::uint32_t> restored_incarnation;
    std::atomic<std::uint64_t> restores;
    std::atomic<std::uint64_t> captures;
    std::atomic<std::uint64_t> skips;
    std::atomic<bool> has_failed;
    char failure[1024];
  };

  KilledJob(std::string folder, std::uint32_t seed);
  ~KilledJob();
  KilledJob(const KilledJob&) = delete;
  KilledJob& operator=(const KilledJob&) = delete;

  /// Starts all trainers and kills them at a random moment, one of them first. False: something was wrong.
  bool run_and_kill();
  /// Starts all and lets them end the job. False: something was wrong.
  bool run_to_end();

  const Store& store() const { return *store_; }
  std::string failure() const { return store_->failure; }

 private:
  void start();

  std::string folder_;
  std::mt19937 random_;
  Store* store_;
  std::uint32_t attempt_ = 0;
  std::vector<pid_t> trainers_;
};

}  // namespace smon_rt
