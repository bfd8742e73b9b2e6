#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "record/comm_tracker.h"

// The slots of CommTracker's pools. Everything in them is an atomic of its own: a callback that comes thousands of ops
// late may write into a slot that has just become another's, which spoils a time and nothing else.

namespace smon_rt {

struct alignas(kCacheLineBytes) CommTracker::Op {
  std::atomic<std::uint32_t> ticket{0};  // comm_handle::ticket_of, 0 while being written
  std::atomic<std::uint32_t> communicator{0};
  std::atomic<std::uint64_t> kinds{0};  // function, datatype, algorithm, protocol, channels, asks_kernels: a byte each
  std::atomic<std::int32_t> peer{kNoPeer};
  std::atomic<std::uint32_t> step{0};
  std::atomic<std::uint64_t> payload_bytes{0};
  std::atomic<std::uint64_t> library_seq{0};
  std::atomic<std::uint32_t> comm_seq{0};
  std::atomic<std::uint16_t> comm_id{kNoId};
  std::atomic<bool> is_captured{false};
  std::atomic<bool> is_sampled{false};
  std::atomic<std::uint8_t> slowest_channel{0};
  std::atomic<bool> has_rejected_times{false};
  std::atomic<std::uint32_t> span_numbering{0};
  std::atomic<std::int64_t> start_ticks{0};
  std::atomic<std::int64_t> enqueued_ticks{0};

  alignas(kCacheLineBytes) std::atomic<std::int64_t> first_transfer_ticks{0};
  std::atomic<std::int64_t> last_transfer_ticks{0};
  std::atomic<std::uint32_t> transfers{0};
  std::atomic<std::uint32_t> ended_transfers{0};
  std::atomic<std::uint64_t> kernel_start{0};
  std::atomic<std::uint64_t> kernel_stop{0};
  std::atomic<std::int64_t> kernel_begun_ticks{0};
  std::atomic<std::int64_t> kernel_seen_ticks{0};
  std::atomic<std::uint32_t> kernels{0};
  std::atomic<std::uint32_t> ended_kernels{0};

  bool asks_kernels() const noexcept { return (kinds.load(std::memory_order_relaxed) >> 40 & 1) != 0; }
  /// Free is what was enqueued, or never used, and has nothing open.
  bool take() noexcept {
    const auto get = [](const auto& counter) { return counter.load(std::memory_order_relaxed); };
    return (get(ticket) == 0 || get(enqueued_ticks) != 0) && get(transfers) == get(ended_transfers) &&
           get(kernels) == get(ended_kernels);
  }
};

struct alignas(kCacheLineBytes) CommTracker::Transfer {
  static constexpr std::uint16_t kLive = 8;  // steps: number << 4 | kLive | ChannelState
  static constexpr std::uint16_t kStateMask = 7;

  std::atomic<std::uint32_t> ticket{0};
  std::atomic<bool> is_open{false};
  std::atomic<bool> is_send{false};
  std::atomic<CommHandle> op{0};
  std::atomic<ChannelRecord*> channel{nullptr};
  std::array<std::atomic<std::uint16_t>, kStepsInFlight> steps{};

  bool take() noexcept { return !is_open.exchange(true, std::memory_order_acquire); }
};

struct CommTracker::Kernel {
  std::atomic<std::uint32_t> ticket{0};
  std::atomic<bool> is_open{false};
  std::atomic<bool> has_stopped{false};
  std::atomic<CommHandle> op{0};
  std::atomic<std::uint64_t> start{0};
  std::atomic<std::int64_t> begun_ticks{0};
  std::atomic<std::atomic<std::uint64_t>*> last_stop{nullptr};

  bool take() noexcept { return !is_open.exchange(true, std::memory_order_acquire); }
};

template <typename Slot>
Slot& CommTracker::take(const std::unique_ptr<Slot[]>& pool, std::size_t size, Counter& next,
                        std::uint64_t* number) noexcept {
  constexpr int kMaxProbes = 16;
  for (int probe = 1;; ++probe) {
    *number = next.fetch_add(1, std::memory_order_relaxed);
    Slot& slot = pool[*number % size];
    // acquire: pairs with the release by which whoever had it gave it back.
    const bool was_free = slot.take();
    if (!was_free && probe < kMaxProbes) continue;
    if (!was_free) count(lost_ends_);
    slot.ticket.store(0, std::memory_order_release);  // pairs with the second look of read_op()
    return slot;
  }
}

template <typename Slot>
Slot* CommTracker::find(const std::unique_ptr<Slot[]>& pool, std::size_t size, CommHandle handle, Type type) noexcept {
  if (!is_of(handle, type)) return nullptr;
  const std::uint32_t index = comm_handle::index_of(handle);
  // acquire: pairs with the release by which a slot becomes the handle's.
  if (index < size && pool[index].ticket.load(std::memory_order_acquire) == comm_handle::ticket_of(handle)) [[likely]] {
    return &pool[index];
  }
  count(stale_handles_);
  return nullptr;
}

}  // namespace smon_rt
