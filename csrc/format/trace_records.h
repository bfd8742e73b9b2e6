#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/comm_words.h"
#include "format/span.h"

// What a trace file holds, as plain values: what the encoder takes and the reader gives. Each struct is the message of
// the same name, less the "Trace", in proto/smon_rt/v1/trace.proto, whose comments say what the fields mean.

namespace smon_rt {

struct TraceLayout {
  std::int32_t dp_rank = 0;
  std::int32_t stage = 0;
  std::int32_t tp_rank = 0;
  std::int32_t cp_rank = 0;
  std::int32_t expert_dp_rank = 0;
  std::int32_t dp_size = 1;
  std::int32_t pp_size = 1;
  std::int32_t tp_size = 1;
  std::int32_t cp_size = 1;
  std::int32_t vpp_size = 1;
  std::int32_t microbatch_count = 0;
  std::string schedule;

  friend bool operator==(const TraceLayout&, const TraceLayout&) = default;
};

struct TraceSampling {
  double sample_ratio = 0;
  std::uint32_t warmup_steps = 0;
  std::uint32_t always_steps = 0;
  std::uint32_t window_steps = 0;

  friend bool operator==(const TraceSampling&, const TraceSampling&) = default;
};

struct TraceHook {
  std::string name;
  bool installed = false;
  std::string reason;

  friend bool operator==(const TraceHook&, const TraceHook&) = default;
};

struct TraceIdentity {
  std::string run_id;
  std::uint32_t attempt = 0;
  std::uint32_t file_index = 0;
  std::int32_t rank = 0;
  std::int32_t world_size = 1;
  std::int32_t local_rank = 0;
  TraceLayout layout;
  std::string host;
  std::string boot_id;
  std::uint64_t time_namespace = 0;
  std::int32_t pid = 0;
  std::string gpu_uuid;
  std::map<std::string, std::string> versions;  // sorted, so that equal identities are equal bytes
  std::map<std::string, std::string> environment;
  TraceSampling sampling;
  std::vector<TraceHook> hooks;
  std::uint32_t clock_source = 0;  // a number of trace.proto's ClockSource
  std::string memory;
  std::uint64_t process_start_ticks = 0;

  friend bool operator==(const TraceIdentity&, const TraceIdentity&) = default;
};

/// Wall time of one step, sampled or not. `step` as in Span.
struct StepTime {
  std::uint32_t step = 0;
  std::int64_t start_ns = 0;
  std::uint64_t duration_ns = 0;
  bool sampled = false;
  bool warmup = false;

  friend bool operator==(const StepTime&, const StepTime&) = default;
};

struct TraceName {
  std::uint32_t id = 0;
  std::string text;

  friend bool operator==(const TraceName&, const TraceName&) = default;
};

struct TraceTrack {
  std::uint32_t id = 0;
  std::int32_t thread_id = 0;
  std::string thread_name;
  std::int32_t device = -1;
  std::uint64_t stream = 0;

  friend bool operator==(const TraceTrack&, const TraceTrack&) = default;
};

struct TraceCommunicator {
  std::uint32_t id = 0;
  std::string name;
  std::string dimension;
  std::vector<std::int32_t> member_ranks;

  friend bool operator==(const TraceCommunicator&, const TraceCommunicator&) = default;
};

struct TraceNames {
  std::vector<TraceName> names;
  std::vector<TraceTrack> tracks;
  std::vector<TraceCommunicator> communicators;

  friend bool operator==(const TraceNames&, const TraceNames&) = default;
};

struct TraceLosses {
  std::map<std::uint32_t, std::uint64_t> dropped_by_kind;
  std::uint64_t foreign_tokens = 0;
  std::uint64_t stale_tokens = 0;
  std::uint64_t threads_without_ring = 0;
  std::uint64_t unwritten_spans = 0;
  std::uint64_t overwritten_spans = 0;
  std::uint64_t late_requests = 0;
  std::string sink_error;
  std::uint64_t uncounted_sequences = 0;
  std::uint64_t reclaimed_spans = 0;
  std::uint64_t saturated_steps = 0;
  std::uint64_t misused_calls = 0;
  std::uint64_t host_only_spans = 0;
  std::uint64_t overwritten_comm_ops = 0;

  friend bool operator==(const TraceLosses&, const TraceLosses&) = default;
};

struct TraceClockSnapshot {
  std::int64_t ticks = 0;
  std::int64_t monotonic_ns = 0;
  std::int64_t realtime_ns = 0;
  std::uint64_t width_ns = 0;

  friend bool operator==(const TraceClockSnapshot&, const TraceClockSnapshot&) = default;
};

struct TraceClockMap {
  std::string gpu_uuid;
  std::int64_t window_start_ns = 0;
  std::int64_t window_end_ns = 0;
  double offset_ns = 0;
  double drift_ratio = 1;
  std::uint64_t bound_ns = 0;
  std::uint32_t violated_bounds = 0;
  std::string device_clock;
  std::int32_t device = 0;

  friend bool operator==(const TraceClockMap&, const TraceClockMap&) = default;
};

struct TraceRecorderCost {
  std::uint64_t drain_cpu_ns = 0;
  std::uint64_t reporter_cpu_ns = 0;
  std::uint64_t watchdog_cpu_ns = 0;
  std::uint64_t span_count = 0;
  std::uint64_t file_bytes = 0;
  double sampled_step_mean_ns = 0;
  double unsampled_step_mean_ns = 0;
  std::optional<double> overhead_ratio;
  std::optional<double> overhead_low_ratio;
  std::uint64_t event_queries = 0;
  std::uint64_t longest_event_lag_ns = 0;

  friend bool operator==(const TraceRecorderCost&, const TraceRecorderCost&) = default;
};

/// Reason of an End that is not the end of the recording: the file was full, and a next one should follow.
inline constexpr std::string_view kRotated = "rotated";

struct TraceLeftover {
  std::int32_t merged_by_pid = 0;
  std::int64_t realtime_ns = 0;
  std::int64_t step = -1;
  std::uint32_t phase = 0;

  friend bool operator==(const TraceLeftover&, const TraceLeftover&) = default;
};

/// One row of CommOps. Transfers and kernels of an op that has none are 0.
struct TraceCommOp {
  std::uint64_t number = 0;
  std::int64_t start_ns = 0;
  std::uint64_t enqueue_ns = 0;
  std::int64_t first_transfer_ns = 0;  // CLOCK_MONOTONIC
  std::uint64_t transfer_ns = 0;
  std::uint64_t kernel_start_device_ns = 0;
  std::uint64_t kernel_duration_device_ns = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t library_seq = 0;
  std::uint32_t comm_seq = 0;
  std::uint32_t step = 0;
  std::uint32_t communicator = 0;
  std::int32_t peer = kNoPeer;
  std::uint32_t transfer_count = 0;
  std::uint32_t open_transfer_count = 0;
  std::uint32_t kernel_count = 0;
  std::uint32_t open_kernel_count = 0;
  std::uint16_t comm_id = kNoId;
  CommFunction function = CommFunction::kUnknown;
  CommDatatype datatype = CommDatatype::kUnknown;
  CommAlgorithm algorithm = CommAlgorithm::kUnknown;
  CommProtocol protocol = CommProtocol::kUnknown;
  std::uint8_t channel_count = 0;
  std::uint8_t slowest_channel = 0;
  std::uint8_t flags = 0;  // comm_op_flag

  friend bool operator==(const TraceCommOp&, const TraceCommOp&) = default;
};

namespace comm_op_flag {
inline constexpr std::uint8_t kCaptured = 1 << 0;
inline constexpr std::uint8_t kEnqueued = 1 << 1;
}  // namespace comm_op_flag

struct TraceCommCounts {
  std::uint64_t communicators = 0;
  std::uint64_t ops = 0;
  std::uint64_t joined_ops = 0;
  std::uint64_t foreign_handles = 0;
  std::uint64_t stale_handles = 0;
  std::uint64_t lost_ends = 0;
  std::uint64_t rejected_times = 0;
  std::uint64_t untracked = 0;

  friend bool operator==(const TraceCommCounts&, const TraceCommCounts&) = default;
};

/// One row of CommChannels.
struct TraceCommChannel {
  std::uint32_t communicator = 0;
  std::uint64_t nccl_comm = 0;
  std::uint16_t comm_id = kNoId;
  std::uint32_t channel = 0;
  bool is_send = false;
  std::int32_t peer = 0;
  std::uint64_t begun = 0;
  std::uint64_t moved = 0;
  std::uint64_t done = 0;
  std::uint64_t moved_bytes = 0;
  std::uint32_t state = 0;  // a number of ChannelState
  std::int64_t state_ns = 0;

  friend bool operator==(const TraceCommChannel&, const TraceCommChannel&) = default;
};

}  // namespace smon_rt
