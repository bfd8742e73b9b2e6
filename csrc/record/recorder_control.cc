// The part of the recorder that is called once, once a step or once a communicator.

#include <algorithm>
#include <cstring>

#include "base/process_state.h"
#include "record/open_slot.h"
#include "record/recorder.h"

namespace smon_rt {

namespace {

constexpr std::int64_t kMaxStep = 0xffff'ffff;

// The recorder whose arena a forked child has to let go of.
constinit std::atomic<Recorder*> g_recorder{nullptr};

/// One more, by whoever alone may write it: of threads that end steps, the one that is_stepping_ lets in.
void count_alone(std::atomic<std::uint64_t>& counter) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
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
      gpu_kinds_(options.gpu_timer != nullptr ? kGpuKinds : 0),
      has_counter_(clock_.has_counter()),
      sequences_(std::make_unique<Sequences>()),
      comm_records_(arena_->communicators()),
      sampling_(options.sampling, options.arena.run_id),
      step_log_(arena_->step_log(), header().step_write_index, header().step_read_index) {
  if (options.gpu_timer != nullptr) {
    for (std::size_t kind = 0; kind < kKindCount; ++kind) {
      if ((gpu_kinds_ >> kind & 1) != 0) op_counts_[kind].owner.store(OpCount::kShared, std::memory_order_relaxed);
    }
    gpu_spans_ = std::make_unique<GpuSpans>(*options.gpu_timer, header(), arena_->threads(), interner_);
  }
  header().clock.source = static_cast<std::uint32_t>(clock_.source());
  // Before the first step spans belong to step 0, as our count has it, and are kept like those of the first steps.
  const bool is_sampled = options.sampling.always_steps > 0 || options.sampling.sample_ratio > 0;
  step_word_.store(step_word::make(0, span_flag::kStepCounted, is_sampled), std::memory_order_relaxed);
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

void Recorder::step_begin(std::int64_t step) noexcept {
  if (!is_recording()) return;
  // acquire: pairs with the release below; steps may be begun by one thread after another.
  if (is_stepping_.test_and_set(std::memory_order_acquire)) return count_misuse();
  const std::int64_t now_ticks = clock_.ticks();
  const bool is_counted = step < 0;
  const std::int64_t number = std::min(is_counted ? sampling_.current_step() + 1 : step, kMaxStep);
  finish_step(now_ticks);

  StepTicks& open = open_step_;
  open.step = static_cast<std::uint32_t>(number);
  auto decision = sampling_.decide(open.step);
  // Numbers from here on do not fit: their steps are one and the same to whoever reads the spans, so there are none.
  const bool is_saturated = number == kMaxStep;
  if (is_saturated) {
    decision.is_sampled = false;
    count(header().more_losses.saturated_steps);
  }
  open.is_sampled = decision.is_sampled;
  open.is_warmup = decision.is_warmup;
  open.is_counted = is_counted;
  open.start_ticks = now_ticks;
  is_step_open_ = true;
  const int flags = (open.is_warmup ? span_flag::kWarmup : 0) | (is_counted ? span_flag::kStepCounted : 0) |
                    (is_saturated ? span_flag::kSaturated : 0);
  step_word_.store(step_word::make(open.step, static_cast<std::uint16_t>(flags), open.is_sampled),
                   std::memory_order_relaxed);

  ArenaHeader& head = header();
  head.step.store(number, std::memory_order_relaxed);
  head.step_start_ticks.store(now_ticks, std::memory_order_relaxed);
  head.is_sampled.store(open.is_sampled ? 1 : 0, std::memory_order_relaxed);
  if (head.phase.load(std::memory_order_relaxed) == Phase::kStarting) set_phase(Phase::kTraining);
  is_stepping_.clear(std::memory_order_release);
}

void Recorder::step_end() noexcept {
  if (!is_recording() || is_stepping_.test_and_set(std::memory_order_acquire)) return;
  finish_step(clock_.ticks());
  is_stepping_.clear(std::memory_order_release);
}

void Recorder::finish_step(std::int64_t now_ticks) noexcept {
  const bool must_forget = must_forget_step_.exchange(false, std::memory_order_relaxed);
  if (!is_step_open_) return;
  is_step_open_ = false;
  if (must_forget) return;
  open_step_.end_ticks = now_ticks;
  if (!step_log_.push(open_step_)) drop(Kind::kStep);
  count_alone(steps_);
  count_alone(header().finished_steps);
  if (!open_step_.is_sampled) return;
  count_alone(sampled_steps_);
  Span span;
  span.start = open_step_.start_ticks;
  span.end = now_ticks;
  span.step = open_step_.step;
  span.kind = Kind::kStep;
  span.flags = static_cast<std::uint16_t>((open_step_.is_warmup ? span_flag::kWarmup : 0) |
                                          (open_step_.is_counted ? span_flag::kStepCounted : 0));
  push(thread(), to_words(span));
}

bool Recorder::find_slot(ThreadSlots& thread, std::uint32_t step) noexcept {
  if (thread.collect_remote_frees()) return true;
  ThreadSlots::KindCounts kinds{};
  const std::uint32_t reclaimed = thread.reclaim(step, kinds, gpu_spans_ ? &gpu_spans_->timer() : nullptr);
  if (reclaimed == 0) return false;
  header().more_losses.reclaimed_spans.fetch_add(reclaimed, std::memory_order_relaxed);
  for (std::size_t kind = 0; kind < kKindCount; ++kind) {
    if (kinds[kind] != 0) reclaimed_by_kind_[kind].fetch_add(kinds[kind], std::memory_order_relaxed);
  }
  return true;
}

std::optional<Kind> Recorder::leaking_kind() const noexcept {
  const auto most = std::ranges::max_element(reclaimed_by_kind_, {}, [](const auto& count) { return count.load(); });
  if (most->load() == 0) return std::nullopt;
  return static_cast<Kind>(most - reclaimed_by_kind_.begin());
}

bool Recorder::read_open(Token token, Span* span) noexcept {
  ThreadSlots* owner;
  const OpenSlot* slot = token == 0 ? nullptr : slot_of(token, &owner);
  if (slot == nullptr || !read_open_slot(*slot, span)) return false;
  return slot->state.load(std::memory_order_relaxed) == static_cast<std::uint32_t>(token);
}

void Recorder::set_phase(Phase phase) noexcept {
  header().phase.store(phase, std::memory_order_relaxed);
}

std::uint16_t Recorder::register_communicator(std::string_view name, std::string_view dimension,
                                              std::span<const std::int32_t> members) {
  bool is_new = false;
  const std::uint16_t id = interner_.communicator(name, dimension, members, &is_new);
  std::uint32_t last = last_comm_id_.load(std::memory_order_relaxed);
  while (last < id && !last_comm_id_.compare_exchange_weak(last, id, std::memory_order_relaxed)) {
  }
  if (!is_new || id == 0 || id > comm_records_.size()) return id;
  CommRecord& record = comm_records_[id - 1];
  record.member_count = static_cast<std::int32_t>(members.size());
  std::memcpy(record.name, name.data(), std::min(name.size(), sizeof(record.name) - 1));
  std::memcpy(record.dimension, dimension.data(), std::min(dimension.size(), sizeof(record.dimension) - 1));
  record.comm_id.store(id, std::memory_order_release);  // pairs with the acquire of readers: the texts are complete
  return id;
}

std::uint16_t Recorder::register_track(std::int32_t device, std::uint64_t stream) {
  char name[16] = {};
  current_thread_name(name, sizeof(name));
  return interner_.track(current_thread_id(), name, device, stream);
}

void Recorder::communication_started(std::uint16_t comm_id) noexcept {
  if (!is_recording() || comm_id == kNoId || comm_id > comm_records_.size()) return;
  comm_records_[comm_id - 1].started.fetch_add(1, std::memory_order_relaxed);
}

void Recorder::communication_completed(std::uint16_t comm_id) noexcept {
  if (!is_recording() || comm_id == kNoId || comm_id > comm_records_.size()) return;
  CommRecord& record = comm_records_[comm_id - 1];
  record.completed.fetch_add(1, std::memory_order_relaxed);
  record.last_completed_ticks.store(clock_.ticks(), std::memory_order_relaxed);
}

}  // namespace smon_rt
