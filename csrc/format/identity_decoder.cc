#include <protozero/pbf_message.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "format/field_tags.h"
#include "format/record_decoder.h"
#include "format/trace_fields.h"

namespace smon_rt {
namespace {

namespace fields = trace_fields;
using field_tags::bytes_of;
using field_tags::fixed64;
using field_tags::varint;
using protozero::data_view;
using protozero::pbf_message;

void decode_map_entry(data_view bytes, std::map<std::string, std::string>& map) {
  using fields::MapEntry;
  std::string key;
  std::string value;
  for (pbf_message<MapEntry> entry(bytes); entry.next();) {
    switch (entry.tag_and_type()) {
      case bytes_of(MapEntry::kKey):
        key = entry.get_string();
        break;
      case bytes_of(MapEntry::kValue):
        value = entry.get_string();
        break;
      default:
        entry.skip();
    }
  }
  map.insert_or_assign(std::move(key), std::move(value));
}

void decode_layout(data_view bytes, TraceLayout& layout) {
  using fields::Layout;
  for (pbf_message<Layout> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case varint(Layout::kDpRank):
        layout.dp_rank = message.get_int32();
        break;
      case varint(Layout::kStage):
        layout.stage = message.get_int32();
        break;
      case varint(Layout::kTpRank):
        layout.tp_rank = message.get_int32();
        break;
      case varint(Layout::kCpRank):
        layout.cp_rank = message.get_int32();
        break;
      case varint(Layout::kExpertDpRank):
        layout.expert_dp_rank = message.get_int32();
        break;
      case varint(Layout::kDpSize):
        layout.dp_size = message.get_int32();
        break;
      case varint(Layout::kPpSize):
        layout.pp_size = message.get_int32();
        break;
      case varint(Layout::kTpSize):
        layout.tp_size = message.get_int32();
        break;
      case varint(Layout::kCpSize):
        layout.cp_size = message.get_int32();
        break;
      case varint(Layout::kVppSize):
        layout.vpp_size = message.get_int32();
        break;
      case varint(Layout::kMicrobatchCount):
        layout.microbatch_count = message.get_int32();
        break;
      case bytes_of(Layout::kSchedule):
        layout.schedule = message.get_string();
        break;
      default:
        message.skip();
    }
  }
}

void decode_sampling(data_view bytes, TraceSampling& sampling) {
  using fields::Sampling;
  for (pbf_message<Sampling> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case fixed64(Sampling::kSampleRatio):
        sampling.sample_ratio = message.get_double();
        break;
      case varint(Sampling::kWarmupSteps):
        sampling.warmup_steps = message.get_uint32();
        break;
      case varint(Sampling::kAlwaysSteps):
        sampling.always_steps = message.get_uint32();
        break;
      case varint(Sampling::kWindowSteps):
        sampling.window_steps = message.get_uint32();
        break;
      default:
        message.skip();
    }
  }
}

TraceHook decode_hook(data_view bytes) {
  using fields::Hook;
  TraceHook hook;
  for (pbf_message<Hook> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case bytes_of(Hook::kName):
        hook.name = message.get_string();
        break;
      case varint(Hook::kInstalled):
        hook.installed = message.get_uint64() != 0;
        break;
      case bytes_of(Hook::kReason):
        hook.reason = message.get_string();
        break;
      default:
        message.skip();
    }
  }
  return hook;
}

}  // namespace

TraceIdentity decode_identity(data_view bytes) {
  using fields::Identity;
  TraceIdentity identity;
  identity.world_size = 0;
  TraceLayout& layout = identity.layout;
  layout.dp_size = layout.pp_size = layout.tp_size = layout.cp_size = layout.vpp_size = 0;
  for (pbf_message<Identity> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case bytes_of(Identity::kRunId):
        identity.run_id = message.get_string();
        break;
      case varint(Identity::kAttempt):
        identity.attempt = message.get_uint32();
        break;
      case varint(Identity::kFileIndex):
        identity.file_index = message.get_uint32();
        break;
      case varint(Identity::kRank):
        identity.rank = message.get_int32();
        break;
      case varint(Identity::kWorldSize):
        identity.world_size = message.get_int32();
        break;
      case varint(Identity::kLocalRank):
        identity.local_rank = message.get_int32();
        break;
      case bytes_of(Identity::kLayout):
        decode_layout(message.get_view(), layout);
        break;
      case bytes_of(Identity::kHost):
        identity.host = message.get_string();
        break;
      case bytes_of(Identity::kBootId):
        identity.boot_id = message.get_string();
        break;
      case varint(Identity::kTimeNamespace):
        identity.time_namespace = message.get_uint64();
        break;
      case varint(Identity::kProcessStartTicks):
        identity.process_start_ticks = message.get_uint64();
        break;
      case varint(Identity::kPid):
        identity.pid = message.get_int32();
        break;
      case bytes_of(Identity::kGpuUuid):
        identity.gpu_uuid = message.get_string();
        break;
      case bytes_of(Identity::kVersions):
        decode_map_entry(message.get_view(), identity.versions);
        break;
      case bytes_of(Identity::kEnvironment):
        decode_map_entry(message.get_view(), identity.environment);
        break;
      case bytes_of(Identity::kSampling):
        decode_sampling(message.get_view(), identity.sampling);
        break;
      case bytes_of(Identity::kHooks):
        identity.hooks.push_back(decode_hook(message.get_view()));
        break;
      case varint(Identity::kClockSource):
        identity.clock_source = message.get_uint32();
        break;
      case bytes_of(Identity::kMemory):
        identity.memory = message.get_string();
        break;
      default:
        message.skip();
    }
  }
  return identity;
}

}  // namespace smon_rt
