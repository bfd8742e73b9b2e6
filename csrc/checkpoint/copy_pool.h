#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/background_thread.h"

namespace smon_rt {

struct HostCopyRange {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t bytes = 0;
};

/// A part of a list of ranges that one thread copies at once: some whole ones, or a piece of a large one.
struct CopyBatch {
  std::uint32_t first_range = 0;
  std::uint32_t range_count = 0;
  std::size_t offset = 0;  // in the first; with one range only
  std::size_t bytes = 0;
};

/// About `batch_bytes` each.
std::vector<CopyBatch> split_into_batches(std::span<const HostCopyRange> ranges, std::size_t batch_bytes);

/// Copies lists of ranges of the host's memory, one list at a time, by a few threads; who waits for it copies too.
///
/// Threading: start, cancel and help by the owner's thread; `on_done` is called by the thread that did the last batch,
/// exactly once a list, when no thread reads or writes a range of it any more.
class CopyPool {
 public:
  CopyPool(std::size_t thread_count, std::function<void()> on_done);
  /// Waits for the threads, which are at most one batch away from their end.
  ~CopyPool();

  /// Not while a list is under way. The spans are used until on_done. Without a thread (none could be started) all is
  /// copied by help().
  void start(std::span<const HostCopyRange> ranges, std::span<const CopyBatch> batches);
  /// What is not begun is left out; on_done is called all the same.
  void cancel() { is_cancelled_.store(true, std::memory_order_relaxed); }
  /// Does what is left to begin, batch by batch, until the time has come.
  void help(std::chrono::steady_clock::time_point deadline);

 private:
  bool run_one();
  void copy(const CopyBatch& batch) const;

  std::function<void()> on_done_;
  // What the current list is; written before next_ (release), read after it (acquire).
  std::span<const HostCopyRange> ranges_;
  std::span<const CopyBatch> batches_;
  // How many batches there are, times 2^32, plus the next: in one word, so that a thread that comes late never takes a
  // number of one list for one of another.
  std::atomic<std::uint64_t> next_{0};
  std::atomic<std::uint64_t> left_{0};
  std::atomic<bool> is_cancelled_{false};
  std::vector<std::unique_ptr<BackgroundThread>> threads_;
};

}  // namespace smon_rt
