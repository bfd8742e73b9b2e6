#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "format/in_flight.h"

namespace smon_rt {

/// The times of all steps on their way to the drain thread: what recording costs is read from the job's own steps, so
/// these are kept whatever the sampling. They lie in the arena, and leave it only when they are in the file.
///
/// Threading: one producer at a time (whoever ends steps), one consumer. When full: dropped, and push() says so.
class StepLog {
 public:
  static constexpr std::size_t kCapacity = 1024;  // a drain every 100 ms keeps up with steps of 0.1 ms

  /// `entries` has kCapacity of them.
  StepLog(std::span<StepTicks> entries, std::atomic<std::uint64_t>& write_index, std::atomic<std::uint64_t>& read_index)
      : entries_(entries), write_index_(write_index), read_index_(read_index) {}

  bool push(const StepTicks& step) noexcept {
    const std::uint64_t write = write_index_.load(std::memory_order_relaxed);
    // acquire: pairs with the release in take(): the entry to be overwritten has been copied.
    if (write - read_index_.load(std::memory_order_acquire) >= kCapacity) return false;
    entries_[write % kCapacity] = step;
    write_index_.store(write + 1, std::memory_order_release);  // pairs with the acquire in peek()
    return true;
  }

  /// Copies entries, leaving out the oldest `skipped`; how many.
  std::size_t peek(std::size_t skipped, std::span<StepTicks> out) const noexcept {
    const std::uint64_t first = read_index_.load(std::memory_order_relaxed) + skipped;
    const std::uint64_t write = write_index_.load(std::memory_order_acquire);  // pairs with the release in push()
    std::size_t count = 0;
    while (count < out.size() && first + count < write) {
      out[count] = entries_[(first + count) % kCapacity];
      ++count;
    }
    return count;
  }

  /// Takes the oldest entries out, which have been copied.
  void take(std::size_t count) noexcept {
    // release: pairs with the acquire in push().
    read_index_.store(read_index_.load(std::memory_order_relaxed) + count, std::memory_order_release);
  }

  /// Copies the oldest entries and takes them out; how many.
  std::size_t read(std::span<StepTicks> out) noexcept {
    const std::size_t count = peek(0, out);
    take(count);
    return count;
  }

 private:
  std::span<StepTicks> entries_;
  std::atomic<std::uint64_t>& write_index_;
  std::atomic<std::uint64_t>& read_index_;
};

}  // namespace smon_rt
