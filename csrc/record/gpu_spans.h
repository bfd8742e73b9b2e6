#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "format/in_flight.h"
#include "format/span.h"
#include "record/gpu_timer.h"
#include "record/interner.h"

namespace smon_rt {

/// Kinds whose spans have GPU times, a bit each, where the process has a GPU: work of a whole microbatch or step on the
/// stream that computes. Never what tensor, sequence or context parallelism communicate: where the GPU has one queue
/// (CUDA_DEVICE_MAX_CONNECTIONS=1), an event between a launch and what should overlap with it makes the two wait for
/// each other.
inline constexpr std::uint32_t kGpuKinds =
    1u << static_cast<unsigned>(Kind::kForwardCompute) | 1u << static_cast<unsigned>(Kind::kBackwardCompute) |
    1u << static_cast<unsigned>(Kind::kForwardBackwardCombined) | 1u << static_cast<unsigned>(Kind::kEval) |
    1u << static_cast<unsigned>(Kind::kOptimizer) | 1u << static_cast<unsigned>(Kind::kOptimizerClipMainGrad);

/// Kinds that have an event behind the wait for them, where that makes a stream wait.
inline constexpr std::uint32_t kGpuWaitKinds =
    1u << static_cast<unsigned>(Kind::kForwardSend) | 1u << static_cast<unsigned>(Kind::kForwardRecv) |
    1u << static_cast<unsigned>(Kind::kBackwardSend) | 1u << static_cast<unsigned>(Kind::kBackwardRecv) |
    1u << static_cast<unsigned>(Kind::kParamsAllGather) | 1u << static_cast<unsigned>(Kind::kGradsReduceScatter) |
    1u << static_cast<unsigned>(Kind::kGradsAllReduce) | 1u << static_cast<unsigned>(Kind::kLayernormGradsAllReduce) |
    1u << static_cast<unsigned>(Kind::kEmbeddingGradsAllReduce) |
    1u << static_cast<unsigned>(Kind::kSeparateGradsAllReduce);

/// Records the boundaries of spans on the GPU: which stream, which event, and when two spans share one.
///
/// A context, and a stream of it, that a thread is first seen in is asked for; until the drain thread has made its
/// events and its track, spans there have host times only, and are counted.
///
/// Two spans share a boundary only if the second begins within 5 µs of the end of the first, on the same thread and
/// stream, and the thread recorded nothing between: else the host's pause would look like work of the GPU.
///
/// Threading: begin(), end() and remember() by the thread of the span, serve() by the drain thread.
/// Cost: no lock, no allocation; the driver's calls of GpuTimer::record(), none for a shared boundary but the one that
/// asks for the context.
class GpuSpans {
 public:
  static constexpr std::int64_t kShareWithinNs = 5'000;
  static constexpr std::uint32_t kMaxStreams = 127;  // over all threads: a number has 7 bits

  GpuSpans(GpuTimer& timer, const ArenaHeader& header, std::span<ThreadRecord> threads, Interner& interner);

  /// What a thread has recorded so far: the same again says that nothing came between.
  struct Position {
    std::uint64_t pushed = 0;
    std::uint32_t free_slots = 0;
    friend bool operator==(const Position&, const Position&) = default;
  };

  /// A boundary of a span.
  struct Boundary {
    EventSlot event = kNoEvent;
    std::uint32_t stream = 0;  // number of the stream here, from 1; what end() is told
    std::uint16_t track_id = kNoId;
    std::uint16_t flags = 0;  // span_flag::kInCapture, if that is why there is no event
  };

  /// Of a span that begins, or of a wait that is over: on the stream that the thread launches into.
  Boundary begin(std::size_t thread, Position position, std::int64_t now_ticks) noexcept;
  Boundary wait(std::size_t thread) noexcept;
  /// Of a span that ends, on the stream where it began.
  Boundary end(std::uint32_t stream) noexcept;
  /// The event may be the beginning of the thread's next span, too.
  void remember(std::size_t thread, const Boundary& boundary, Position position, std::int64_t now_ticks) noexcept;

  void release(EventSlot event) noexcept { timer_.release(event); }
  GpuTimer& timer() noexcept { return timer_; }

  /// Whether a thread was seen in a context: there may be spans with events.
  bool has_streams() const noexcept { return stream_count_.load(std::memory_order_relaxed) != 0; }

  /// Makes what was asked for since the last time.
  void serve();
  /// Of the first device, for the drain thread; "" until there is one.
  const std::string& device_uuid() const noexcept { return device_uuid_; }

  /// Spans on a GPU with an end without event: their stream was not known yet, no event was free, or they ended in
  /// another context.
  void count_host_only() noexcept { host_only_spans_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t host_only_spans() const noexcept { return host_only_spans_.load(std::memory_order_relaxed); }

 private:
  enum class State : std::uint32_t { kFree, kAsked, kReady, kRefused };

  /// A stream, as one thread launches into it.
  struct Stream {
    std::atomic<State> state{State::kFree};
    std::int32_t thread_id = 0;
    char thread_name[16] = {};
    GpuContext context = 0;
    GpuStream stream = 0;
    std::uint16_t track_id = kNoId;
  };
  /// A thread's own.
  struct alignas(kCacheLineBytes) Thread {
    std::uint32_t last_stream = 0;  // most often the next one's, too
    EventSlot end_event = kNoEvent;
    std::uint32_t end_stream = 0;
    std::int64_t end_ticks = 0;
    Position end_position;
  };

  Stream* find(std::size_t thread, std::uint32_t* number) noexcept;
  std::uint32_t ask(const ThreadRecord& record, GpuContext context, GpuStream stream) noexcept;
  Boundary record(const Stream& stream, std::uint32_t number) noexcept;
  bool is_near(const Thread& thread, std::uint32_t stream, Position position, std::int64_t now_ticks) const noexcept;

  GpuTimer& timer_;
  const ArenaHeader& header_;
  std::span<ThreadRecord> records_;
  Interner& interner_;
  std::unique_ptr<Thread[]> threads_;
  std::array<Stream, kMaxStreams> streams_;
  std::atomic<std::uint32_t> stream_count_{0};
  std::atomic<std::uint64_t> host_only_spans_{0};
  std::uint32_t served_count_ = 0;  // the drain thread's
  std::uint32_t passes_ = 0;
  std::string device_uuid_;
  bool has_said_refused_ = false;
};

/// While a span of the GPU is open, its word of the device's end has the number of its stream in 7 bits, and above them
/// the event of Recorder::mark_end(), if there was one.
constexpr std::uint64_t open_end_word(std::uint32_t stream, EventSlot marked) {
  return static_cast<std::uint64_t>(marked) << 7 | stream;
}
constexpr std::uint32_t stream_of(std::uint64_t word) {
  return static_cast<std::uint32_t>(word & 0x7f);
}
constexpr EventSlot marked_event(std::uint64_t word) {
  return static_cast<EventSlot>(word >> 7);
}
static_assert(stream_of(open_end_word(GpuSpans::kMaxStreams, 5)) == GpuSpans::kMaxStreams);

}  // namespace smon_rt
