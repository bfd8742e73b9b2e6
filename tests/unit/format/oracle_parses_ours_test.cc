// What we write, the official protobuf library reads, and finds the same values.

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "collected_trace.h"
#include "format/crc32.h"
#include "format/kind.h"
#include "format/trace_encoder.h"
#include "oracle_spans.h"
#include "simulated_steps.h"
#include "smon_rt/v1/trace.pb.h"
#include "trace_samples.h"

namespace smon_rt {
namespace {

v1::Trace parse(const std::string& bytes) {
  v1::Trace trace;
  EXPECT_TRUE(trace.ParseFromString(bytes));
  return trace;
}

std::vector<Span> oracle_spans(const v1::Trace& trace) {
  std::vector<Span> all;
  for (const v1::TracePacket& packet : trace.packet()) {
    if (!packet.has_spans()) continue;
    const std::vector<Span> spans = test::OracleBatch(packet).spans();
    all.insert(all.end(), spans.begin(), spans.end());
  }
  return all;
}

TEST(OracleParsesOurs, SpansOfStepsHoldTheSameValues) {
  for (const bool has_gpu : {false, true}) {
    const std::vector<Span> spans = test::SimulatedSteps(has_gpu).make(50);
    std::string out;
    append_spans(out, 4, 1'000'000, spans);
    const v1::Trace trace = parse(out);
    std::uint64_t index = 1'000'000;
    for (const v1::TracePacket& packet : trace.packet()) {
      EXPECT_EQ(packet.spans().ring_id(), 4U);
      EXPECT_EQ(packet.spans().first_index(), index);
      index += packet.spans().span_count();
    }
    EXPECT_TRUE(test::equal(oracle_spans(trace), spans));
  }
}

TEST(OracleParsesOurs, SpansWithAnyValuesHoldTheSameValues) {
  for (std::uint64_t seed = 1000; seed < 1200; ++seed) {
    const std::vector<Span> spans = test::random_spans(1 + seed % 700, seed);
    std::string out;
    append_spans(out, 4, 0, spans);
    ASSERT_TRUE(test::equal(oracle_spans(parse(out)), spans)) << seed;
  }
}

TEST(OracleParsesOurs, PacketsCarryTheirStepsAndTheChecksumOfTheirBytes) {
  std::vector<Span> spans = test::SimulatedSteps(false).make(3, 70);
  std::string out;
  append_spans(out, 1, 0, spans);
  append_step_times(out, test::sample_step_times());
  const v1::Trace trace = parse(out);
  ASSERT_EQ(trace.packet_size(), 2);
  EXPECT_EQ(trace.packet(0).first_step(), 70U);
  EXPECT_EQ(trace.packet(0).last_step(), 72U);
  EXPECT_EQ(trace.packet(1).first_step(), 10U);
  EXPECT_EQ(trace.packet(1).last_step(), 12U);

  google::protobuf::io::CodedInputStream stream(reinterpret_cast<const std::uint8_t*>(out.data()),
                                                static_cast<int>(out.size()));
  for (const v1::TracePacket& packet : trace.packet()) {
    std::string payload;
    std::uint32_t length = 0;
    EXPECT_EQ(stream.ReadTag(), 0x0AU);
    ASSERT_TRUE(stream.ReadVarint32(&length) && stream.ReadString(&payload, static_cast<int>(length)));
    EXPECT_EQ(payload[0], 0x0D);
    EXPECT_EQ(packet.crc32(), crc32(std::as_bytes(std::span(payload).subspan(5))));
  }
}

TEST(OracleParsesOurs, IdentityHoldsTheSameValues) {
  std::string out;
  append_identity(out, test::sample_identity());
  const v1::Trace trace = parse(out);
  ASSERT_EQ(trace.packet_size(), 1);
  const v1::Identity& identity = trace.packet(0).identity();
  EXPECT_EQ(identity.run_id(), "run-7f3a");
  EXPECT_EQ(identity.attempt(), 2U);
  EXPECT_EQ(identity.file_index(), 1U);
  EXPECT_EQ(identity.rank(), 9);
  EXPECT_EQ(identity.world_size(), 32);
  EXPECT_EQ(identity.local_rank(), 1);
  EXPECT_EQ(identity.layout().ShortDebugString(),
            "dp_rank: 1 stage: 2 cp_rank: 1 expert_dp_rank: 1 dp_size: 2 pp_size: 4 tp_size: 2 cp_size: 2 vpp_size: 1 "
            "microbatch_count: 16 schedule: \"1f1b\"");
  EXPECT_EQ(identity.host(), "node-03");
  EXPECT_EQ(identity.boot_id(), "0b6f3c62-0000-4000-8000-1234567890ab");
  EXPECT_EQ(identity.time_namespace(), 4026531834U);
  EXPECT_EQ(identity.pid(), 4711);
  EXPECT_EQ(identity.gpu_uuid(), "GPU-1");
  EXPECT_EQ(identity.versions().size(), 3U);
  EXPECT_EQ(identity.versions().at("torch"), "2.15.0");
  EXPECT_EQ(identity.environment().at("CUDA_DEVICE_MAX_CONNECTIONS"), "1");
  EXPECT_EQ(identity.environment().at("EMPTY"), "");
  EXPECT_EQ(identity.sampling().sample_ratio(), 0.1);
  EXPECT_EQ(identity.sampling().warmup_steps(), 3U);
  EXPECT_EQ(identity.sampling().always_steps(), 20U);
  EXPECT_EQ(identity.sampling().window_steps(), 4U);
  ASSERT_EQ(identity.hooks_size(), 2);
  EXPECT_TRUE(identity.hooks(0).installed());
  EXPECT_EQ(identity.hooks(1).name(), "P2PCommunicator");
  EXPECT_EQ(identity.hooks(1).reason(), "signature differs");
  EXPECT_EQ(identity.clock_source(), v1::CLOCK_SOURCE_TSC);
  EXPECT_EQ(identity.memory(), "tmpfs");
  EXPECT_EQ(identity.process_start_ticks(), 123'456'789'012U);
}

void expect_sample_comm(const v1::Trace& trace) {
  EXPECT_EQ(trace.packet(7).first_step(), 10U);
  EXPECT_EQ(trace.packet(7).last_step(), 11U);
  EXPECT_EQ(trace.packet(7).comm_ops().ShortDebugString(),
            "first_number: 900 shape: 0 shape: 1 shape: 2 shape: 3 shape: 4 "
            "start_ns: 5000000000 start_ns: 100 start_ns: -10 start_ns: 0 start_ns: 0 "
            "enqueue_ns: 4000 enqueue_ns: 0 enqueue_ns: 4000 enqueue_ns: 4000 enqueue_ns: 4000 "
            "first_transfer_ns: 30000 first_transfer_ns: 30000 first_transfer_ns: 30000 "
            "transfer_ns: 700000 transfer_ns: 700000 transfer_ns: 0 "
            "kernel_start_device_ns: 1700000000000000000 kernel_start_device_ns: 5 "
            "kernel_duration_device_ns: 650000 kernel_duration_device_ns: 650000 "
            "slowest_channel: 7 slowest_channel: 7 "
            "number_gap: 0 number_gap: 2 number_gap: 0 number_gap: 0 number_gap: 0 "
            "step: 0 step: 0 step: 0 step: 0 step: 1 communicator: 1 "
            "function: 1 function: 6 function: 1 function: 1 function: 1 datatype: 10 algorithm: 2 protocol: 3 "
            "channel_count: 24 peer: 0 peer: 5 peer: 0 peer: 0 peer: 0 payload_bytes: 33554432 "
            "comm_id: 2 comm_id: 0 comm_id: 2 comm_id: 2 comm_id: 2 "
            "comm_seq: 17 comm_seq: 0 comm_seq: 1 comm_seq: 1 comm_seq: -18 "
            "library_seq: 41 library_seq: 0 library_seq: 1 library_seq: 1 library_seq: 0 "
            "flags: 2 flags: 1 flags: 2 flags: 2 flags: 2 "
            "transfer_count: 0 transfer_count: 0 transfer_count: 48 transfer_count: 48 transfer_count: 48 "
            "open_transfer_count: 0 open_transfer_count: 0 open_transfer_count: 0 open_transfer_count: 0 "
            "open_transfer_count: 48 "
            "kernel_count: 0 kernel_count: 0 kernel_count: 0 kernel_count: 24 kernel_count: 24 "
            "open_kernel_count: 0 open_kernel_count: 0 open_kernel_count: 0 open_kernel_count: 0 open_kernel_count: 3");
  EXPECT_EQ(trace.packet(8).comm_counts().ShortDebugString(),
            "communicators: 1 ops: 2 joined_ops: 3 foreign_handles: 4 stale_handles: 5 lost_ends: 6 rejected_times: 7 "
            "untracked: 8");
  EXPECT_EQ(trace.packet(9).comm_channels().ShortDebugString(),
            "communicator: 1 communicator: 1 nccl_comm: 18364758544493064720 comm_id: 2 "
            "is_send: 1 is_send: 0 peer: 1 peer: -1 begun: 10 moved: 9 done: 8 moved_bytes: 1048576 moved_bytes: 0 "
            "state: 3 state: 0 state_ns: 5000000001 state_ns: -1");
}

TEST(OracleParsesOurs, TheOtherPacketsHoldTheSameValues) {
  const v1::Trace trace = parse(test::sample_file({}));
  ASSERT_EQ(trace.packet_size(), 12);
  const v1::Names& names = trace.packet(1).names();
  EXPECT_EQ(names.name(1).text(), "schöner Name");
  EXPECT_EQ(names.track(1).ShortDebugString(), "id: 2 thread_id: 4712 thread_name: \"pt_autograd_0\" device: -1");
  EXPECT_EQ(names.communicator(0).ShortDebugString(),
            "id: 1 name: \"pp-group\" dimension: \"pp\" member_ranks: 1 member_ranks: 5 member_ranks: 9 "
            "member_ranks: 13");
  EXPECT_EQ(trace.packet(2).clock_snapshot().ShortDebugString(),
            "ticks: -5 monotonic_ns: 123456789 realtime_ns: 1700000000000000000 width_ns: 40");
  EXPECT_EQ(trace.packet(3).step_times().ShortDebugString(),
            "step: 10 step: 1 step: 1 start_ns: 5000000000 start_ns: 900100000 start_ns: 850100000 "
            "duration_ns: 900000000 duration_ns: 850000001 duration_ns: 850000002 "
            "sampled: true sampled: false sampled: true warmup: true warmup: false warmup: false");
  const v1::ClockMap& map = trace.packet(4).clock_map();
  EXPECT_EQ(map.window_start_ns(), -1);
  EXPECT_EQ(map.window_end_ns(), 60'000'000'000);
  EXPECT_EQ(map.offset_ns(), -1.5e12);
  EXPECT_EQ(map.drift_ratio(), 1.0000001);
  EXPECT_EQ(map.bound_ns(), 15'000U);
  EXPECT_EQ(map.violated_bounds(), 3U);
  EXPECT_EQ(map.device_clock(), "event");
  EXPECT_EQ(map.device(), 2);
  const v1::Losses& losses = trace.packet(5).losses();
  EXPECT_EQ(losses.dropped_by_kind().at(23), 1'000'000'000'000U);
  EXPECT_EQ(losses.foreign_tokens(), 1U);
  EXPECT_EQ(losses.stale_tokens(), 2U);
  EXPECT_EQ(losses.threads_without_ring(), 3U);
  EXPECT_EQ(losses.unwritten_spans(), 4U);
  EXPECT_EQ(losses.overwritten_spans(), 5U);
  EXPECT_EQ(losses.late_requests(), 6U);
  EXPECT_EQ(losses.sink_error(), "No space left on device");
  EXPECT_EQ(losses.uncounted_sequences(), 7U);
  EXPECT_EQ(losses.reclaimed_spans(), 8U);
  EXPECT_EQ(losses.saturated_steps(), 9U);
  EXPECT_EQ(losses.misused_calls(), 10U);
  EXPECT_EQ(losses.host_only_spans(), 11U);
  EXPECT_EQ(losses.overwritten_comm_ops(), 12U);
  EXPECT_EQ(trace.packet(6).recorder_cost().ShortDebugString(),
            "drain_cpu_ns: 1 reporter_cpu_ns: 2 watchdog_cpu_ns: 3 span_count: 4 file_bytes: 5 "
            "sampled_step_mean_ns: 6.5 unsampled_step_mean_ns: -7.25 overhead_ratio: 0 overhead_low_ratio: -0.5 "
            "event_queries: 8 longest_event_lag_ns: 9");
  expect_sample_comm(trace);
  EXPECT_EQ(trace.packet(10).leftover().ShortDebugString(),
            "merged_by_pid: -4711 realtime_ns: 1700000000000000001 step: 5000000000 phase: 3");
  EXPECT_EQ(trace.packet(11).end().reason(), "stop");
}

TEST(OracleParsesOurs, TextsThatAreNotUtf8CostNoMoreThanTheirWrongBytes) {
  TraceIdentity identity;
  identity.run_id = "job\xff";
  identity.world_size = 64;
  identity.environment["NCCL_ALGO"] = "\xfe\xfeTree";
  identity.versions["lib\xc3"] = "1";
  identity.hooks = {{"hook\x80", false, "\xed\xa0\x80"}};
  identity.layout.schedule = "1f1b\xf5";
  TraceNames names;
  names.names = {{1, "gro\xc3\x9f \xc0\xaf"}};
  names.tracks = {{1, 7, "worker \xe2\x82", -1, 0}};  // as a thread's name is cut at 15 bytes
  names.communicators = {{1, "g\xf0\x9f\x98\x80\xf4\x90\x80\x80", "\xff", {}}};
  std::string out;
  append_identity(out, identity);
  append_names(out, names);
  TraceLosses losses;
  losses.sink_error = "cannot make /traces/\xff";
  append_losses(out, losses);
  append_end(out, "stop\xff");
  const v1::Trace trace = parse(out);
  ASSERT_EQ(trace.packet_size(), 4);
  EXPECT_EQ(trace.packet(0).identity().run_id(), "job\uFFFD");
  EXPECT_EQ(trace.packet(0).identity().world_size(), 64);
  EXPECT_EQ(trace.packet(0).identity().environment().at("NCCL_ALGO"), "\uFFFD\uFFFDTree");
  EXPECT_EQ(trace.packet(0).identity().versions().count("lib\uFFFD"), 1U);
  EXPECT_EQ(trace.packet(0).identity().hooks(0).reason(), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(trace.packet(0).identity().layout().schedule(), "1f1b\uFFFD");
  EXPECT_EQ(trace.packet(1).names().name(0).text(), "gro\u00DF \uFFFD\uFFFD");
  EXPECT_EQ(trace.packet(1).names().track(0).thread_name(), "worker \uFFFD\uFFFD");
  EXPECT_EQ(trace.packet(1).names().communicator(0).name(), "g\U0001F600\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(trace.packet(2).losses().sink_error(), "cannot make /traces/\uFFFD");
  EXPECT_EQ(trace.packet(3).end().reason(), "stop\uFFFD");
}

TEST(OracleParsesOurs, ManyNamesAreManyPackets) {
  TraceNames names;
  for (std::uint16_t id = 1; id <= 3000; ++id) {
    names.names.push_back({id, std::string(1000, 'n')});
    names.tracks.push_back({id, id, std::string(15, 't'), -1, 0});
    names.communicators.push_back({id, std::string(500, 'c'), "dp", {0, 1}});
  }
  std::string out;
  append_names(out, names);
  const v1::Trace trace = parse(out);
  int name_count = 0, track_count = 0, communicator_count = 0;
  for (const v1::TracePacket& packet : trace.packet()) {
    EXPECT_LT(packet.ByteSizeLong(), std::size_t{1} << 21);
    name_count += packet.names().name_size();
    track_count += packet.names().track_size();
    communicator_count += packet.names().communicator_size();
  }
  EXPECT_GE(trace.packet_size(), 4);
  EXPECT_EQ(name_count, 3000);
  EXPECT_EQ(track_count, 3000);
  EXPECT_EQ(communicator_count, 3000);
}

TEST(OracleParsesOurs, NoFieldThatWeWriteIsUnknownToTheSchema) {
  const v1::Trace trace = parse(test::sample_file(test::SimulatedSteps(true).make(1)));
  std::vector<const google::protobuf::Message*> messages{&trace};
  while (!messages.empty()) {
    const google::protobuf::Message& message = *messages.back();
    messages.pop_back();
    const auto& reflection = *message.GetReflection();
    EXPECT_TRUE(reflection.GetUnknownFields(message).empty()) << message.GetTypeName();
    std::vector<const google::protobuf::FieldDescriptor*> fields;
    reflection.ListFields(message, &fields);
    for (const auto* field : fields) {
      if (field->message_type() == nullptr) continue;
      if (!field->is_repeated()) messages.push_back(&reflection.GetMessage(message, field));
      for (int i = 0; field->is_repeated() && i < reflection.FieldSize(message, field); ++i) {
        messages.push_back(&reflection.GetRepeatedMessage(message, field, i));
      }
    }
  }
}

}  // namespace
}  // namespace smon_rt
