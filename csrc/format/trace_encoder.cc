#include "format/trace_encoder.h"

#include <protozero/pbf_builder.hpp>

#include <algorithm>
#include <map>
#include <ranges>

#include "format/packed_column.h"
#include "format/packet_writer.h"
#include "format/trace_fields.h"

namespace smon_rt {
namespace {

namespace fields = trace_fields;
using protozero::pbf_builder;

template <typename Tag>
void add_map(std::string& out, pbf_builder<Tag>& parent, Tag tag, const std::map<std::string, std::string>& map) {
  for (const auto& [key, value] : map) {
    auto entry = begin_message<fields::MapEntry>(out, parent, tag);
    entry.add_string(fields::MapEntry::kKey, key);
    entry.add_string(fields::MapEntry::kValue, value);
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
  message.add_string(Layout::kSchedule, layout.schedule);
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
  message.add_string(Hook::kName, hook.name);
  message.add_bool(Hook::kInstalled, hook.installed);
  message.add_string(Hook::kReason, hook.reason);
}

void add_track(std::string& out, pbf_builder<fields::Names>& parent, const TraceTrack& track) {
  using fields::Track;
  auto message = begin_message<Track>(out, parent, fields::Names::kTrack);
  message.add_uint32(Track::kId, track.id);
  message.add_int32(Track::kThreadId, track.thread_id);
  message.add_string(Track::kThreadName, track.thread_name);
  message.add_int32(Track::kDevice, track.device);
  message.add_uint64(Track::kStream, track.stream);
}

void add_communicator(std::string& out, pbf_builder<fields::Names>& parent, const TraceCommunicator& communicator) {
  using fields::Communicator;
  auto message = begin_message<Communicator>(out, parent, fields::Names::kCommunicator);
  message.add_uint32(Communicator::kId, communicator.id);
  message.add_string(Communicator::kName, communicator.name);
  message.add_string(Communicator::kDimension, communicator.dimension);
  message.add_packed_int32(Communicator::kMemberRanks, communicator.member_ranks.begin(),
                           communicator.member_ranks.end());
}

}  // namespace

void append_identity(std::string& out, const TraceIdentity& identity) {
  using fields::Identity;
  PacketWriter packet(out);
  {
    auto message = begin_message<Identity>(out, packet.fields(), fields::Packet::kIdentity);
    message.add_string(Identity::kRunId, identity.run_id);
    message.add_uint32(Identity::kAttempt, identity.attempt);
    message.add_uint32(Identity::kFileIndex, identity.file_index);
    message.add_int32(Identity::kRank, identity.rank);
    message.add_int32(Identity::kWorldSize, identity.world_size);
    message.add_int32(Identity::kLocalRank, identity.local_rank);
    add_layout(out, message, identity.layout);
    message.add_string(Identity::kHost, identity.host);
    message.add_string(Identity::kBootId, identity.boot_id);
    message.add_uint64(Identity::kTimeNamespace, identity.time_namespace);
    message.add_int32(Identity::kPid, identity.pid);
    message.add_string(Identity::kGpuUuid, identity.gpu_uuid);
    add_map(out, message, Identity::kVersions, identity.versions);
    add_map(out, message, Identity::kEnvironment, identity.environment);
    add_sampling(out, message, identity.sampling);
    for (const TraceHook& hook : identity.hooks) add_hook(out, message, hook);
    message.add_enum(Identity::kClockSource, static_cast<std::int32_t>(identity.clock_source));
    message.add_string(Identity::kMemory, identity.memory);
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
  PacketWriter packet(out);
  {
    auto message = begin_message<fields::Names>(out, packet.fields(), fields::Packet::kNames);
    for (const TraceName& name : names.names) {
      auto entry = begin_message<fields::Name>(out, message, fields::Names::kName);
      entry.add_uint32(fields::Name::kId, name.id);
      entry.add_string(fields::Name::kText, name.text);
    }
    for (const TraceTrack& track : names.tracks) add_track(out, message, track);
    for (const TraceCommunicator& communicator : names.communicators) add_communicator(out, message, communicator);
  }
  packet.finish();
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
    message.add_string(Losses::kSinkError, losses.sink_error);
    message.add_uint64(Losses::kUncountedSequences, losses.uncounted_sequences);
    message.add_uint64(Losses::kReclaimedSpans, losses.reclaimed_spans);
    message.add_uint64(Losses::kSaturatedSteps, losses.saturated_steps);
    message.add_uint64(Losses::kMisusedCalls, losses.misused_calls);
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
    message.add_string(ClockMap::kGpuUuid, map.gpu_uuid);
    message.add_sint64(ClockMap::kWindowStartNs, map.window_start_ns);
    message.add_sint64(ClockMap::kWindowEndNs, map.window_end_ns);
    message.add_double(ClockMap::kOffsetNs, map.offset_ns);
    message.add_double(ClockMap::kDriftRatio, map.drift_ratio);
    message.add_uint64(ClockMap::kBoundNs, map.bound_ns);
    message.add_uint32(ClockMap::kViolatedBounds, map.violated_bounds);
    message.add_string(ClockMap::kDeviceClock, map.device_clock);
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
  }
  packet.finish();
}

void append_end(std::string& out, std::string_view reason) {
  PacketWriter packet(out);
  {
    auto message = begin_message<fields::End>(out, packet.fields(), fields::Packet::kEnd);
    message.add_string(fields::End::kReason, protozero::data_view(reason.data(), reason.size()));
  }
  packet.finish();
}

}  // namespace smon_rt
