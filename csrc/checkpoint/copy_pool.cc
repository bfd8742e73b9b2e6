#include "checkpoint/copy_pool.h"

#include <algorithm>
#include <cstring>

namespace smon_rt {

std::vector<CopyBatch> split_into_batches(std::span<const HostCopyRange> ranges, std::size_t batch_bytes) {
  std::vector<CopyBatch> batches;
  CopyBatch open;
  const auto close = [&] {
    if (open.range_count != 0) batches.push_back(open);
    open = {};
  };
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const std::size_t bytes = ranges[i].bytes;
    if (open.range_count != 0 && open.bytes + bytes > batch_bytes) close();
    if (bytes > batch_bytes) {
      for (std::size_t offset = 0; offset < bytes; offset += batch_bytes) {
        batches.push_back({static_cast<std::uint32_t>(i), 1, offset, std::min(batch_bytes, bytes - offset)});
      }
      continue;
    }
    if (open.range_count == 0) open.first_range = static_cast<std::uint32_t>(i);
    ++open.range_count;
    open.bytes += bytes;
  }
  close();
  return batches;
}

CopyPool::CopyPool(std::size_t thread_count, std::function<void()> on_done) : on_done_(std::move(on_done)) {
  for (std::size_t i = 0; i < thread_count; ++i) {
    auto thread = std::make_unique<BackgroundThread>("smon_copy");
    BackgroundThread& self = *thread;
    const auto started = thread->start([this, &self] {
      while (!self.is_stop_requested()) {
        while (run_one()) {
        }
        self.wait_for(std::chrono::hours(1));
      }
    });
    if (!started) break;
    threads_.push_back(std::move(thread));
  }
}

CopyPool::~CopyPool() {
  cancel();
  for (const auto& each : threads_) each->request_stop();
  for (const auto& each : threads_) {
    while (!each->join_until(std::chrono::steady_clock::now() + std::chrono::seconds(1))) {
    }
  }
}

void CopyPool::start(std::span<const HostCopyRange> ranges, std::span<const CopyBatch> batches) {
  ranges_ = ranges;
  batches_ = batches;
  is_cancelled_.store(false, std::memory_order_relaxed);
  left_.store(batches.size(), std::memory_order_relaxed);
  // release: pairs with the acquire in run_one(): who takes a batch sees the list, and what the ranges hold.
  next_.store(std::uint64_t{batches.size()} << 32, std::memory_order_release);
  // No more than there is work for.
  const std::size_t count = std::min(threads_.size(), batches.size());
  for (std::size_t i = 0; i < count; ++i) threads_[i]->wake();
}

bool CopyPool::run_one() {
  std::uint64_t ticket = next_.load(std::memory_order_acquire);
  do {
    if ((ticket & 0xffff'ffff) >= ticket >> 32) return false;
  } while (!next_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acquire, std::memory_order_acquire));
  if (!is_cancelled_.load(std::memory_order_relaxed)) copy(batches_[ticket & 0xffff'ffff]);
  // acq_rel: the last one has all other threads' copies behind it.
  if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) on_done_();
  return true;
}

void CopyPool::copy(const CopyBatch& batch) const {
  if (batch.range_count == 1) {
    const HostCopyRange& range = ranges_[batch.first_range];
    std::memcpy(range.to + batch.offset, range.from + batch.offset, batch.bytes);
    return;
  }
  for (const HostCopyRange& range : ranges_.subspan(batch.first_range, batch.range_count)) {
    if (range.bytes != 0) std::memcpy(range.to, range.from, range.bytes);
  }
}

void CopyPool::help(std::chrono::steady_clock::time_point deadline) {
  while (run_one() && std::chrono::steady_clock::now() < deadline) {
  }
}

}  // namespace smon_rt
