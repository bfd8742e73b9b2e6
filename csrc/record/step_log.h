#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "format/in_flight.h"

namespace smon_rt {

/// One step as it happened, in ticks of the recorder's clock.
struct StepTicks {
  std::uint32_t step = 0;
  bool is_sampled = false;
  bool is_warmup = false;
  bool is_counted = false;  // the number is our own count
  std::int64_t start_ticks = 0;
  std::int64_t end_ticks = 0;
};

/// The times of all steps on their way to the drain thread: what recording costs is read from the job's own steps, so
/// these are kept whatever the sampling.
///
/// Threading: one producer at a time (whoever ends steps), one consumer. When full: dropped, and push() says so.
class StepLog {
 public:
  static constexpr std::size_t kCapacity = 1024;  // a drain every 100 ms keeps up with steps of 0.1 ms

  bool push(const StepTicks& step) noexcept {
    const std::uint64_t write = write_index_.load(std::memory_order_relaxed);
    // acquire: pairs with the release in read(): the entry to be overwritten has been copied.
    if (write - read_index_.load(std::memory_order_acquire) == kCapacity) return false;
    entries_[write % kCapacity] = step;
    write_index_.store(write + 1, std::memory_order_release);  // pairs with the acquire in read()
    return true;
  }

  /// Copies the oldest entries and takes them out; how many.
  std::size_t read(std::span<StepTicks> out) noexcept {
    const std::uint64_t read = read_index_.load(std::memory_order_relaxed);
    const std::uint64_t write = write_index_.load(std::memory_order_acquire);  // pairs with the release in push()
    std::size_t count = 0;
    while (count < out.size() && read + count < write) {
      out[count] = entries_[(read + count) % kCapacity];
      ++count;
    }
    read_index_.store(read + count, std::memory_order_release);  // pairs with the acquire in push()
    return count;
  }

 private:
  std::array<StepTicks, kCapacity> entries_{};
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> write_index_{0};
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> read_index_{0};
};

}  // namespace smon_rt
