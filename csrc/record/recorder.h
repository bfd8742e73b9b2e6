#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/process_state.h"
#include "base/result.h"
#include "format/in_flight.h"
#include "record/arena.h"
#include "record/gpu_spans.h"
#include "record/interner.h"
#include "record/sampling.h"
#include "record/sequences.h"
#include "record/span_words.h"
#include "record/step_log.h"
#include "record/thread_registry.h"

namespace smon_rt {

/// What a span is about, as smon_span_ids of smon_rt.h: same fields, same order.
struct SpanIds {
  std::int16_t microbatch = kNoIndex;
  std::int16_t chunk = kNoIndex;
  std::uint16_t name_id = kNoId;
  std::uint16_t comm_id = kNoId;
  std::int32_t peer = kNoPeer;
  std::uint32_t comm_seq = 0;  // 0: counted here
  std::uint64_t payload_bytes = 0;
  std::uint16_t track_id = kNoId;
  std::uint16_t flags = 0;  // span_flag
  std::uint32_t reserved = 0;
};

/// Names an open span: 8 bits of a nonce, 8 of thread, 1 that says whether it began on a GPU, 15 of slot, then the
/// slot's state while the span is open, 30 bits of generation and 01. 0: nothing was begun.
using Token = std::uint64_t;
inline constexpr Token kOnGpu = Token{1} << 47;

/// What spans have from their step, as their own word of step, kind and flags has it, with one bit more.
namespace step_word {
inline constexpr std::uint64_t kSampled = std::uint64_t{1} << span_word::kTimeSourceShift;  // where spans say the host

constexpr std::uint64_t make(std::uint32_t step, std::uint16_t flags, bool is_sampled) {
  return pack_step(step, Kind{}, flags) | (is_sampled ? kSampled : 0);
}
constexpr bool is_sampled(std::uint64_t word) {
  return (word & kSampled) != 0;
}
constexpr std::uint32_t step_of(std::uint64_t word) {
  return static_cast<std::uint32_t>(word);
}
constexpr std::uint16_t flags_of(std::uint64_t word) {
  return static_cast<std::uint16_t>(word >> span_word::kFlagsShift);
}
/// The word of a span of this step.
constexpr std::uint64_t of_span(std::uint64_t word, Kind kind, std::uint16_t flags) {
  return (word & ~kSampled) | pack_step(0, kind, flags);
}
}  // namespace step_word

struct RecorderOptions {
  ArenaOptions arena;
  SamplingOptions sampling;
  const Clock* clock = nullptr;   // nullptr: Clock::host()
  GpuTimer* gpu_timer = nullptr;  // nullptr: no span has times of a GPU; else it outlives the recorder
};

/// The hot path: spans begin and end here, in any thread of a training process, and lie in rings of the arena until the
/// drain thread takes them.
///
/// With a GPU, spans of kGpuKinds in sampled steps also have an event at each end, on the stream that computes, and so
/// has what end_at() ends with TimeSource::kWaitEvent, after a wait. They take the long way through begin and end.
///
/// begin() takes a slot of the calling thread's table, where the span is visible to whoever asks what hangs; end(), on
/// any thread, takes it out and, if its step is sampled, pushes it to the ring of the thread that ends it.
///
/// Threading: everything noexcept from any thread. create(), resume(), pause() and the destructor on one control
/// thread. At most one Recorder exists in a process; a forked child may create its own, under another rank or attempt.
/// Nothing may be inside begin() or end() when it is destroyed; if threads may be, call close() and leak the object.
/// Cost: no lock, no system call, no allocation, once a thread has its ring. Two clock readings for a sampled span,
/// none for one that is not. When full: dropped and counted by kind in header().losses. A thread without a free slot
/// gives up spans of earlier steps, which nobody seems to end (ThreadSlots::reclaim()).
class Recorder {
 public:
  /// Sets everything up; recording begins with resume().
  static Result<std::unique_ptr<Recorder>> create(const RecorderOptions& options);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Recording on and off. While it is off every entry below returns after its first test.
  void resume() noexcept;
  void pause() noexcept;
  /// Off for good: unlinks the arena's file and detaches the memory. What is in the rings is gone: drain first.
  void close() noexcept;

  Token begin(Kind kind, const SpanIds& ids = {}) noexcept {
    if (!is_recording()) return 0;
    return begin_recording(kind, ids);
  }
  /// As begin(), for who has asked whether anything is recorded.
  Token begin_recording(Kind kind, const SpanIds& ids) noexcept;
  /// Once, on any thread. Further ends, and tokens that are none of ours, are counted and ignored.
  void end(Token token, std::uint16_t flags = 0) noexcept {
    if (token == 0 || recording_state() == RecordingState::kOff) return;
    end_recording(token, flags);
  }
  void abort(Token token) noexcept { end(token, span_flag::kAborted); }
  /// As end(), for a span that ended at `ticks` (0, or in the future: now), or whose end was not seen by the host's
  /// clock alone.
  void end_at(Token token, std::int64_t ticks, TimeSource source, std::uint16_t flags) noexcept {
    if (token == 0 || recording_state() == RecordingState::kOff) return;
    const bool may_have_event = source == TimeSource::kWaitReturn && gpu_spans_ != nullptr;
    if (source == TimeSource::kWaitEvent || may_have_event) return end_on_gpu(token, flags, ticks, source);
    end_any(token, flags, ticks, source);
  }
  /// Where an open span may turn out to have ended: the ticks for end_at(), and on a GPU the place in the stream, which
  /// an end at those ticks then takes. Not while another thread ends the span.
  std::int64_t mark_end(Token token) noexcept;
  /// Adds the ids that are set (and flags) to an open span. A communicator that becomes known here counts its sequence
  /// now. Not while another thread ends the span.
  void annotate(Token token, const SpanIds& ids) noexcept;
  /// The calling thread's innermost open span, 0 if none. One that was dropped is not seen.
  Token current() noexcept;
  /// Its innermost open span of these kinds (a bit each), 0 if none.
  Token find_open(std::uint32_t kinds) noexcept;
  /// What an open span has so far. False: it has ended, or is just being written.
  bool read_open(Token token, Span* span) noexcept;

  /// A step begins, and the one before ends if it has not. step < 0: counted here. One thread at a time, another's
  /// call meanwhile is ignored.
  void step_begin(std::int64_t step) noexcept;
  void step_end() noexcept;
  bool is_sampled() const noexcept {
    return is_recording() && step_word::is_sampled(step_word_.load(std::memory_order_relaxed));
  }

  bool is_warmup() const noexcept {
    return (step_word::flags_of(step_word_.load(std::memory_order_relaxed)) & span_flag::kWarmup) != 0;
  }

  /// A value at this point in time.
  void metric(std::uint16_t name_id, double value) noexcept;

  void set_phase(Phase phase) noexcept;

  /// A call made no sense, in whole or in part: what was left out is a loss, too.
  void count_misuse() noexcept { count(header().more_losses.misused_calls); }
  /// The kind of most spans that were never ended and had to be given up; nothing if none was.
  std::optional<Kind> leaking_kind() const noexcept;

  /// Interns the communicator and gives it a record in the arena (while there is room). 0: table full.
  std::uint16_t register_communicator(std::string_view name, std::string_view dimension,
                                      std::span<const std::int32_t> members);
  /// A device's stream as seen by the calling thread. device -1: the thread itself.
  std::uint16_t register_track(std::int32_t device, std::uint64_t stream);

  /// Waits for ops of this communicator make a stream of the GPU wait, and return to the host at once: the return of
  /// one says nothing, an event behind it does. For messages and data parallelism, that is; others keep their return.
  void set_stream_waits(std::uint16_t comm_id) noexcept;

  /// The op of a communicator that was issued before is done (started), as far as an integration knows.
  void communication_started(std::uint16_t comm_id) noexcept;
  void communication_completed(std::uint16_t comm_id) noexcept;

  Arena& arena() noexcept { return *arena_; }
  ArenaHeader& header() noexcept { return arena_->header(); }
  Interner& interner() noexcept { return interner_; }
  Sampling& sampling() noexcept { return sampling_; }
  /// Every step's times, sampled or not: single consumer.
  StepLog& step_log() noexcept { return step_log_; }
  const Clock& clock() const noexcept { return clock_; }
  /// Null without a GPU.
  GpuSpans* gpu_spans() noexcept { return gpu_spans_.get(); }

  /// Spans pushed to rings since create(), those already drained included.
  std::uint64_t recorded_spans() const noexcept { return registry_->pushed_spans(); }
  std::uint64_t dropped_spans() const noexcept;
  std::uint64_t steps() const noexcept { return steps_.load(std::memory_order_relaxed); }
  std::uint64_t sampled_steps() const noexcept { return sampled_steps_.load(std::memory_order_relaxed); }

 private:
  Recorder(const RecorderOptions& options, std::unique_ptr<Arena> arena);

  [[gnu::noinline]] Token begin_sampled(Kind kind, const SpanIds& ids, ThreadSlots& thread,
                                        std::uint64_t word) noexcept;
  [[gnu::noinline]] Token begin_any(Kind kind, const SpanIds& ids) noexcept;
  void end_recording(Token token, std::uint16_t flags) noexcept;
  [[gnu::noinline]] void end_sampled(Token token, std::uint16_t flags, ThreadSlots& thread) noexcept;
  [[gnu::noinline]] void end_any(Token token, std::uint16_t flags, std::int64_t ticks = 0,
                                 TimeSource source = TimeSource::kHost) noexcept;
  [[gnu::noinline]] Token begin_on_gpu(ThreadSlots& thread, const OpenWords& words) noexcept;
  [[gnu::noinline]] void end_on_gpu(Token token, std::uint16_t flags, std::int64_t ticks, TimeSource source) noexcept;
  template <bool kIsOnGpu>
  void end_slot(Token token, std::uint16_t flags, std::int64_t ticks, TimeSource source) noexcept;
  /// What an ending span has of the GPU's goes into its words: the boundary at its end, if there is one.
  GpuSpans::Boundary add_events(OpenSlot& slot, ThreadSlots* thread, TimeSource source, bool is_late,
                                SpanWords& words) noexcept;
  void release_events(const SpanWords& words) noexcept;
  bool has_stream_waits(const SpanWords& words) const noexcept;
  OpenSlot* slot_of(Token token, ThreadSlots** owner) noexcept;
  [[gnu::noinline]] bool find_slot(ThreadSlots& thread, std::uint32_t step) noexcept;
  std::uint32_t enqueue(Kind kind, const SpanIds& ids, std::int64_t now_ticks) noexcept;
  ThreadSlots* thread() noexcept;
  std::int64_t now_ticks() const noexcept {
    if (has_counter_) [[likely]]
      return Clock::counter_ticks();
    return clock_.ticks();
  }
  bool push(ThreadSlots* thread, const SpanWords& words) noexcept;
  void finish_step(std::int64_t now_ticks) noexcept;
  [[gnu::noinline]] void drop(Kind kind) noexcept;
  static void count(std::atomic<std::uint64_t>& counter) noexcept { counter.fetch_add(1, std::memory_order_relaxed); }

  /// Launches of a kind in the current step. As long as one thread launches all of them it counts without an atomic
  /// add. Two threads that meet for the first time may give one index twice, once in the life of a process.
  struct OpCount {
    static constexpr std::uint16_t kNobody = 0xffff;
    static constexpr std::uint16_t kShared = 0xfffe;    // also of kinds that must not begin on the short way
    static constexpr std::uint16_t kNoThread = 0xfffd;  // has no ring: never an owner
    std::atomic<std::uint64_t> count{0};  // step << 32 | launches, so that a step's first op needs no reset
    std::atomic<std::uint16_t> owner{kNobody};

    /// The count of before, in its lower half, if it is of this step.
    std::uint64_t in_step(std::uint32_t step) const noexcept {
      const std::uint64_t now = count.load(std::memory_order_relaxed);
      return now >> 32 == step ? now : std::uint64_t{step} << 32;
    }
    std::uint16_t next_shared(std::uint32_t step, std::uint16_t thread) noexcept;
  };

  bool win_end(OpenSlot& slot, Token token) noexcept;
  [[gnu::noinline]] void count_stale_token() noexcept;

  // Read by every span, written once a step: see step_word.
  std::atomic<std::uint64_t> step_word_{0};
  const Clock& clock_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<ThreadRegistry> registry_;
  std::uint64_t epoch_;
  std::uint8_t nonce_;
  std::uint32_t gpu_kinds_;  // a bit each; none without a GPU
  bool has_counter_;         // ticks are an instruction
  std::unique_ptr<Sequences> sequences_;
  std::span<CommRecord> comm_records_;
  std::unique_ptr<GpuSpans> gpu_spans_;
  bool is_closed_ = false;

  alignas(kCacheLineBytes) std::array<OpCount, kKindCount> op_counts_{};

  alignas(kCacheLineBytes) Sampling sampling_;
  Interner interner_;
  std::atomic<std::uint32_t> last_comm_id_{0};
  std::array<std::atomic<std::uint64_t>, kKindCount> reclaimed_by_kind_{};
  StepLog step_log_;
  std::atomic_flag is_stepping_;
  StepTicks open_step_;
  bool is_step_open_ = false;
  std::atomic<bool> must_forget_step_{false};
  std::atomic<std::uint64_t> steps_{0};
  std::atomic<std::uint64_t> sampled_steps_{0};
};

}  // namespace smon_rt
