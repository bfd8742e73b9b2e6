#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "format/in_flight.h"
#include "record/arena.h"
#include "record/span_words.h"

namespace smon_rt {

/// Neighbours of an open span in its thread's list. `above` of the innermost means nothing.
struct SlotLinks {
  static constexpr std::uint16_t kUnlisted = 0xfffe;
  std::uint16_t below = 0;
  std::uint16_t above = kUnlisted;
};

/// What a recording thread keeps to itself: its way to its ring and slots, without the offsets that a broken process
/// could have scribbled over. Never freed while the process lives: a thread's pointer to it is never dangling.
///
/// Threading: the owner alone, except `remote_frees` and `is_claimed`.
struct alignas(kCacheLineBytes) ThreadSlots {
  static constexpr std::uint16_t kNone = 0xffff;

  std::uint64_t epoch = 0;       // of the recorder it belongs to, 0: none
  std::uint64_t token_base = 0;  // what all tokens of its slots have in their upper 16 bits
  ThreadRecord* record = nullptr;
  Span* ring = nullptr;
  OpenSlot* slots = nullptr;
  SlotLinks* links = nullptr;
  std::uint16_t* free_slots = nullptr;  // a stack: the slot freed last is still in the cache
  std::uint32_t free_count = 0;
  std::uint32_t slot_count = 0;
  std::uint64_t ring_mask = 0;
  std::uint64_t write_index = 0;
  std::uint64_t seen_read_index = 0;  // read_index is looked at only when the ring seems full
  std::uint16_t top = kNone;          // innermost open span
  std::uint16_t index = 0;
  std::atomic<bool> is_claimed{false};

  // Written by other threads: a line of its own.
  alignas(kCacheLineBytes) std::atomic<std::uint32_t> remote_frees{0};

  /// Hands a span to the drain thread. When full: false, and nothing is written.
  bool push(const SpanWords& words) noexcept {
    const std::uint64_t write = write_index;
    if (write - seen_read_index > ring_mask) [[unlikely]] {
      // acquire: pairs with the drain thread's release: it has copied what is overwritten now.
      seen_read_index = record->read_index.load(std::memory_order_acquire);
      if (write - seen_read_index > ring_mask) return false;
    }
    store_words<std::memory_order_relaxed>(ring[write & ring_mask], words);
    write_index = write + 1;
    record->write_index.store(write + 1, std::memory_order_release);  // pairs with the drain thread's acquire
    return true;
  }

  /// Takes over slots that other threads freed. False if there was none.
  bool collect_remote_frees() noexcept;
  /// Puts every slot that is not open into the stack.
  void collect_free_slots() noexcept;
  void push_open(std::uint16_t slot) noexcept {
    links[slot] = {top, kNone};
    if (top != kNone) links[top].above = slot;
    top = slot;
  }
  void remove_open(std::uint16_t slot) noexcept {
    const SlotLinks link = links[slot];
    if (link.above == SlotLinks::kUnlisted) return;
    links[slot].above = SlotLinks::kUnlisted;
    if (slot == top) {
      top = link.below;
      return;
    }
    links[link.above].below = link.below;
    if (link.below != kNone) links[link.below].above = link.above;
  }
};

namespace detail {
// The one thread-local of the recorder: a ThreadSlots*, or an odd number while the thread has none. initial-exec: one
// load without a call; 8 bytes are within what the dynamic loader keeps for libraries that are loaded late.
extern constinit thread_local std::uintptr_t t_thread_slots __attribute__((tls_model("initial-exec")));
}  // namespace detail

/// A ring id that was not used in this process before, by whichever recorder: what tells spans apart in the files of
/// all.
std::uint32_t take_ring_id() noexcept;

/// Gives each recording thread a record of the arena, and takes it back when the thread ends and its ring is drained.
///
/// One pointer of thread-local memory a thread; a pthread key's destructor marks the exit. Records go Free → Live (the
/// thread that attaches) → Exited (its exit) → Free (the drain thread, once the ring is empty).
///
/// Threading: any thread, lock-free. Cost: current() two loads; attaching scans the records, once a thread.
/// When full: no record: the thread's spans are dropped and counted, and it asks again every kRetryEvery spans.
class ThreadRegistry {
 public:
  static constexpr std::uint32_t kRetryEvery = 256;

  explicit ThreadRegistry(Arena& arena);
  ThreadRegistry(const ThreadRegistry&) = delete;
  ThreadRegistry& operator=(const ThreadRegistry&) = delete;

  /// The calling thread's part, nullptr if it has none. attach() gives it one.
  ThreadSlots* current() const noexcept { return current(epoch_); }
  static ThreadSlots* current(std::uint64_t epoch) noexcept {
    const std::uintptr_t word = detail::t_thread_slots;
    if (word == 0 || (word & 1) != 0) [[unlikely]]
      return nullptr;
    auto* thread = reinterpret_cast<ThreadSlots*>(word);
    return thread->epoch == epoch ? thread : nullptr;
  }
  ThreadSlots* attach() noexcept;

  /// By number in the arena; number must be below size().
  ThreadSlots& operator[](std::size_t thread) noexcept { return block_[thread]; }
  std::size_t size() const noexcept { return size_; }

  /// Different for each registry of a process.
  std::uint64_t epoch() const noexcept { return epoch_; }
  /// In every token: tells those of other recorders apart.
  std::uint8_t nonce() const noexcept { return nonce_; }

  /// Spans pushed by all threads, those that are gone included.
  std::uint64_t pushed_spans() const noexcept;

 private:
  ThreadSlots* claim(std::size_t begin, std::size_t end) noexcept;
  void set_up(ThreadSlots& thread) noexcept;

  Arena& arena_;
  std::uint64_t epoch_;
  std::uint8_t nonce_;
  ThreadSlots* block_ = nullptr;
  std::size_t size_ = 0;
  std::atomic<std::uint64_t> retired_spans_{0};
};

}  // namespace smon_rt
