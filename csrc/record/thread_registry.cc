#include "record/thread_registry.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <mutex>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "base/process_state.h"
#include "record/gpu_spans.h"
#include "record/open_slot.h"

namespace smon_rt {

namespace detail {
constinit ThreadSlots g_no_thread;
constinit thread_local ThreadSlots* t_thread_slots = &g_no_thread;
}  // namespace detail

namespace {

using detail::t_thread_slots;

/// A thread without a record: the epoch it asked in, and how many spans are left until it asks again.
struct Retry {
  std::uint64_t epoch = 0;
  std::uint32_t countdown = 0;
};
constinit thread_local Retry t_retry __attribute__((tls_model("initial-exec")));

constinit std::atomic<std::uint64_t> g_next_epoch{1};

constexpr std::uint32_t bits_of(std::initializer_list<Kind> kinds) {
  std::uint32_t bits = 0;
  for (const Kind kind : kinds) bits |= std::uint32_t{1} << static_cast<unsigned>(kind);
  return bits;
}

// May enclose many steps. The others are over within one, or nearly so.
constexpr std::uint32_t kLongKinds = bits_of({Kind::kEval, Kind::kStartup, Kind::kUser, Kind::kCheckpointSnapshot});

/// Differs between one recorder and the next of a process, and most often from other processes; never 0.
std::uint8_t make_nonce(std::uint64_t epoch) {
  const auto seed = static_cast<std::uint64_t>(::getpid()) * 0x9e3779b97f4a7c15 >> 32;
  return static_cast<std::uint8_t>(1 + (seed + epoch) % 255);
}

/// The destructor of the pthread key, in the thread that ends.
void on_thread_exit(void* pointer) {
  auto* thread = static_cast<ThreadSlots*>(pointer);
  t_thread_slots = &detail::g_no_thread;
  // release: pairs with the drain thread's acquire, whose last look at the ring then sees every span of the thread.
  thread->record->state.store(ThreadState::kExited, std::memory_order_release);
  thread->is_claimed.store(false, std::memory_order_release);  // pairs with the exchange in claim()
}

/// Nothing where the process has no keys left: then threads keep their records when they end, and those that come after
/// the last one go without. Never somebody else's key.
const std::optional<pthread_key_t>& exit_key() {
  static const std::optional<pthread_key_t> key = [] {
    pthread_key_t made{};
    return ::pthread_key_create(&made, &on_thread_exit) == 0 ? std::optional(made) : std::nullopt;
  }();
  return key;
}

struct Block {
  std::unique_ptr<ThreadSlots[]> threads;
  std::unique_ptr<std::uint16_t[]> order;
};

/// Keeps a block for the rest of the process: some thread may still point to it.
ThreadSlots* keep(Block block) {
  static auto& mutex = *new std::mutex;
  static auto& blocks = *new std::vector<Block>;
  const std::lock_guard lock(mutex);
  blocks.push_back(std::move(block));
  return blocks.back().threads.get();
}

}  // namespace

namespace {

/// What an open span has of a GPU.
void release_events(OpenSlot& slot, GpuTimer& timer) noexcept {
  const std::uint64_t begun = load_word<std::memory_order_relaxed>(slot.span, span_word::kDeviceStart);
  if (begun == 0) return;
  const std::uint64_t open_end = load_word<std::memory_order_relaxed>(slot.span, span_word::kDeviceEnd);
  store_word<std::memory_order_relaxed>(slot.span, span_word::kDeviceStart, 0);
  store_word<std::memory_order_relaxed>(slot.span, span_word::kDeviceEnd, 0);
  timer.release(static_cast<EventSlot>(begun));
  timer.release(marked_event(open_end));
}

}  // namespace

bool ThreadSlots::collect_remote_frees() noexcept {
  // Relaxed: it only says that a look is worthwhile; the states of the slots carry the order.
  if (remote_frees.load(std::memory_order_relaxed) == 0) return false;
  remote_frees.exchange(0, std::memory_order_relaxed);
  collect_free_slots();
  return free_count > 0;
}

void ThreadSlots::collect_free_slots() noexcept {
  // From the back: what is open sinks to the end, in its order, and changes places with what was freed.
  std::uint32_t open_begin = slot_count;
  std::uint32_t inherited = 0;
  for (std::uint32_t i = slot_count; i-- > free_count;) {
    // acquire: pairs with the release that freed the slot: its span has been read.
    const auto state = slots[order[i]].state.load(std::memory_order_acquire);
    if ((state & OpenSlot::kStateMask) == OpenSlot::kFree) continue;
    std::swap(order[--open_begin], order[i]);
    if (i >= own_end) ++inherited;
  }
  free_count = open_begin;
  own_end = slot_count - inherited;
}

std::uint32_t ThreadSlots::reclaim(std::uint32_t step, KindCounts& kinds, GpuTimer* timer) noexcept {
  // As long as the step is the same, none of its spans becomes one of another: not looked at again for each span.
  if (nothing_to_reclaim_in == step) return 0;
  std::uint32_t reclaimed = reclaim_kinds(step, ~kLongKinds, kinds, timer);
  if (reclaimed == 0) reclaimed = reclaim_kinds(step, kLongKinds, kinds, timer);
  if (reclaimed == 0) {
    nothing_to_reclaim_in = step;
  } else {
    collect_free_slots();
  }
  return reclaimed;
}

std::uint32_t ThreadSlots::reclaim_kinds(std::uint32_t step, std::uint32_t allowed, KindCounts& kinds,
                                         GpuTimer* timer) noexcept {
  const std::uint32_t kept = std::max(slot_count / 16, std::uint32_t{1});
  const std::uint32_t most = std::max(slot_count / 4, std::uint32_t{1});
  std::uint32_t reclaimed = 0;
  for (std::uint32_t i = slot_count; i-- > free_count && reclaimed < most;) {
    if (i < own_end && (i < free_count + kept || i + kept >= own_end)) continue;
    OpenSlot& slot = slots[order[i]];
    // acquire: pairs with the release that freed it, on another thread.
    std::uint32_t state = slot.state.load(std::memory_order_acquire);
    if ((state & OpenSlot::kStateMask) != OpenSlot::kOpen) continue;
    const unsigned kind = open_kind(slot);
    const auto begun_in =
        static_cast<std::uint32_t>(load_word<std::memory_order_relaxed>(slot.span, span_word::kStepKindFlags));
    if (begun_in == step || (allowed >> kind & 1) == 0) continue;
    const std::uint32_t free_state = state - OpenSlot::kOpen + OpenSlot::kFree;
    // As an end by whoever has the token, which may come at the same time: one of the two wins.
    if (!slot.state.compare_exchange_strong(state, state - OpenSlot::kOpen + OpenSlot::kEnding,
                                            std::memory_order_acquire, std::memory_order_relaxed)) {
      continue;
    }
    if (timer != nullptr) release_events(slot, *timer);
    slot.state.store(free_state, std::memory_order_release);  // pairs with the acquire of readers that copy the slot
    ++kinds[kind];
    ++reclaimed;
  }
  return reclaimed;
}

void ThreadSlots::give_back_outer(std::uint16_t slot) noexcept {
  // Those further in move out by one place, and the slot comes before them.
  std::uint16_t carried = slot;
  std::uint32_t at = free_count;
  do {
    std::swap(carried, order[at++]);
  } while (carried != slot && at < slot_count);
  ++free_count;
  if (at > own_end) ++own_end;  // one that a thread before this one left open
}

ThreadRegistry::ThreadRegistry(Arena& arena)
    : arena_(arena),
      epoch_(g_next_epoch.fetch_add(1, std::memory_order_relaxed)),
      nonce_(make_nonce(epoch_)),
      size_(arena.threads().size()) {
  std::size_t slots = 0;
  for (const ThreadRecord& record : arena.threads()) slots += record.slot_count;
  Block block{std::make_unique<ThreadSlots[]>(size_), std::make_unique<std::uint16_t[]>(slots)};
  std::size_t first = 0;
  for (std::uint32_t i = 0; i < size_; ++i) {
    ThreadSlots& thread = block.threads[i];
    thread.index = static_cast<std::uint16_t>(i);
    thread.epoch = epoch_;
    thread.token_base = std::uint64_t{nonce_} << 56 | std::uint64_t{i} << 48;
    thread.record = &arena.threads()[i];
    thread.ring = arena.ring(i).data();
    thread.slots = arena.slots(i).data();
    thread.order = block.order.get() + first;
    thread.slot_count = thread.record->slot_count;
    std::iota(std::reverse_iterator(thread.order + thread.slot_count), std::reverse_iterator(thread.order),
              std::uint16_t{0});
    thread.ring_mask = thread.record->ring_capacity - 1;
    first += thread.slot_count;
  }
  block_ = keep(std::move(block));
  exit_key();
}

ThreadSlots* ThreadRegistry::attach() noexcept {
  const bool asked_before = t_retry.epoch == epoch_;
  if (asked_before && t_retry.countdown > 0) {
    --t_retry.countdown;
    return nullptr;
  }
  char name[16] = {};
  current_thread_name(name, sizeof(name));
  // Two large records wait for the threads that have most to say; the other large ones go to whoever comes first. The
  // main thread's is given to nobody else: it may come last, after more threads than there are records.
  const std::size_t large = arena_.sizes().large_threads;
  const std::size_t reserved = std::min<std::size_t>(large, 2);
  const bool is_main = current_thread_id() == ::getpid();
  const std::size_t first = is_main || size_ == 1 ? 0 : 1;
  const bool is_busy = is_main || std::string_view(name).starts_with("pt_autograd");
  ThreadSlots* thread = is_busy ? claim(first, reserved) : nullptr;
  if (thread == nullptr) thread = claim(reserved, size_);
  if (thread == nullptr) thread = claim(first, reserved);
  if (thread == nullptr) {
    if (!asked_before) arena_.header().losses.threads_without_ring.fetch_add(1, std::memory_order_relaxed);
    t_retry = {epoch_, kRetryEvery};
    return nullptr;
  }
  set_up(*thread);
  t_retry = {};
  t_thread_slots = thread;
  if (const auto& key = exit_key()) (void)::pthread_setspecific(*key, thread);
  return thread;
}

ThreadSlots* ThreadRegistry::claim(std::size_t begin, std::size_t end) noexcept {
  for (std::size_t i = begin; i < end; ++i) {
    ThreadSlots& thread = block_[i];
    if (thread.record->state.load(std::memory_order_relaxed) != ThreadState::kFree) continue;
    // acquire: pairs with the release at the exit of the thread that had it.
    if (thread.is_claimed.exchange(true, std::memory_order_acquire)) continue;
    // acquire: pairs with the drain thread's release of a drained record: it is done with the ring.
    if (thread.record->state.load(std::memory_order_acquire) == ThreadState::kFree) return &thread;
    thread.is_claimed.store(false, std::memory_order_release);
  }
  return nullptr;
}

void ThreadRegistry::set_up(ThreadSlots& thread) noexcept {
  ThreadRecord& record = *thread.record;
  retired_spans_.fetch_add(record.write_index.load(std::memory_order_relaxed), std::memory_order_relaxed);
  record.write_index.store(0, std::memory_order_relaxed);
  record.read_index.store(0, std::memory_order_relaxed);
  record.thread_id = current_thread_id();
  current_thread_name(record.name, sizeof(record.name));
  record.ring_id = take_ring_id();
  thread.write_index = 0;
  thread.seen_read_index = 0;
  // Spans of the thread that had it before may still be open, to be ended elsewhere: their slots stay taken until then.
  thread.free_count = thread.own_end = 0;
  thread.collect_free_slots();
  record.state.store(ThreadState::kLive, std::memory_order_release);  // pairs with the drain thread's acquire
}

std::uint32_t take_ring_id() noexcept {
  constinit static std::atomic<std::uint32_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t ThreadRegistry::pushed_spans() const noexcept {
  std::uint64_t sum = retired_spans_.load(std::memory_order_relaxed);
  for (const ThreadRecord& record : arena_.threads()) sum += record.write_index.load(std::memory_order_relaxed);
  return sum;
}

}  // namespace smon_rt
