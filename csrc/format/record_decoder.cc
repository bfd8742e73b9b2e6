#include "format/record_decoder.h"

#include <protozero/pbf_message.hpp>

#include <cstdint>
#include <map>
#include <string>

#include "format/field_tags.h"
#include "format/trace_fields.h"

namespace smon_rt {
namespace {

namespace fields = trace_fields;
using field_tags::bytes_of;
using field_tags::fixed64;
using field_tags::varint;
using protozero::data_view;
using protozero::pbf_message;

TraceName decode_name(data_view bytes) {
  using fields::Name;
  TraceName name;
  for (pbf_message<Name> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case varint(Name::kId):
        name.id = message.get_uint32();
        break;
      case bytes_of(Name::kText):
        name.text = message.get_string();
        break;
      default:
        message.skip();
    }
  }
  return name;
}

TraceTrack decode_track(data_view bytes) {
  using fields::Track;
  TraceTrack track{.thread_name = {}, .device = 0};
  for (pbf_message<Track> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case varint(Track::kId):
        track.id = message.get_uint32();
        break;
      case varint(Track::kThreadId):
        track.thread_id = message.get_int32();
        break;
      case bytes_of(Track::kThreadName):
        track.thread_name = message.get_string();
        break;
      case varint(Track::kDevice):
        track.device = message.get_int32();
        break;
      case varint(Track::kStream):
        track.stream = message.get_uint64();
        break;
      default:
        message.skip();
    }
  }
  return track;
}

TraceCommunicator decode_communicator(data_view bytes) {
  using fields::Communicator;
  TraceCommunicator communicator;
  for (pbf_message<Communicator> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case varint(Communicator::kId):
        communicator.id = message.get_uint32();
        break;
      case bytes_of(Communicator::kName):
        communicator.name = message.get_string();
        break;
      case bytes_of(Communicator::kDimension):
        communicator.dimension = message.get_string();
        break;
      case varint(Communicator::kMemberRanks):
        communicator.member_ranks.push_back(message.get_int32());
        break;
      case bytes_of(Communicator::kMemberRanks):
        for (const std::int32_t rank : message.get_packed_int32()) communicator.member_ranks.push_back(rank);
        break;
      default:
        message.skip();
    }
  }
  return communicator;
}

void decode_dropped(data_view bytes, std::map<std::uint32_t, std::uint64_t>& dropped_by_kind) {
  using fields::MapEntry;
  std::uint32_t kind = 0;
  std::uint64_t dropped = 0;
  for (pbf_message<MapEntry> entry(bytes); entry.next();) {
    switch (entry.tag_and_type()) {
      case varint(MapEntry::kKey):
        kind = entry.get_uint32();
        break;
      case varint(MapEntry::kValue):
        dropped = entry.get_uint64();
        break;
      default:
        entry.skip();
    }
  }
  dropped_by_kind.insert_or_assign(kind, dropped);
}

}  // namespace

TraceNames decode_names(data_view bytes) {
  using fields::Names;
  TraceNames names;
  for (pbf_message<Names> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case bytes_of(Names::kName):
        names.names.push_back(decode_name(message.get_view()));
        break;
      case bytes_of(Names::kTrack):
        names.tracks.push_back(decode_track(message.get_view()));
        break;
      case bytes_of(Names::kCommunicator):
        names.communicators.push_back(decode_communicator(message.get_view()));
        break;
      default:
        message.skip();
    }
  }
  return names;
}

TraceLosses decode_losses(data_view bytes) {
  using fields::Losses;
  TraceLosses losses;
  for (pbf_message<Losses> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case bytes_of(Losses::kDroppedByKind):
        decode_dropped(message.get_view(), losses.dropped_by_kind);
        break;
      case varint(Losses::kForeignTokens):
        losses.foreign_tokens = message.get_uint64();
        break;
      case varint(Losses::kStaleTokens):
        losses.stale_tokens = message.get_uint64();
        break;
      case varint(Losses::kThreadsWithoutRing):
        losses.threads_without_ring = message.get_uint64();
        break;
      case varint(Losses::kUnwrittenSpans):
        losses.unwritten_spans = message.get_uint64();
        break;
      case varint(Losses::kOverwrittenSpans):
        losses.overwritten_spans = message.get_uint64();
        break;
      case varint(Losses::kLateRequests):
        losses.late_requests = message.get_uint64();
        break;
      case varint(Losses::kUncountedSequences):
        losses.uncounted_sequences = message.get_uint64();
        break;
      case varint(Losses::kReclaimedSpans):
        losses.reclaimed_spans = message.get_uint64();
        break;
      case varint(Losses::kSaturatedSteps):
        losses.saturated_steps = message.get_uint64();
        break;
      case varint(Losses::kMisusedCalls):
        losses.misused_calls = message.get_uint64();
        break;
      case varint(Losses::kHostOnlySpans):
        losses.host_only_spans = message.get_uint64();
        break;
      case varint(Losses::kOverwrittenCommOps):
        losses.overwritten_comm_ops = message.get_uint64();
        break;
      case bytes_of(Losses::kSinkError):
        losses.sink_error = message.get_string();
        break;
      default:
        message.skip();
    }
  }
  return losses;
}

TraceClockSnapshot decode_clock_snapshot(data_view bytes) {
  using fields::ClockSnapshot;
  TraceClockSnapshot snapshot;
  for (pbf_message<ClockSnapshot> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case varint(ClockSnapshot::kTicks):
        snapshot.ticks = message.get_sint64();
        break;
      case varint(ClockSnapshot::kMonotonicNs):
        snapshot.monotonic_ns = message.get_sint64();
        break;
      case varint(ClockSnapshot::kRealtimeNs):
        snapshot.realtime_ns = message.get_sint64();
        break;
      case varint(ClockSnapshot::kWidthNs):
        snapshot.width_ns = message.get_uint64();
        break;
      default:
        message.skip();
    }
  }
  return snapshot;
}

TraceClockMap decode_clock_map(data_view bytes) {
  using fields::ClockMap;
  TraceClockMap map;
  map.drift_ratio = 0;
  for (pbf_message<ClockMap> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case bytes_of(ClockMap::kGpuUuid):
        map.gpu_uuid = message.get_string();
        break;
      case varint(ClockMap::kWindowStartNs):
        map.window_start_ns = message.get_sint64();
        break;
      case varint(ClockMap::kWindowEndNs):
        map.window_end_ns = message.get_sint64();
        break;
      case fixed64(ClockMap::kOffsetNs):
        map.offset_ns = message.get_double();
        break;
      case fixed64(ClockMap::kDriftRatio):
        map.drift_ratio = message.get_double();
        break;
      case varint(ClockMap::kBoundNs):
        map.bound_ns = message.get_uint64();
        break;
      case varint(ClockMap::kViolatedBounds):
        map.violated_bounds = message.get_uint32();
        break;
      case bytes_of(ClockMap::kDeviceClock):
        map.device_clock = message.get_string();
        break;
      case varint(ClockMap::kDevice):
        map.device = message.get_int32();
        break;
      default:
        message.skip();
    }
  }
  return map;
}

TraceRecorderCost decode_recorder_cost(data_view bytes) {
  using fields::RecorderCost;
  TraceRecorderCost cost;
  for (pbf_message<RecorderCost> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case varint(RecorderCost::kDrainCpuNs):
        cost.drain_cpu_ns = message.get_uint64();
        break;
      case varint(RecorderCost::kReporterCpuNs):
        cost.reporter_cpu_ns = message.get_uint64();
        break;
      case varint(RecorderCost::kWatchdogCpuNs):
        cost.watchdog_cpu_ns = message.get_uint64();
        break;
      case varint(RecorderCost::kSpanCount):
        cost.span_count = message.get_uint64();
        break;
      case varint(RecorderCost::kFileBytes):
        cost.file_bytes = message.get_uint64();
        break;
      case fixed64(RecorderCost::kSampledStepMeanNs):
        cost.sampled_step_mean_ns = message.get_double();
        break;
      case fixed64(RecorderCost::kUnsampledStepMeanNs):
        cost.unsampled_step_mean_ns = message.get_double();
        break;
      case fixed64(RecorderCost::kOverheadRatio):
        cost.overhead_ratio = message.get_double();
        break;
      case fixed64(RecorderCost::kOverheadLowRatio):
        cost.overhead_low_ratio = message.get_double();
        break;
      case varint(RecorderCost::kEventQueries):
        cost.event_queries = message.get_uint64();
        break;
      case varint(RecorderCost::kLongestEventLagNs):
        cost.longest_event_lag_ns = message.get_uint64();
        break;
      default:
        message.skip();
    }
  }
  return cost;
}

std::string decode_end(data_view bytes) {
  std::string reason;
  for (pbf_message<fields::End> message(bytes); message.next();) {
    if (message.tag_and_type() == bytes_of(fields::End::kReason)) {
      reason = message.get_string();
    } else {
      message.skip();
    }
  }
  return reason;
}

TraceLeftover decode_leftover(data_view bytes) {
  using fields::Leftover;
  TraceLeftover leftover{.step = 0};
  for (pbf_message<Leftover> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case varint(Leftover::kMergedByPid):
        leftover.merged_by_pid = message.get_int32();
        break;
      case varint(Leftover::kRealtimeNs):
        leftover.realtime_ns = message.get_sint64();
        break;
      case varint(Leftover::kStep):
        leftover.step = message.get_sint64();
        break;
      case varint(Leftover::kPhase):
        leftover.phase = message.get_uint32();
        break;
      default:
        message.skip();
    }
  }
  return leftover;
}

TraceCommCounts decode_comm_counts(data_view bytes) {
  using fields::CommCounts;
  TraceCommCounts counts;
  for (pbf_message<CommCounts> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case varint(CommCounts::kCommunicators):
        counts.communicators = message.get_uint64();
        break;
      case varint(CommCounts::kOps):
        counts.ops = message.get_uint64();
        break;
      case varint(CommCounts::kJoinedOps):
        counts.joined_ops = message.get_uint64();
        break;
      case varint(CommCounts::kForeignHandles):
        counts.foreign_handles = message.get_uint64();
        break;
      case varint(CommCounts::kStaleHandles):
        counts.stale_handles = message.get_uint64();
        break;
      case varint(CommCounts::kLostEnds):
        counts.lost_ends = message.get_uint64();
        break;
      case varint(CommCounts::kRejectedTimes):
        counts.rejected_times = message.get_uint64();
        break;
      case varint(CommCounts::kUntracked):
        counts.untracked = message.get_uint64();
        break;
      default:
        message.skip();
    }
  }
  return counts;
}

}  // namespace smon_rt
