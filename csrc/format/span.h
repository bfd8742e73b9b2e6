#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "format/kind.h"

namespace smon_rt {

/// What a span's times were taken with.
enum class TimeSource : std::uint8_t {
  kHost = 0,             // begin and end calls on the host's clock
  kGpuEvent = 1,         // events on the stream the op ran on
  kWaitEvent = 2,        // an event right after the wait returned: an upper bound of the end
  kNcclGlobaltimer = 3,  // the GPU's global timer, as NCCL's kernels read it
  kWaitReturn = 4,       // the host clock when the wait returned
};

/// Bits of Span::flags. Written to files: never renumber.
namespace span_flag {
inline constexpr std::uint16_t kAborted = 1 << 0;       // left by an exception, or open when recording stopped
inline constexpr std::uint16_t kInCapture = 1 << 1;     // inside a CUDA graph capture: host time only
inline constexpr std::uint16_t kForwardOnly = 1 << 2;   // no backward follows
inline constexpr std::uint16_t kRecomputed = 1 << 3;    // activation recompute
inline constexpr std::uint16_t kFallbackHook = 1 << 4;  // from a wrapper, not from the hook meant for it
inline constexpr std::uint16_t kWarmup = 1 << 5;        // in the process's first steps, left out by the analysis
inline constexpr std::uint16_t kOtherThread = 1 << 6;   // ended by another thread than began it
inline constexpr std::uint16_t kStepCounted = 1 << 7;   // the step number is our own count, not the script's
inline constexpr std::uint16_t kSaturated = 1 << 8;     // op_index or payload_bytes did not fit and is its maximum
inline constexpr std::uint16_t kNotWaited = 1 << 9;     // nobody waited for it: its end is when it had been issued
}  // namespace span_flag

inline constexpr std::int16_t kNoIndex = -1;
inline constexpr std::int32_t kNoPeer = -1;
inline constexpr std::uint16_t kNoId = 0;  // interned names, tracks and communicators count from 1

/// One recorded interval. Plain old data of one cache line: what a ring entry holds and what the drain thread reads.
///
/// Host times are raw ticks of base/clock.h while in a ring and CLOCK_MONOTONIC nanoseconds once the drain thread has
/// converted them. Device times are event slots of the GpuTimer until resolved, then nanoseconds of the host's
/// CLOCK_MONOTONIC with the error bound of the clock map; 0 where no GPU was involved.
struct Span {
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::int64_t device_start = 0;
  std::int64_t device_end = 0;
  std::uint32_t step = 0;
  Kind kind = Kind::kStep;
  TimeSource time_source = TimeSource::kHost;
  std::uint16_t flags = 0;
  std::int16_t microbatch = kNoIndex;
  std::int16_t chunk = kNoIndex;
  std::uint16_t op_index = 0;      // launch index per kind and step
  std::uint16_t track_id = kNoId;  // interned device + stream + thread
  // A span is named by its user, or belongs to a communicator, never both.
  std::uint16_t name_or_comm_id = kNoId;
  std::uint16_t payload_high = 0;
  std::uint32_t payload_low = 0;
  std::uint32_t comm_seq = 0;  // per communicator and function, or per communicator, peer and direction; from 1
  std::int32_t peer = kNoPeer;

  /// The value of a metric, which has no communicator: it takes the room of comm_seq and peer.
  double metric_value() const {
    double value;
    std::memcpy(&value, &comm_seq, sizeof(value));
    return value;
  }
  void set_metric_value(double value) { std::memcpy(&comm_seq, &value, sizeof(value)); }

  std::uint64_t payload_bytes() const { return std::uint64_t{payload_high} << 32 | payload_low; }
  /// Saturates at 2^48 - 1.
  void set_payload_bytes(std::uint64_t bytes) {
    constexpr std::uint64_t kMax = (std::uint64_t{1} << 48) - 1;
    if (bytes > kMax) {
      bytes = kMax;
      flags |= span_flag::kSaturated;
    }
    payload_high = static_cast<std::uint16_t>(bytes >> 32);
    payload_low = static_cast<std::uint32_t>(bytes);
  }
};

static_assert(sizeof(Span) == 64);
static_assert(offsetof(Span, peer) == offsetof(Span, comm_seq) + sizeof(std::uint32_t), "metric_value spans both");
static_assert(std::is_trivially_copyable_v<Span>);

/// Kinds that belong to a communicator: their name_or_comm_id is a communicator.
constexpr bool is_communication(Kind kind) {
  switch (kind) {
    case Kind::kForwardSend:
    case Kind::kForwardRecv:
    case Kind::kBackwardSend:
    case Kind::kBackwardRecv:
    case Kind::kParamsAllGather:
    case Kind::kGradsReduceScatter:
    case Kind::kGradsAllReduce:
    case Kind::kLayernormGradsAllReduce:
    case Kind::kEmbeddingGradsAllReduce:
    case Kind::kSeparateGradsAllReduce:
    case Kind::kCollective:
      return true;
    default:
      return false;
  }
}

}  // namespace smon_rt
