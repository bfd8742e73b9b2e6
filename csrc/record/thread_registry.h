#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "format/in_flight.h"
#include "record/arena.h"
#include "record/gpu_timer.h"
#include "record/span_words.h"

namespace smon_rt {

/// What a recording thread keeps to itself: its way to its ring and slots, without the offsets that a broken process
/// could have scribbled over. Never freed while the process lives: a thread's pointer to it is never dangling.
///
/// Threading: the owner alone, except `remote_frees` and `is_claimed`.
struct alignas(kCacheLineBytes) ThreadSlots {
  std::uint64_t epoch = 0;       // of the recorder it belongs to, 0: none
  std::uint64_t token_base = 0;  // what all tokens of its slots have in their upper 16 bits
  ThreadRecord* record = nullptr;
  Span* ring = nullptr;
  OpenSlot* slots = nullptr;
  // All slots: first the free ones, a stack whose top, the slot freed last, is still in the cache; then those of the
  // thread's open spans, from the innermost out, up to own_end; then those that a thread before it left open.
  std::uint16_t* order = nullptr;
  std::uint32_t free_count = 0;
  std::uint32_t own_end = 0;
  std::uint32_t slot_count = 0;
  std::uint64_t ring_mask = 0;
  std::uint64_t write_index = 0;
  std::uint64_t seen_read_index = 0;                        // read_index is looked at only when the ring seems full
  std::uint64_t nothing_to_reclaim_in = ~std::uint64_t{0};  // the step in which that was found
  std::uint16_t index = 0;
  std::atomic<bool> is_claimed{false};

  // Written by other threads: a line of its own.
  alignas(kCacheLineBytes) std::atomic<std::uint32_t> remote_frees{0};

  /// Hands a span to the drain thread. When full: false, and nothing is written.
  bool push(const SpanWords& words) noexcept {
    if (!seems_to_have_room()) [[unlikely]] {
      // acquire: pairs with the drain thread's release: it has copied what is overwritten now.
      seen_read_index = record->read_index.load(std::memory_order_acquire);
      if (!seems_to_have_room()) return false;
    }
    push_into_room(words);
    return true;
  }
  /// By what was last seen of the drain thread, which may have made room since.
  bool seems_to_have_room() const noexcept { return write_index - seen_read_index <= ring_mask; }
  void push_into_room(const SpanWords& words) noexcept {
    store_words<std::memory_order_relaxed>(ring[write_index & ring_mask], words);
    record->write_index.store(++write_index, std::memory_order_release);  // pairs with the drain thread's acquire
  }

  using KindCounts = std::array<std::uint32_t, 32>;

  /// Without a free slot: frees slots whose spans were begun in another step than this one and not ended, the oldest
  /// first, a quarter of all at most; how many, and of which kinds. A late end of such a span finds its token stale.
  ///
  /// What must not be taken for forgotten stays: what was begun first encloses everything (a sixteenth of the slots),
  /// what was begun last is what the thread is doing (another sixteenth); and spans of kinds that may last for many
  /// steps go only if there are no others. 0: there is nothing to give up before the next step. The timer, if any, gets
  /// their events back.
  std::uint32_t reclaim(std::uint32_t step, KindCounts& kinds, GpuTimer* timer = nullptr) noexcept;

  /// Takes over slots that other threads freed. False if there was none.
  bool collect_remote_frees() noexcept;
  /// Sorts `order` again, after spans of these slots were ended elsewhere.
  void collect_free_slots() noexcept;

  /// The slot for a span that begins; free_count must not be 0.
  std::uint16_t take_slot() noexcept { return order[--free_count]; }
  /// A slot whose span this thread ended. Spans most often end from the innermost out; others are looked for.
  void give_back(std::uint16_t slot) noexcept {
    if (order[free_count] == slot) [[likely]] {
      ++free_count;
    } else {
      give_back_outer(slot);
    }
  }

 private:
  [[gnu::noinline]] void give_back_outer(std::uint16_t slot) noexcept;
  std::uint32_t reclaim_kinds(std::uint32_t step, std::uint32_t allowed, KindCounts& kinds, GpuTimer* timer) noexcept;
};

namespace detail {
// What a thread has that has no record: of no recorder's epoch, and without a slot.
extern constinit ThreadSlots g_no_thread;
// The thread-local of the hot path, never null. initial-exec: one load without a call; the few bytes are within what
// the dynamic loader keeps for libraries that are loaded late.
extern constinit thread_local ThreadSlots* t_thread_slots __attribute__((tls_model("initial-exec")));
}  // namespace detail

/// A ring id that was not used in this process before, by whichever recorder: what tells spans apart in the files of
/// all.
std::uint32_t take_ring_id() noexcept;

/// Gives each recording thread a record of the arena, and takes it back when the thread ends and its ring is drained.
///
/// One pointer of thread-local memory a thread, and a countdown; a pthread key's destructor marks the exit. Records go
/// Free → Live (the thread that attaches) → Exited (its exit) → Free (the drain thread, once the ring is empty).
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
  ThreadSlots* current() const noexcept { return last().epoch == epoch_ ? &last() : nullptr; }
  /// What the calling thread had last: of this recorder if the epoch is its.
  static ThreadSlots& last() noexcept { return *detail::t_thread_slots; }
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
