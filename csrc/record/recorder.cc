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
constexpr int kTimeSourceShift = offsetof(Span, time_source) % 8 * 8;

// The recorder whose arena a forked child has to let go of.
constinit std::atomic<Recorder*> g_recorder{nullptr};

constexpr Token make_token(const ThreadSlots& thread, std::uint16_t slot, std::uint32_t generation) {
  return thread.token_base | Token{slot} << 32 | generation;
}

constexpr std::uint16_t slot_index_of(Token token) {
  return static_cast<std::uint16_t>(token >> 32);
}

/// Kinds that begin on the short way: they exist, and belong to no communicator. A bit each.
constexpr std::uint64_t kHostKinds = [] {
  std::uint64_t kinds = 0;
  for (std::size_t kind = 0; kind < kKindCount; ++kind) {
    if (!is_communication(static_cast<Kind>(kind))) kinds |= std::uint64_t{1} << kind;
  }
  return kinds;
}();

constexpr bool is_host_kind(Kind kind) {
  const auto number = static_cast<unsigned>(kind);
  return number < 64 && (kHostKinds >> number & 1) != 0;
}

constexpr std::uint32_t step_of(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> 32);
}

constexpr std::uint16_t flags_of(std::uint64_t word) {
  return static_cast<std::uint16_t>(word >> 16);
}

/// The count in the lower half, as far as it fits.
constexpr std::uint16_t saturated(std::uint64_t index) {
  return static_cast<std::uint16_t>(std::min<std::uint64_t>(index & 0xffff'ffff, kMaxOpIndex));
}

constexpr std::uint64_t step_word(std::uint32_t step, std::uint16_t flags, bool is_sampled) {
  return std::uint64_t{step} << 32 | std::uint64_t{flags} << 16 | (is_sampled ? kSampledBit : 0);
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
      epoch_(registry_->epoch()),
      nonce_(registry_->nonce()),
      has_counter_(clock_.has_counter()),
      sequences_(std::make_unique<Sequences>()),
      comm_records_(arena_->communicators()),
      sampling_(options.sampling, options.arena.run_id) {
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

std::uint16_t Recorder::OpCount::next(std::uint32_t step) noexcept {
  const std::uint64_t now = count.load(std::memory_order_relaxed);
  const std::uint64_t index = step_of(now) == step ? now : std::uint64_t{step} << 32;
  count.store(index + 1, std::memory_order_relaxed);
  return saturated(index);
}

std::uint16_t Recorder::OpCount::next_shared(std::uint32_t step, std::uint16_t thread) noexcept {
  std::uint16_t who = owner.load(std::memory_order_relaxed);
  if (who == kNobody && thread != kNoThread && owner.compare_exchange_strong(who, thread, std::memory_order_relaxed)) {
    who = thread;
  }
  if (who == thread && thread != kNoThread) return next(step);
  // From the first time that two threads launch ops of one kind, they all count atomically.
  owner.store(kShared, std::memory_order_relaxed);
  std::uint64_t now = count.load(std::memory_order_relaxed);
  std::uint64_t index;
  do {
    index = step_of(now) == step ? now : std::uint64_t{step} << 32;
  } while (!count.compare_exchange_weak(now, index + 1, std::memory_order_relaxed));
  return saturated(index);
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
  // The short way calls nothing, so that nothing is saved and restored; what is not usual takes the long one.
  const std::uint64_t word = step_word_.load(std::memory_order_relaxed);
  ThreadSlots* thread = ThreadRegistry::current(epoch_);
  if (thread == nullptr || thread->free_count == 0 || !is_host_kind(kind) || ids.payload_bytes > kMaxPayloadBytes ||
      !has_counter_) [[unlikely]] {
    return begin_any(kind, ids);
  }
  Opening opening{.word = word, .flags = flags_of(word), .name_or_comm_id = ids.name_id};
  if ((word & kSampledBit) != 0) {
    OpCount& ops = op_counts_[static_cast<std::size_t>(kind)];
    if (ops.owner.load(std::memory_order_relaxed) != thread->index) [[unlikely]]
      return begin_any(kind, ids);
    opening.op_index = ops.next(step_of(word));
    // The line that end() writes is seldom in the first cache: fetched meanwhile.
    __builtin_prefetch(&thread->ring[thread->write_index & thread->ring_mask], 1);
    opening.start_ticks = Clock::counter_ticks();
  }
  return open(*thread, kind, ids, opening);
}

Token Recorder::begin_any(Kind kind, const SpanIds& ids) noexcept {
  if (static_cast<std::size_t>(kind) >= kKindCount) {
    count(header().losses.dropped_by_kind[kLossKinds - 1]);
    return 0;
  }
  const std::uint64_t word = step_word_.load(std::memory_order_relaxed);
  const bool is_sampled = (word & kSampledBit) != 0;
  const bool is_comm = is_communication(kind);
  Opening opening{.word = word, .flags = flags_of(word), .name_or_comm_id = is_comm ? ids.comm_id : ids.name_id};
  // Everything is counted before anything is dropped: a number is a launch, not a record of one. A hung op must show
  // since when it waits, so for communication the clock is read in every step.
  if (is_comm) {
    opening.start_ticks = clock_.ticks();
    opening.comm_seq = ids.comm_id != kNoId ? enqueue(kind, ids, opening.start_ticks) : ids.comm_seq;
  }
  ThreadSlots* thread = this->thread();
  if (is_sampled) {
    OpCount& ops = op_counts_[static_cast<std::size_t>(kind)];
    opening.op_index = ops.next_shared(step_of(word), thread != nullptr ? thread->index : OpCount::kNoThread);
  }
  if (ids.payload_bytes > kMaxPayloadBytes) opening.flags |= span_flag::kSaturated;
  if (thread == nullptr || (thread->free_count == 0 && !thread->collect_remote_frees())) {
    drop(kind);
    return 0;
  }
  if (is_sampled && !is_comm) opening.start_ticks = clock_.ticks();
  return open(*thread, kind, ids, opening);
}

[[gnu::always_inline]] inline Token Recorder::open(ThreadSlots& thread, Kind kind, const SpanIds& ids,
                                                   const Opening& opening) noexcept {
  const std::uint16_t index = thread.free_slots[--thread.free_count];
  OpenSlot& slot = thread.slots[index];
  const std::uint32_t generation = ((slot.state.load(std::memory_order_relaxed) >> kStateBits) + 1) & kMaxGeneration;
  slot.is_recorded.store(static_cast<std::uint32_t>(opening.word & kSampledBit), std::memory_order_relaxed);
  auto flags = static_cast<std::uint16_t>(opening.flags | ids.flags);
  if (opening.op_index == kMaxOpIndex) [[unlikely]]
    flags |= span_flag::kSaturated;
  SpanWords words{};
  words[span_word::kStart] = static_cast<std::uint64_t>(opening.start_ticks);
  words[span_word::kStepKindFlags] = pack_step(step_of(opening.word), kind, flags);
  words[span_word::kIndices] = pack_indices(ids.microbatch, ids.chunk, opening.op_index, ids.track_id);
  words[span_word::kNamePayload] =
      pack_name_payload(opening.name_or_comm_id, std::min(ids.payload_bytes, kMaxPayloadBytes));
  words[span_word::kSequencePeer] = pack_sequence_peer(opening.comm_seq, ids.peer);
  write_slot_span(slot, words);
  // release: pairs with the acquire of whoever ends or reads the span.
  slot.state.store(generation << kStateBits | OpenSlot::kOpen, std::memory_order_release);
  thread.push_open(index);
  return make_token(thread, index, generation);
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

void Recorder::push(ThreadSlots* thread, const SpanWords& words) noexcept {
  if (thread == nullptr || !thread->push(words)) [[unlikely]]
    drop(kind_of(words));
}

void Recorder::end_recording(Token token, std::uint16_t flags) noexcept {
  // The short way: by the thread that began the span, whose tokens have its upper bits.
  ThreadSlots* thread = ThreadRegistry::current(epoch_);
  const std::uint16_t index = slot_index_of(token);
  const auto generation = static_cast<std::uint32_t>(token);
  if (thread == nullptr || (token ^ thread->token_base) >> 48 != 0 || index >= thread->slot_count ||
      generation > kMaxGeneration || !has_counter_) [[unlikely]] {
    return end_any(token, flags);
  }
  OpenSlot& slot = thread->slots[index];
  const bool is_recorded = slot.is_recorded.load(std::memory_order_relaxed) != 0;
  const std::int64_t now_ticks = is_recorded ? Clock::counter_ticks() : 0;
  if (!win_end(slot, generation)) [[unlikely]]
    return;
  if (is_recorded) {
    SpanWords words = load_slot_span(slot);
    words[span_word::kEnd] = static_cast<std::uint64_t>(now_ticks);
    words[span_word::kStepKindFlags] |= std::uint64_t{flags} << span_word::kFlagsShift;
    if (!thread->push(words)) [[unlikely]]
      drop(kind_of(words));
  }
  // release: pairs with the acquire of readers that copy the slot; the owner itself needs none.
  slot.state.store(generation << kStateBits | OpenSlot::kFree, std::memory_order_release);
  thread->remove_open(index);
  thread->free_slots[thread->free_count++] = index;
}

[[gnu::always_inline]] inline bool Recorder::win_end(OpenSlot& slot, std::uint32_t generation) noexcept {
  std::uint32_t expected = generation << kStateBits | OpenSlot::kOpen;
  // acquire: pairs with the release that opened the slot, perhaps on another thread. Of two ends one wins.
  if (slot.state.compare_exchange_strong(expected, generation << kStateBits | OpenSlot::kEnding,
                                         std::memory_order_acquire, std::memory_order_relaxed)) [[likely]] {
    return true;
  }
  count(header().losses.stale_tokens);
  return false;
}

void Recorder::end_any(Token token, std::uint16_t flags, std::int64_t ticks, TimeSource source) noexcept {
  ThreadSlots* owner;
  OpenSlot* slot = slot_of(token, &owner);
  if (slot == nullptr) return;
  const std::int64_t now_ticks = clock_.ticks();
  const auto generation = static_cast<std::uint32_t>(token);
  if (!win_end(*slot, generation)) return;
  ThreadSlots* thread = registry_->current();
  if (slot->is_recorded.load(std::memory_order_relaxed) != 0) {
    SpanWords words = load_slot_span(*slot);
    const auto start_ticks = static_cast<std::int64_t>(words[span_word::kStart]);
    const std::int64_t end_ticks = ticks != 0 ? std::max(std::min(ticks, now_ticks), start_ticks) : now_ticks;
    words[span_word::kEnd] = static_cast<std::uint64_t>(end_ticks);
    words[span_word::kStepKindFlags] |= static_cast<std::uint64_t>(source) << kTimeSourceShift;
    if (thread != owner) {
      flags |= span_flag::kOtherThread;
      if (thread == nullptr) thread = registry_->attach();
    }
    words[span_word::kStepKindFlags] |= std::uint64_t{flags} << span_word::kFlagsShift;
    push(thread, words);
  }
  // release: pairs with the acquire of the owner, which may write the slot again.
  slot->state.store(generation << kStateBits | OpenSlot::kFree, std::memory_order_release);
  const std::uint16_t index = slot_index_of(token);
  if (thread == owner) {
    thread->remove_open(index);
    thread->free_slots[thread->free_count++] = index;
  } else {
    owner->remote_frees.fetch_add(1, std::memory_order_relaxed);
  }
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
      return make_token(*thread, index, state >> kStateBits);
    }
    thread->remove_open(index);  // ended by another thread
  }
  return 0;
}

Token Recorder::find_open(std::uint32_t kinds) noexcept {
  if (!is_recording()) return 0;
  ThreadSlots* thread = registry_->current();
  if (thread == nullptr) return 0;
  for (std::uint16_t index = thread->top; index != ThreadSlots::kNone; index = thread->links[index].below) {
    const std::uint32_t state = thread->slots[index].state.load(std::memory_order_relaxed);
    if ((state & OpenSlot::kStateMask) != OpenSlot::kOpen) continue;  // ended by another thread
    const auto kind = static_cast<unsigned>(kind_of(load_slot_span(thread->slots[index])));
    if ((kinds >> kind & 1) != 0) return make_token(*thread, index, state >> kStateBits);
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
