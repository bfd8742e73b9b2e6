#include "record/recorder.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "record/open_slot.h"

namespace smon_rt {

namespace {

constexpr std::uint32_t kMaxGeneration = 0xffff'ffff / (OpenSlot::kStateMask + 1);
constexpr std::uint64_t kSampledBit = 1;
constexpr std::uint16_t kMaxOpIndex = 0xffff;  // saturates
constexpr int kStateBits = 2;

// The recorder whose arena a forked child has to let go of.
constinit std::atomic<Recorder*> g_recorder{nullptr};

constexpr Token make_token(std::uint8_t nonce, std::uint16_t thread, std::uint16_t slot, std::uint32_t generation) {
  return Token{nonce} << 56 | Token{thread} << 48 | Token{slot} << 32 | generation;
}

constexpr std::uint32_t step_of(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> 32);
}

constexpr std::uint16_t flags_of(std::uint64_t word) {
  return static_cast<std::uint16_t>(word >> 16);
}

constexpr std::uint64_t step_word(std::uint32_t step, std::uint16_t flags, bool is_sampled) {
  return std::uint64_t{step} << 32 | std::uint64_t{flags} << 16 | (is_sampled ? kSampledBit : 0);
}

/// Differs between one recorder and the next of a process, and most often from other processes.
std::uint8_t make_nonce(std::uint64_t epoch) {
  const auto seed = static_cast<std::uint64_t>(::getpid()) * 0x9e3779b97f4a7c15 >> 32;
  return static_cast<std::uint8_t>(1 + (seed + epoch) % 255);
}

void count(std::atomic<std::uint64_t>& counter) noexcept {
  counter.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

Result<std::unique_ptr<Recorder>> Recorder::create(const RecorderOptions& options) {
  static const bool watches_forks = at_fork_in_child([] {
    if (Recorder* recorder = g_recorder.exchange(nullptr)) recorder->arena_->detach_in_child();
  });
  (void)watches_forks;
  if (g_recorder.load() != nullptr) return Error{"a recorder exists in this process already: stop it first"};
  auto arena = Arena::create(options.arena);
  if (!arena) return std::move(arena).error();
  std::unique_ptr<Recorder> recorder(new Recorder(options, std::move(*arena)));
  g_recorder.store(recorder.get());
  return recorder;
}

Recorder::Recorder(const RecorderOptions& options, std::unique_ptr<Arena> arena)
    : clock_(options.clock != nullptr ? *options.clock : Clock::host()),
      arena_(std::move(arena)),
      registry_(std::make_unique<ThreadRegistry>(*arena_)),
      sequences_(std::make_unique<Sequences>()),
      comm_records_(arena_->communicators()),
      sampling_(options.sampling, options.arena.run_id) {
  nonce_ = make_nonce(registry_->epoch());
  header().clock.source = static_cast<std::uint32_t>(clock_.source());
  // Before the first step spans belong to step 0, as our count has it, and are kept like those of the first steps.
  const bool is_sampled = options.sampling.always_steps > 0 || options.sampling.sample_ratio > 0;
  step_word_.store(step_word(0, span_flag::kStepCounted, is_sampled), std::memory_order_relaxed);
  header().is_sampled.store(is_sampled ? 1 : 0, std::memory_order_relaxed);
}

Recorder::~Recorder() {
  close();
}

void Recorder::resume() noexcept {
  if (is_closed_ || g_recorder.load() != this) return;
  // A step that was open when recording paused has no meaningful end.
  if (!is_recording()) must_forget_step_.store(true, std::memory_order_relaxed);
  set_recording_state(RecordingState::kRecording);
}

void Recorder::pause() noexcept {
  if (is_closed_ || g_recorder.load() != this) return;
  set_recording_state(RecordingState::kPaused);
}

void Recorder::close() noexcept {
  if (is_closed_) return;
  is_closed_ = true;
  Recorder* self = this;
  if (!g_recorder.compare_exchange_strong(self, nullptr)) return;  // in a forked child, which has let go already
  set_recording_state(RecordingState::kOff);
  arena_->close();
}

ThreadSlots* Recorder::thread() noexcept {
  ThreadSlots* thread = registry_->current();
  return thread != nullptr ? thread : registry_->attach();
}

void Recorder::drop(Kind kind) noexcept {
  count(header().losses.dropped_by_kind[static_cast<std::size_t>(kind)]);
}

std::uint64_t Recorder::dropped_spans() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& dropped : arena_->header().losses.dropped_by_kind) sum += dropped.load(std::memory_order_relaxed);
  return sum;
}

[[gnu::always_inline]] inline std::uint16_t Recorder::next_op_index(Kind kind, std::uint32_t step,
                                                                    std::uint16_t thread) noexcept {
  OpCount& ops = op_counts_[static_cast<std::size_t>(kind)];
  const std::uint64_t first = std::uint64_t{step} << 32;
  const std::uint16_t owner = ops.owner.load(std::memory_order_relaxed);
  if (owner == thread) {
    const std::uint64_t now = ops.count.load(std::memory_order_relaxed);
    const std::uint64_t index = step_of(now) == step ? now : first;
    ops.count.store(index + 1, std::memory_order_relaxed);
    return static_cast<std::uint16_t>(std::min<std::uint64_t>(index & 0xffff'ffff, kMaxOpIndex));
  }
  return next_shared_op_index(ops, first, owner, thread);
}

[[gnu::noinline]] std::uint16_t Recorder::next_shared_op_index(OpCount& ops, std::uint64_t first, std::uint16_t owner,
                                                               std::uint16_t thread) noexcept {
  if (owner == OpCount::kNobody && thread != OpCount::kNoThread &&
      ops.owner.compare_exchange_strong(owner, thread, std::memory_order_relaxed)) {
    ops.count.store(first + 1, std::memory_order_relaxed);
    return 0;
  }
  // From the first time that two threads launch ops of one kind, they all count atomically.
  ops.owner.store(OpCount::kShared, std::memory_order_relaxed);
  std::uint64_t now = ops.count.load(std::memory_order_relaxed);
  std::uint64_t index;
  do {
    index = step_of(now) == step_of(first) ? now : first;
  } while (!ops.count.compare_exchange_weak(now, index + 1, std::memory_order_relaxed));
  return static_cast<std::uint16_t>(std::min<std::uint64_t>(index & 0xffff'ffff, kMaxOpIndex));
}

std::uint32_t Recorder::enqueue(Kind kind, const SpanIds& ids, std::int64_t now_ticks) noexcept {
  if (ids.comm_id <= comm_records_.size()) {
    CommRecord& record = comm_records_[ids.comm_id - 1];
    count(record.enqueued);
    record.last_enqueued_ticks.store(now_ticks, std::memory_order_relaxed);
    record.last_kind.store(static_cast<std::uint32_t>(kind), std::memory_order_relaxed);
  }
  return ids.comm_seq != 0 ? ids.comm_seq : sequences_->next(ids.comm_id, ids.peer, kind);
}

Token Recorder::begin_recording(Kind kind, const SpanIds& ids) noexcept {
  if (static_cast<std::size_t>(kind) >= kKindCount) [[unlikely]] {
    count(header().losses.dropped_by_kind[kLossKinds - 1]);
    return 0;
  }
  const std::uint64_t word = step_word_.load(std::memory_order_relaxed);
  const bool is_sampled = (word & kSampledBit) != 0;
  std::uint16_t flags = flags_of(word) | ids.flags;
  std::uint16_t name_or_comm_id = ids.name_id;
  std::uint32_t comm_seq = 0;
  std::int64_t start_ticks = 0;
  if (is_communication(kind)) {
    // A hung op must show since when it waits, so the clock is read for these in every step.
    start_ticks = clock_.ticks();
    name_or_comm_id = ids.comm_id;
    comm_seq = ids.comm_id != kNoId ? enqueue(kind, ids, start_ticks) : ids.comm_seq;
  }
  ThreadSlots* thread = this->thread();
  std::uint16_t op_index = 0;
  if (is_sampled) {
    // Counted before anything is dropped: an index is a launch, not a record of one.
    op_index = next_op_index(kind, step_of(word), thread != nullptr ? thread->index : OpCount::kNoThread);
    if (op_index == kMaxOpIndex) [[unlikely]]
      flags |= span_flag::kSaturated;
  }
  if (ids.payload_bytes > kMaxPayloadBytes) [[unlikely]]
    flags |= span_flag::kSaturated;
  if (thread == nullptr || (thread->free_count == 0 && !thread->collect_remote_frees())) [[unlikely]] {
    drop(kind);
    return 0;
  }
  const std::uint16_t index = thread->free_slots[--thread->free_count];
  OpenSlot& slot = thread->slots[index];
  const std::uint32_t generation = ((slot.state.load(std::memory_order_relaxed) >> kStateBits) + 1) & kMaxGeneration;
  slot.is_recorded.store(is_sampled ? 1 : 0, std::memory_order_relaxed);
  SpanWords words{};
  words[span_word::kStepKindFlags] = pack_step(step_of(word), kind, flags);
  words[span_word::kIndices] = pack_indices(ids.microbatch, ids.chunk, op_index, ids.track_id);
  words[span_word::kNamePayload] = pack_name_payload(name_or_comm_id, std::min(ids.payload_bytes, kMaxPayloadBytes));
  words[span_word::kSequencePeer] = pack_sequence_peer(comm_seq, ids.peer);
  // The last thing before the span is visible, the first at its end: what recording costs stays outside.
  if (is_sampled && start_ticks == 0) start_ticks = clock_.ticks();
  words[span_word::kStart] = static_cast<std::uint64_t>(start_ticks);
  write_slot_span(slot, words);
  // release: pairs with the acquire of whoever ends or reads the span.
  slot.state.store(generation << kStateBits | OpenSlot::kOpen, std::memory_order_release);
  thread->push_open(index);
  return make_token(nonce_, thread->index, index, generation);
}

OpenSlot* Recorder::slot_of(Token token, ThreadSlots** owner) noexcept {
  const auto thread = static_cast<std::size_t>(token >> 48 & 0xff);
  const auto slot = static_cast<std::uint32_t>(token >> 32 & 0xffff);
  const auto generation = static_cast<std::uint32_t>(token);
  const bool is_ours = static_cast<std::uint8_t>(token >> 56) == nonce_ && thread < registry_->size() &&
                       slot < (*registry_)[thread].slot_count && generation <= kMaxGeneration;
  if (!is_ours) [[unlikely]] {
    count(header().losses.foreign_tokens);
    return nullptr;
  }
  *owner = &(*registry_)[thread];
  return &(*owner)->slots[slot];
}

void Recorder::end_recording(Token token, std::uint16_t flags) noexcept {
  ThreadSlots* owner;
  OpenSlot* slot = slot_of(token, &owner);
  if (slot == nullptr) return;
  const bool is_recorded = slot->is_recorded.load(std::memory_order_relaxed) != 0;
  const std::int64_t now_ticks = is_recorded ? clock_.ticks() : 0;
  const auto generation = static_cast<std::uint32_t>(token) << kStateBits;
  std::uint32_t expected = generation | OpenSlot::kOpen;
  // acquire: pairs with the release that opened the slot, perhaps on another thread. Of two ends one wins.
  if (!slot->state.compare_exchange_strong(expected, generation | OpenSlot::kEnding, std::memory_order_acquire,
                                           std::memory_order_relaxed)) [[unlikely]] {
    count(header().losses.stale_tokens);
    return;
  }
  ThreadSlots* thread = registry_->current();
  if (slot->is_recorded.load(std::memory_order_relaxed) != 0) {
    SpanWords words = load_slot_span(*slot);
    words[span_word::kEnd] = static_cast<std::uint64_t>(is_recorded ? now_ticks : clock_.ticks());
    if (thread != owner) {
      flags |= span_flag::kOtherThread;
      if (thread == nullptr) thread = registry_->attach();
    }
    words[span_word::kStepKindFlags] |= std::uint64_t{flags} << span_word::kFlagsShift;
    push(thread, words);
  }
  // release: pairs with the acquire of the owner, which may write the slot again.
  slot->state.store(generation | OpenSlot::kFree, std::memory_order_release);
  const auto index = static_cast<std::uint16_t>(token >> 32);
  if (thread == owner) {
    thread->remove_open(index);
    thread->free_slots[thread->free_count++] = index;
  } else {
    owner->remote_frees.fetch_add(1, std::memory_order_relaxed);
  }
}

void Recorder::push(ThreadSlots* thread, const SpanWords& words) noexcept {
  if (thread == nullptr) [[unlikely]]
    return drop(kind_of(words));
  const std::uint64_t write = thread->write_index;
  if (write - thread->seen_read_index > thread->ring_mask) [[unlikely]] {
    // acquire: pairs with the drain thread's release: it has copied what is overwritten now.
    thread->seen_read_index = thread->record->read_index.load(std::memory_order_acquire);
    if (write - thread->seen_read_index > thread->ring_mask) return drop(kind_of(words));
  }
  store_words<std::memory_order_relaxed>(thread->ring[write & thread->ring_mask], words);
  thread->write_index = write + 1;
  thread->record->write_index.store(write + 1, std::memory_order_release);  // pairs with the drain thread's acquire
}

void Recorder::annotate(Token token, const SpanIds& ids) noexcept {
  if (token == 0 || recording_state() == RecordingState::kOff) return;
  ThreadSlots* owner;
  OpenSlot* slot = slot_of(token, &owner);
  if (slot == nullptr) return;
  const auto open = static_cast<std::uint32_t>(token) << kStateBits | OpenSlot::kOpen;
  // acquire: pairs with the release that opened the slot.
  if (slot->state.load(std::memory_order_acquire) != open) return count(header().losses.stale_tokens);
  Span span = to_span(load_slot_span(*slot));
  const bool is_comm = is_communication(span.kind);
  if (ids.microbatch != kNoIndex) span.microbatch = ids.microbatch;
  if (ids.chunk != kNoIndex) span.chunk = ids.chunk;
  if (ids.track_id != kNoId) span.track_id = ids.track_id;
  if (ids.payload_bytes != 0) span.set_payload_bytes(ids.payload_bytes);
  span.flags |= ids.flags;
  if (span.kind != Kind::kMetric && ids.peer != kNoPeer) span.peer = ids.peer;
  if (!is_comm && ids.name_id != kNoId) span.name_or_comm_id = ids.name_id;
  if (is_comm && ids.comm_seq != 0) span.comm_seq = ids.comm_seq;
  if (is_comm && ids.comm_id != kNoId && span.name_or_comm_id == kNoId) {
    span.name_or_comm_id = ids.comm_id;
    SpanIds whole = ids;
    whole.peer = span.peer;
    whole.comm_seq = span.comm_seq;
    span.comm_seq = enqueue(span.kind, whole, span.start);
  }
  write_slot_span(*slot, to_words(span));
}

Token Recorder::current() noexcept {
  if (!is_recording()) return 0;
  ThreadSlots* thread = registry_->current();
  if (thread == nullptr) return 0;
  while (thread->top != ThreadSlots::kNone) {
    const std::uint16_t index = thread->top;
    const std::uint32_t state = thread->slots[index].state.load(std::memory_order_relaxed);
    if ((state & OpenSlot::kStateMask) == OpenSlot::kOpen) {
      return make_token(nonce_, thread->index, index, state >> kStateBits);
    }
    thread->remove_open(index);  // ended by another thread
  }
  return 0;
}

void Recorder::metric(std::uint16_t name_id, double value) noexcept {
  if (!is_recording()) return;
  const std::uint64_t word = step_word_.load(std::memory_order_relaxed);
  Span span;
  span.start = span.end = clock_.ticks();
  span.step = step_of(word);
  span.kind = Kind::kMetric;
  span.flags = flags_of(word);
  span.name_or_comm_id = name_id;
  span.set_metric_value(value);
  push(thread(), to_words(span));
}

}  // namespace smon_rt
