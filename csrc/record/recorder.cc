#include "record/recorder.h"

#include <algorithm>

#include "record/open_slot.h"

namespace smon_rt {

namespace {

constexpr std::uint16_t kMaxOpIndex = 0xffff;  // saturates
// Counters of two processors, and of one that reads out of order, differ by less.
constexpr std::int64_t kMaxSkewTicks = 1 << 16;
// Bits of a token that are the same in all tokens of a thread's spans: whose they are, and that they were open.
constexpr Token kOwnBits = ~Token{0} << 48 | OpenSlot::kStateMask;

constexpr Token make_token(const ThreadSlots& thread, std::uint16_t slot, std::uint32_t open_state) {
  return thread.token_base | Token{slot} << 32 | open_state;
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

/// The count in the lower half, as far as it fits.
constexpr std::uint16_t saturated(std::uint64_t index) {
  return static_cast<std::uint16_t>(std::min<std::uint64_t>(index & 0xffff'ffff, kMaxOpIndex));
}

constexpr std::uint32_t open_state_of(Token token) {
  return static_cast<std::uint32_t>(token);
}

/// Of an open span's token: whether it began on a GPU.
Token on_gpu_bit(const OpenSlot& slot) {
  return load_word<std::memory_order_relaxed>(slot.span, span_word::kDeviceStart) != 0 ? kOnGpu : 0;
}

/// Written in the caller's words of 16 bits: read as they were written, since a wider load would have to wait for them.
constexpr std::uint64_t indices_of(const SpanIds& ids, std::uint16_t op_index) {
  return pack_indices(ids.microbatch, ids.chunk, op_index, ids.track_id);
}

}  // namespace

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

std::uint16_t Recorder::OpCount::next_shared(std::uint32_t step, std::uint16_t thread) noexcept {
  std::uint16_t who = owner.load(std::memory_order_relaxed);
  if (who == kNobody && thread != kNoThread && owner.compare_exchange_strong(who, thread, std::memory_order_relaxed)) {
    who = thread;
  }
  if (who == thread && thread != kNoThread) {
    const std::uint64_t index = in_step(step);
    count.store(index + 1, std::memory_order_relaxed);
    return saturated(index);
  }
  // From the first time that two threads launch ops of one kind, they all count atomically.
  owner.store(kShared, std::memory_order_relaxed);
  std::uint64_t now = count.load(std::memory_order_relaxed);
  std::uint64_t index;
  do {
    index = now >> 32 == step ? now : std::uint64_t{step} << 32;
  } while (!count.compare_exchange_weak(now, index + 1, std::memory_order_relaxed));
  return saturated(index);
}

std::uint32_t Recorder::enqueue(Kind kind, const SpanIds& ids, std::int64_t now_ticks) noexcept {
  if (ids.comm_id <= comm_records_.size()) {
    CommRecord& record = comm_records_[ids.comm_id - 1];
    if (record.comm_id.load(std::memory_order_relaxed) == 0) [[unlikely]]
      count_misuse();
    count(record.enqueued);
    record.last_enqueued_ticks.store(now_ticks, std::memory_order_relaxed);
    record.last_kind.store(static_cast<std::uint32_t>(kind), std::memory_order_relaxed);
  } else if (ids.comm_id > last_comm_id_.load(std::memory_order_relaxed)) {
    count_misuse();
  }
  if (ids.comm_seq != 0) return ids.comm_seq;
  const std::uint32_t comm_seq = sequences_->next(ids.comm_id, ids.peer, kind);
  if (comm_seq == 0) count(header().losses.uncounted_sequences);
  return comm_seq;
}

Token Recorder::begin_recording(Kind kind, const SpanIds& ids) noexcept {
  // The short way: little enough that no register has to be saved. What is not usual takes the long one.
  const std::uint64_t word = step_word_.load(std::memory_order_relaxed);
  ThreadSlots& thread = ThreadRegistry::last();
  if (thread.epoch != epoch_ || thread.free_count == 0 || !is_host_kind(kind) || ids.payload_bytes != 0) [[unlikely]] {
    return begin_any(kind, ids);
  }
  if (step_word::is_sampled(word)) return begin_sampled(kind, ids, thread, word);
  const std::uint16_t index = thread.take_slot();
  const OpenWords words{.start = 0,
                        .step_kind_flags = word | pack_step(0, kind, ids.flags),
                        .indices = indices_of(ids, 0),
                        .name_payload = ids.name_id,
                        .sequence_peer = pack_sequence_peer(0, ids.peer)};
  return make_token(thread, index, open_slot(thread.slots[index], words, false));
}

Token Recorder::begin_sampled(Kind kind, const SpanIds& ids, ThreadSlots& thread, std::uint64_t word) noexcept {
  OpCount& ops = op_counts_[static_cast<std::size_t>(kind)];
  const std::uint64_t op_index = ops.in_step(step_word::step_of(word));
  if (ops.owner.load(std::memory_order_relaxed) != thread.index || (op_index & 0xffff'ffff) >= kMaxOpIndex ||
      !has_counter_) [[unlikely]] {
    return begin_any(kind, ids);
  }
  ops.count.store(op_index + 1, std::memory_order_relaxed);
  // The line that end() writes is seldom in the first cache: fetched meanwhile.
  __builtin_prefetch(&thread.ring[thread.write_index & thread.ring_mask], 1);
  const std::uint16_t index = thread.take_slot();
  const OpenWords words{.start = static_cast<std::uint64_t>(Clock::counter_ticks()),
                        .step_kind_flags = step_word::of_span(word, kind, ids.flags),
                        .indices = indices_of(ids, static_cast<std::uint16_t>(op_index)),
                        .name_payload = ids.name_id,
                        .sequence_peer = pack_sequence_peer(0, ids.peer)};
  return make_token(thread, index, open_slot(thread.slots[index], words, true));
}

Token Recorder::begin_any(Kind kind, const SpanIds& ids) noexcept {
  if (static_cast<std::size_t>(kind) >= kKindCount) {
    count(header().losses.dropped_by_kind[kLossKinds - 1]);
    count_misuse();
    return 0;
  }
  const std::uint64_t word = step_word_.load(std::memory_order_relaxed);
  const bool is_sampled = step_word::is_sampled(word);
  const bool is_comm = is_communication(kind);
  // Everything is counted before anything is dropped: a number is a launch, not a record of one. A hung op must show
  // since when it waits, so for communication the clock is read in every step.
  std::int64_t start_ticks = 0;
  std::uint32_t comm_seq = 0;
  if (is_comm) {
    start_ticks = now_ticks();
    comm_seq = ids.comm_id != kNoId ? enqueue(kind, ids, start_ticks) : ids.comm_seq;
    if (ids.name_id != kNoId) count_misuse();
  }
  ThreadSlots* thread = this->thread();
  std::uint16_t op_index = 0;
  if (is_sampled) {
    OpCount& ops = op_counts_[static_cast<std::size_t>(kind)];
    op_index = ops.next_shared(step_word::step_of(word), thread != nullptr ? thread->index : OpCount::kNoThread);
  }
  if (thread == nullptr || (thread->free_count == 0 && !find_slot(*thread, step_word::step_of(word)))) {
    drop(kind);
    return 0;
  }
  const auto words = [&]() __attribute__((always_inline)) {
    const bool is_saturated = op_index == kMaxOpIndex || ids.payload_bytes > kMaxPayloadBytes;
    const auto flags = static_cast<std::uint16_t>(ids.flags | (is_saturated ? span_flag::kSaturated : 0));
    return OpenWords{.start = static_cast<std::uint64_t>(start_ticks),
                     .step_kind_flags = step_word::of_span(word, kind, flags),
                     .indices = indices_of(ids, op_index),
                     .name_payload = pack_name_payload(is_comm ? ids.comm_id : ids.name_id,
                                                       std::min(ids.payload_bytes, kMaxPayloadBytes)),
                     .sequence_peer = pack_sequence_peer(comm_seq, ids.peer)};
  };
  if (is_sampled && !is_comm) {
    start_ticks = now_ticks();
    if ((gpu_kinds_ >> static_cast<unsigned>(kind) & 1) != 0) return begin_on_gpu(*thread, words());
  }
  const std::uint16_t index = thread->take_slot();
  return make_token(*thread, index, open_slot(thread->slots[index], words(), is_sampled));
}

OpenSlot* Recorder::slot_of(Token token, ThreadSlots** owner) noexcept {
  const auto thread = static_cast<std::size_t>(token >> 48 & 0xff);
  const std::uint16_t slot = slot_index_of(token & ~kOnGpu);
  const bool is_ours = static_cast<std::uint8_t>(token >> 56) == nonce_ && thread < registry_->size() &&
                       slot < (*registry_)[thread].slot_count && (token & OpenSlot::kStateMask) == OpenSlot::kOpen &&
                       ((token & kOnGpu) == 0 || gpu_spans_ != nullptr);
  if (!is_ours) [[unlikely]] {
    count(header().losses.foreign_tokens);
    return nullptr;
  }
  *owner = &(*registry_)[thread];
  return &(*owner)->slots[slot];
}

bool Recorder::push(ThreadSlots* thread, const SpanWords& words) noexcept {
  if (thread != nullptr && thread->push(words)) [[likely]]
    return true;
  drop(kind_of(words));
  return false;
}

void Recorder::end_recording(Token token, std::uint16_t flags) noexcept {
  // The short way: by the thread that began the span, and not on a GPU, which makes for an index that no slot has.
  ThreadSlots& thread = ThreadRegistry::last();
  const std::uint16_t index = slot_index_of(token);
  if (thread.epoch != epoch_ || ((token ^ thread.token_base) & kOwnBits) != OpenSlot::kOpen ||
      index >= thread.slot_count) [[unlikely]] {
    return end_any(token, flags);
  }
  OpenSlot& slot = thread.slots[index];
  if (slot.is_recorded.load(std::memory_order_relaxed) != 0) return end_sampled(token, flags, thread);
  if (!win_end(slot, token)) [[unlikely]]
    return count_stale_token();
  // release: pairs with the acquire of readers that copy the slot; the owner itself needs none.
  slot.state.store(open_state_of(token) - OpenSlot::kOpen + OpenSlot::kFree, std::memory_order_release);
  thread.give_back(index);
}

void Recorder::end_sampled(Token token, std::uint16_t flags, ThreadSlots& thread) noexcept {
  // As in begin_recording(): what calls anything is elsewhere, also what finds out whether a ring is really full.
  if (!thread.seems_to_have_room() || !has_counter_) [[unlikely]]
    return end_any(token, flags);
  const std::int64_t now_ticks = Clock::counter_ticks();
  const std::uint16_t index = slot_index_of(token);
  OpenSlot& slot = thread.slots[index];
  if (!win_end(slot, token)) [[unlikely]]
    return count_stale_token();
  thread.push_into_room(ended_span(slot, now_ticks, flags));
  // release: as in end_recording(). After the push: killed in between, the span is in the ring, and no longer open.
  slot.state.store(open_state_of(token) - OpenSlot::kOpen + OpenSlot::kFree, std::memory_order_release);
  thread.give_back(index);
}

[[gnu::always_inline]] inline bool Recorder::win_end(OpenSlot& slot, Token token) noexcept {
  std::uint32_t expected = open_state_of(token);
  // acquire: pairs with the release that opened the slot, perhaps on another thread. Of two ends one wins.
  return slot.state.compare_exchange_strong(expected, expected - OpenSlot::kOpen + OpenSlot::kEnding,
                                            std::memory_order_acquire, std::memory_order_relaxed);
}

void Recorder::count_stale_token() noexcept {
  count(header().losses.stale_tokens);
}

template <bool kIsOnGpu>
[[gnu::always_inline]] inline void Recorder::end_slot(Token token, std::uint16_t flags, std::int64_t ticks,
                                                      TimeSource source) noexcept {
  ThreadSlots* owner;
  OpenSlot* slot = slot_of(token, &owner);
  if (slot == nullptr) return;
  const std::int64_t now = clock_.ticks();
  const std::int64_t end_ticks = ticks != 0 ? std::min(ticks, now) : now;
  if (!win_end(*slot, token)) return count_stale_token();
  ThreadSlots* thread = registry_->current();
  GpuSpans::Boundary boundary;
  if (slot->is_recorded.load(std::memory_order_relaxed) != 0) {
    if (thread != owner) {
      flags |= span_flag::kOtherThread;
      if (thread == nullptr) thread = registry_->attach();
    }
    SpanWords words = ended_span(*slot, end_ticks, flags);
    if constexpr (kIsOnGpu) {
      boundary = add_events(*slot, thread, source, end_ticks != now, words);
    } else {
      words[span_word::kStepKindFlags] |= pack_time_source(source);
    }
    // A caller that remembers another span's ticks must not make this one end before it began.
    const auto start_ticks = static_cast<std::int64_t>(words[span_word::kStart]);
    if (end_ticks < start_ticks) words[span_word::kEnd] = words[span_word::kStart];
    const bool is_pushed = push(thread, words);
    if (kIsOnGpu && !is_pushed) release_events(words);
    // Another thread's ticks may be a little ahead; whoever gives more has no ticks of this clock.
    if (ticks > now && ticks - now > kMaxSkewTicks) count_misuse();
  }
  // release: pairs with the acquire of the owner, which may write the slot again.
  slot->state.store(open_state_of(token) - OpenSlot::kOpen + OpenSlot::kFree, std::memory_order_release);
  if (thread == owner) {
    thread->give_back(slot_index_of(kIsOnGpu ? token & ~kOnGpu : token));
  } else {
    owner->remote_frees.fetch_add(1, std::memory_order_relaxed);
  }
  if (kIsOnGpu && boundary.event != kNoEvent) {
    gpu_spans_->remember(thread->index, boundary, {thread->write_index, thread->free_count}, now);
  }
}

[[gnu::flatten]] void Recorder::end_any(Token token, std::uint16_t flags, std::int64_t ticks,
                                        TimeSource source) noexcept {
  if ((token & kOnGpu) != 0) [[unlikely]]
    return end_on_gpu(token, flags, ticks, source);
  end_slot<false>(token, flags, ticks, source);
}

void Recorder::end_on_gpu(Token token, std::uint16_t flags, std::int64_t ticks, TimeSource source) noexcept {
  end_slot<true>(token, flags, ticks, source);
}

void Recorder::annotate(Token token, const SpanIds& ids) noexcept {
  if (token == 0 || recording_state() == RecordingState::kOff) return;
  ThreadSlots* owner;
  OpenSlot* slot = slot_of(token, &owner);
  if (slot == nullptr) return;
  // acquire: pairs with the release that opened the slot.
  if (slot->state.load(std::memory_order_acquire) != open_state_of(token)) return count_stale_token();
  Span span = to_span(load_slot_span(*slot));
  const bool is_comm = is_communication(span.kind);
  if (ids.microbatch != kNoIndex) span.microbatch = ids.microbatch;
  if (ids.chunk != kNoIndex) span.chunk = ids.chunk;
  if (ids.track_id != kNoId) span.track_id = ids.track_id;
  if (ids.payload_bytes != 0) span.set_payload_bytes(ids.payload_bytes);
  span.flags |= ids.flags;
  if (span.kind != Kind::kMetric && ids.peer != kNoPeer) span.peer = ids.peer;
  if (is_comm ? ids.name_id != kNoId : (ids.comm_id != kNoId || ids.comm_seq != 0)) count_misuse();
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
  return find_open(~std::uint32_t{0});
}

Token Recorder::find_open(std::uint32_t kinds) noexcept {
  if (!is_recording()) return 0;
  ThreadSlots* thread = registry_->current();
  if (thread == nullptr) return 0;
  for (std::uint32_t i = thread->free_count; i < thread->own_end; ++i) {
    const std::uint16_t index = thread->order[i];
    const OpenSlot& slot = thread->slots[index];
    // acquire: pairs with the release that freed the slot, on another thread.
    const std::uint32_t state = slot.state.load(std::memory_order_acquire);
    if ((state & OpenSlot::kStateMask) == OpenSlot::kFree && i == thread->free_count) ++thread->free_count;
    if ((state & OpenSlot::kStateMask) != OpenSlot::kOpen) continue;
    if ((kinds >> open_kind(slot) & 1) != 0) return make_token(*thread, index, state) | on_gpu_bit(slot);
  }
  return 0;
}

void Recorder::metric(std::uint16_t name_id, double value) noexcept {
  if (!is_recording()) return;
  const std::uint64_t word = step_word_.load(std::memory_order_relaxed);
  Span span;
  span.start = span.end = clock_.ticks();
  span.step = step_word::step_of(word);
  span.kind = Kind::kMetric;
  span.flags = step_word::flags_of(word);
  span.name_or_comm_id = name_id;
  span.set_metric_value(value);
  push(thread(), to_words(span));
}

}  // namespace smon_rt
