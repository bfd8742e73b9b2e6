#include "format/trace_encoder.h"

#include <protozero/pbf_builder.hpp>

#include <algorithm>
#include <map>
#include <ranges>
#include <string_view>

#include "format/packed_column.h"
#include "format/packet_writer.h"
#include "format/trace_fields.h"
#include "format/utf8.h"

namespace smon_rt {
namespace {

namespace fields = trace_fields;
using protozero::pbf_builder;

// Readers take a packet of more than 64 MiB for a damaged length.
constexpr std::size_t kNamesPacketBytes = std::size_t{1} << 20;

/// Texts come from environment variables, threads and other people's programs. For one that is not UTF-8 protobuf
/// libraries refuse the whole message, and with it who recorded.
template <typename Tag>
void add_text(pbf_builder<Tag>& message, Tag tag, std::string_view text) {
  const auto add = [&](std::string_view valid) {
    message.add_string(tag, protozero::data_view(valid.data(), valid.size()));
  };
  if (is_utf8(text)) [[likely]]
    return add(text);
  add(to_utf8(text));
}

template <typename Tag>
void add_map(std::string& out, pbf_builder<Tag>& parent, Tag tag, const std::map<std::string, std::string>& map) {
  for (const auto& [key, value] : map) {
    auto entry = begin_message<fields::MapEntry>(out, parent, tag);
    add_text(entry, fields::MapEntry::kKey, key);
    add_text(entry, fields::MapEntry::kValue, value);
  }
}

void add_layout(std::string& out, pbf_builder<fields::Identity>& parent, const TraceLayout& layout) {
  using fields::Layout;
  auto message = begin_message<Layout>(out, parent, fields::Identity::kLayout);
  message.add_int32(Layout::kDpRank, layout.dp_rank);
  message.add_int32(Layout::kStage, layout.stage);
  message.add_int32(Layout::kTpRank, layout.tp_rank);
  message.add_int32(Layout::kCpRank, layout.cp_rank);
  message.add_int32(Layout::kExpertDpRank, layout.expert_dp_rank);
  message.add_int32(Layout::kDpSize, layout.dp_size);
  message.add_int32(Layout::kPpSize, layout.pp_size);
  message.add_int32(Layout::kTpSize, layout.tp_size);
  message.add_int32(Layout::kCpSize, layout.cp_size);
  message.add_int32(Layout::kVppSize, layout.vpp_size);
  message.add_int32(Layout::kMicrobatchCount, layout.microbatch_count);
  add_text(message, Layout::kSchedule, layout.schedule);
}

void add_sampling(std::string& out, pbf_builder<fields::Identity>& parent, const TraceSampling& sampling) {
  using fields::Sampling;
  auto message = begin_message<Sampling>(out, parent, fields::Identity::kSampling);
  message.add_double(Sampling::kSampleRatio, sampling.sample_ratio);
  message.add_uint32(Sampling::kWarmupSteps, sampling.warmup_steps);
  message.add_uint32(Sampling::kAlwaysSteps, sampling.always_steps);
  message.add_uint32(Sampling::kWindowSteps, sampling.window_steps);
}

void add_hook(std::string& out, pbf_builder<fields::Identity>& parent, const TraceHook& hook) {
  using fields::Hook;
  auto message = begin_message<Hook>(out, parent, fields::Identity::kHooks);
  add_text(message, Hook::kName, hook.name);
  message.add_bool(Hook::kInstalled, hook.installed);
  add_text(message, Hook::kReason, hook.reason);
}

void add_name(std::string& out, pbf_builder<fields::Names>& parent, const TraceName& name) {
  using fields::Name;
  auto message = begin_message<Name>(out, parent, fields::Names::kName);
  message.add_uint32(Name::kId, name.id);
  add_text(message, Name::kText, name.text);
}

void add_track(std::string& out, pbf_builder<fields::Names>& parent, const TraceTrack& track) {
  using fields::Track;
  auto message = begin_message<Track>(out, parent, fields::Names::kTrack);
  message.add_uint32(Track::kId, track.id);
  message.add_int32(Track::kThreadId, track.thread_id);
  add_text(message, Track::kThreadName, track.thread_name);
  message.add_int32(Track::kDevice, track.device);
  message.add_uint64(Track::kStream, track.stream);
}

void add_communicator(std::string& out, pbf_builder<fields::Names>& parent, const TraceCommunicator& communicator) {
  using fields::Communicator;
  auto message = begin_message<Communicator>(out, parent, fields::Names::kCommunicator);
  message.add_uint32(Communicator::kId, communicator.id);
  add_text(message, Communicator::kName, communicator.name);
  add_text(message, Communicator::kDimension, communicator.dimension);
  message.add_packed_int32(Communicator::kMemberRanks, communicator.member_ranks.begin(),
                           communicator.member_ranks.end());
}

}  // namespace

void append_identity(std::string& out, const TraceIdentity& identity) {
  using fields::Identity;
  PacketWriter packet(out);
  {
    auto message = begin_message<Identity>(out, packet.fields(), fields::Packet::kIdentity);
    add_text(message, Identity::kRunId, identity.run_id);
    message.add_uint32(Identity::kAttempt, identity.attempt);
    message.add_uint32(Identity::kFileIndex, identity.file_index);
    message.add_int32(Identity::kRank, identity.rank);
    message.add_int32(Identity::kWorldSize, identity.world_size);
    message.add_int32(Identity::kLocalRank, identity.local_rank);
    add_layout(out, message, identity.layout);
    add_text(message, Identity::kHost, identity.host);
    add_text(message, Identity::kBootId, identity.boot_id);
    message.add_uint64(Identity::kTimeNamespace, identity.time_namespace);
    message.add_int32(Identity::kPid, identity.pid);
    add_text(message, Identity::kGpuUuid, identity.gpu_uuid);
    add_map(out, message, Identity::kVersions, identity.versions);
    add_map(out, message, Identity::kEnvironment, identity.environment);
    add_sampling(out, message, identity.sampling);
    for (const TraceHook& hook : identity.hooks) add_hook(out, message, hook);
    message.add_enum(Identity::kClockSource, static_cast<std::int32_t>(identity.clock_source));
    add_text(message, Identity::kMemory, identity.memory);
    message.add_uint64(Identity::kProcessStartTicks, identity.process_start_ticks);
  }
  packet.finish();
}

void append_step_times(std::string& out, std::span<const StepTime> step_times) {
  using fields::StepTimes;
  if (step_times.empty()) return;
  const auto [first_step, last_step] = std::ranges::minmax(std::views::transform(step_times, &StepTime::step));
  PacketWriter packet(out);
  packet.fields().add_uint32(fields::Packet::kFirstStep, first_step);
  packet.fields().add_uint32(fields::Packet::kLastStep, last_step);
  {
    const protozero::pbf_writer message(packet.fields(),
                                        static_cast<protozero::pbf_tag_type>(fields::Packet::kStepTimes));
    const std::size_t count = step_times.size();
    append_packed(out, StepTimes::kStep, count,
                  [&](std::size_t i) { return zigzag32(step_times[i].step - (i == 0 ? 0 : step_times[i - 1].step)); });
    append_packed(out, StepTimes::kStartNs, count, [&](std::size_t i) {
      return zigzag_difference(step_times[i].start_ns, i == 0 ? 0 : step_times[i - 1].start_ns);
    });
    append_packed(out, StepTimes::kDurationNs, count, [&](std::size_t i) { return step_times[i].duration_ns; });
    append_column(out, StepTimes::kSampled, count, 0,
                  [&](std::size_t i) { return std::uint64_t{step_times[i].sampled}; });
    append_column(out, StepTimes::kWarmup, count, 0,
                  [&](std::size_t i) { return std::uint64_t{step_times[i].warmup}; });
  }
  packet.finish();
}

void append_names(std::string& out, const TraceNames& names) {
  std::size_t name = 0, track = 0, communicator = 0;
  do {
    PacketWriter packet(out);
    {
      auto message = begin_message<fields::Names>(out, packet.fields(), fields::Packet::kNames);
      const std::size_t start = out.size();
      const auto has_room = [&] { return out.size() - start < kNamesPacketBytes; };
      for (; name < names.names.size() && has_room(); ++name) add_name(out, message, names.names[name]);
      for (; track < names.tracks.size() && has_room(); ++track) add_track(out, message, names.tracks[track]);
      for (; communicator < names.communicators.size() && has_room(); ++communicator) {
        add_communicator(out, message, names.communicators[communicator]);
      }
    }
    packet.finish();
  } while (name < names.names.size() || track < names.tracks.size() || communicator < names.communicators.size());
}

void append_losses(std::string& out, const TraceLosses& losses) {
  using fields::Losses;
  PacketWriter packet(out);
  {
    auto message = begin_message<Losses>(out, packet.fields(), fields::Packet::kLosses);
    for (const auto& [kind, dropped] : losses.dropped_by_kind) {
      auto entry = begin_message<fields::MapEntry>(out, message, Losses::kDroppedByKind);
      entry.add_uint32(fields::MapEntry::kKey, kind);
      entry.add_uint64(fields::MapEntry::kValue, dropped);
    }
    message.add_uint64(Losses::kForeignTokens, losses.foreign_tokens);
    message.add_uint64(Losses::kStaleTokens, losses.stale_tokens);
    message.add_uint64(Losses::kThreadsWithoutRing, losses.threads_without_ring);
    message.add_uint64(Losses::kUnwrittenSpans, losses.unwritten_spans);
    message.add_uint64(Losses::kOverwrittenSpans, losses.overwritten_spans);
    message.add_uint64(Losses::kLateRequests, losses.late_requests);
    add_text(message, Losses::kSinkError, losses.sink_error);
    message.add_uint64(Losses::kUncountedSequences, losses.uncounted_sequences);
    message.add_uint64(Losses::kReclaimedSpans, losses.reclaimed_spans);
    message.add_uint64(Losses::kSaturatedSteps, losses.saturated_steps);
    message.add_uint64(Losses::kMisusedCalls, losses.misused_calls);
    message.add_uint64(Losses::kHostOnlySpans, losses.host_only_spans);
    message.add_uint64(Losses::kOverwrittenCommOps, losses.overwritten_comm_ops);
  }
  packet.finish();
}

void append_clock_snapshot(std::string& out, const TraceClockSnapshot& snapshot) {
  using fields::ClockSnapshot;
  PacketWriter packet(out);
  {
    auto message = begin_message<ClockSnapshot>(out, packet.fields(), fields::Packet::kClockSnapshot);
    message.add_sint64(ClockSnapshot::kTicks, snapshot.ticks);
    message.add_sint64(ClockSnapshot::kMonotonicNs, snapshot.monotonic_ns);
    message.add_sint64(ClockSnapshot::kRealtimeNs, snapshot.realtime_ns);
    message.add_uint64(ClockSnapshot::kWidthNs, snapshot.width_ns);
  }
  packet.finish();
}

void append_clock_map(std::string& out, const TraceClockMap& map) {
  using fields::ClockMap;
  PacketWriter packet(out);
  {
    auto message = begin_message<ClockMap>(out, packet.fields(), fields::Packet::kClockMap);
    add_text(message, ClockMap::kGpuUuid, map.gpu_uuid);
    message.add_sint64(ClockMap::kWindowStartNs, map.window_start_ns);
    message.add_sint64(ClockMap::kWindowEndNs, map.window_end_ns);
    message.add_double(ClockMap::kOffsetNs, map.offset_ns);
    message.add_double(ClockMap::kDriftRatio, map.drift_ratio);
    message.add_uint64(ClockMap::kBoundNs, map.bound_ns);
    message.add_uint32(ClockMap::kViolatedBounds, map.violated_bounds);
    add_text(message, ClockMap::kDeviceClock, map.device_clock);
    message.add_int32(ClockMap::kDevice, map.device);
  }
  packet.finish();
}

void append_recorder_cost(std::string& out, const TraceRecorderCost& cost) {
  using fields::RecorderCost;
  PacketWriter packet(out);
  {
    auto message = begin_message<RecorderCost>(out, packet.fields(), fields::Packet::kRecorderCost);
    message.add_uint64(RecorderCost::kDrainCpuNs, cost.drain_cpu_ns);
    message.add_uint64(RecorderCost::kReporterCpuNs, cost.reporter_cpu_ns);
    message.add_uint64(RecorderCost::kWatchdogCpuNs, cost.watchdog_cpu_ns);
    message.add_uint64(RecorderCost::kSpanCount, cost.span_count);
    message.add_uint64(RecorderCost::kFileBytes, cost.file_bytes);
    message.add_double(RecorderCost::kSampledStepMeanNs, cost.sampled_step_mean_ns);
    message.add_double(RecorderCost::kUnsampledStepMeanNs, cost.unsampled_step_mean_ns);
    if (cost.overhead_ratio) message.add_double(RecorderCost::kOverheadRatio, *cost.overhead_ratio);
    if (cost.overhead_low_ratio) message.add_double(RecorderCost::kOverheadLowRatio, *cost.overhead_low_ratio);
    if (cost.event_queries != 0) message.add_uint64(RecorderCost::kEventQueries, cost.event_queries);
    if (cost.longest_event_lag_ns != 0) message.add_uint64(RecorderCost::kLongestEventLagNs, cost.longest_event_lag_ns);
  }
  packet.finish();
}

void append_end(std::string& out, std::string_view reason) {
  PacketWriter packet(out);
  {
    auto message = begin_message<fields::End>(out, packet.fields(), fields::Packet::kEnd);
    add_text(message, fields::End::kReason, reason);
  }
  packet.finish();
}

void append_leftover(std::string& out, const TraceLeftover& leftover) {
  using fields::Leftover;
  PacketWriter packet(out);
  {
    auto message = begin_message<Leftover>(out, packet.fields(), fields::Packet::kLeftover);
    message.add_int32(Leftover::kMergedByPid, leftover.merged_by_pid);
    message.add_sint64(Leftover::kRealtimeNs, leftover.realtime_ns);
    message.add_sint64(Leftover::kStep, leftover.step);
    message.add_uint32(Leftover::kPhase, leftover.phase);
  }
  packet.finish();
}

void append_comm_counts(std::string& out, const TraceCommCounts& counts) {
  using fields::CommCounts;
  PacketWriter packet(out);
  {
    auto message = begin_message<CommCounts>(out, packet.fields(), fields::Packet::kCommCounts);
    message.add_uint64(CommCounts::kCommunicators, counts.communicators);
    message.add_uint64(CommCounts::kOps, counts.ops);
    message.add_uint64(CommCounts::kJoinedOps, counts.joined_ops);
    message.add_uint64(CommCounts::kForeignHandles, counts.foreign_handles);
    message.add_uint64(CommCounts::kStaleHandles, counts.stale_handles);
    message.add_uint64(CommCounts::kLostEnds, counts.lost_ends);
    message.add_uint64(CommCounts::kRejectedTimes, counts.rejected_times);
    message.add_uint64(CommCounts::kUntracked, counts.untracked);
  }
  packet.finish();
}

}  // namespace smon_rt
