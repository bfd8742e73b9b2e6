// Packets whose checksum is right and whose content is made to hurt: refused, at a cost that their bytes bound.

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <string_view>

#include "collected_trace.h"
#include "format/trace_encoder.h"
#include "format/trace_reader.h"
#include "oracle_frames.h"
#include "smon_rt/v1/trace.pb.h"
#include "trace_samples.h"

namespace smon_rt {
namespace {

using test::collect;
using test::CollectedTrace;

v1::TracePacket three_spans() {
  v1::TracePacket packet;
  packet.set_first_step(1);
  packet.set_last_step(1);
  packet.mutable_spans()->set_span_count(3);
  for (int i = 0; i < 3; ++i) {
    packet.mutable_spans()->add_start_ns(10);
    packet.mutable_spans()->add_duration_ns(5);
  }
  return packet;
}

/// The packet is refused with a line that has these words, and the packet after it is read.
void expect_refused(const std::string& content, std::string_view words) {
  std::string bytes;
  append_names(bytes, test::sample_names());
  const std::size_t offset = bytes.size();
  bytes += test::framed(content);
  append_end(bytes, "stop");
  const CollectedTrace trace = collect(bytes);
  EXPECT_TRUE(trace.batches.empty());
  EXPECT_EQ(trace.ends.size(), 1U);
  ASSERT_EQ(trace.damages.size(), 1U) << words;
  EXPECT_EQ(trace.damages[0].offset, offset);
  EXPECT_NE(trace.damages[0].what.find(words), std::string::npos) << trace.damages[0].what;
}

void expect_refused(std::string_view words, const std::function<void(v1::SpanBatch&)>& change) {
  v1::TracePacket packet = three_spans();
  change(*packet.mutable_spans());
  expect_refused(packet.SerializeAsString(), words);
}

TEST(HostileTrace, TheBatchThatTheseTestsChangeIsRead) {
  const CollectedTrace trace = collect(test::framed(three_spans()));
  EXPECT_TRUE(trace.damages.empty());
  ASSERT_EQ(trace.batches.size(), 1U);
  EXPECT_EQ(trace.batches[0].spans.size(), 3U);
}

TEST(HostileTrace, MoreSpansThanThereAreTimesAreRefused) {
  expect_refused("start_ns", [](v1::SpanBatch& batch) { batch.set_span_count(4); });
  expect_refused("start_ns", [](v1::SpanBatch& batch) { batch.set_span_count(0); });
  expect_refused("start_ns", [](v1::SpanBatch& batch) { batch.set_span_count(0xFFFFFFFF); });
  expect_refused("duration_ns", [](v1::SpanBatch& batch) { batch.add_duration_ns(1); });
  expect_refused("start_ns", [](v1::SpanBatch& batch) {
    // Constant everywhere: a few bytes that claim four thousand million spans.
    batch.set_span_count(0xFFFFFFFF);
    batch.mutable_start_ns()->Truncate(1);
    batch.mutable_duration_ns()->Truncate(1);
  });
}

TEST(HostileTrace, MoreSpansThanAPacketMayHaveAreRefused) {
  v1::TracePacket packet;
  packet.mutable_spans()->set_span_count(kMaxRowsPerPacket + 1);
  packet.mutable_spans()->mutable_start_ns()->Resize(kMaxRowsPerPacket + 1, 0);
  packet.mutable_spans()->mutable_duration_ns()->Resize(kMaxRowsPerPacket + 1, 0);
  expect_refused(packet.SerializeAsString(), "more values");
  v1::TracePacket steps;
  steps.mutable_step_times()->mutable_step()->Resize(kMaxRowsPerPacket + 1, 0);
  expect_refused(steps.SerializeAsString(), "more values");
}

TEST(HostileTrace, ColumnsOfOtherLengthsAreRefused) {
  const auto two = [](auto add) {
    return [add](v1::SpanBatch& batch) {
      for (int i = 0; i < 2; ++i) add(batch);
    };
  };
  expect_refused("columns", two([](v1::SpanBatch& batch) { batch.add_kind(1); }));
  expect_refused("columns", two([](v1::SpanBatch& batch) { batch.add_step(1); }));
  expect_refused("columns", two([](v1::SpanBatch& batch) { batch.add_comm_seq(1); }));
  expect_refused("columns", [](v1::SpanBatch& batch) {
    for (int i = 0; i < 3; ++i) batch.add_kind(1);
    for (int i = 0; i < 2; ++i) batch.add_peer(1);
  });
  expect_refused("shape", two([](v1::SpanBatch& batch) { batch.add_shape(0); }));
  expect_refused("device_start_ns", [](v1::SpanBatch& batch) {
    batch.add_time_source(1);
    batch.add_device_start_ns(1);
    batch.add_device_duration_ns(1);
  });
  expect_refused("device_start_ns", [](v1::SpanBatch& batch) {
    batch.add_device_start_ns(1);
    batch.add_device_duration_ns(1);
  });
  expect_refused("device_duration_ns", [](v1::SpanBatch& batch) {
    batch.add_time_source(1);
    for (int i = 0; i < 3; ++i) batch.add_device_start_ns(1);
  });
  expect_refused("metric_value", [](v1::SpanBatch& batch) {
    batch.add_kind(static_cast<std::uint32_t>(Kind::kMetric));
    for (int i = 0; i < 2; ++i) batch.add_metric_value(1);
  });
  expect_refused("metric_value", [](v1::SpanBatch& batch) {
    for (int i = 0; i < 2; ++i) batch.add_metric_value(1);
  });
}

TEST(HostileTrace, ShapesThatAreNotThereAreRefused) {
  for (const std::uint32_t beyond : {2U, 3U, 0xFFFFFFFFU}) {
    expect_refused("shape", [beyond](v1::SpanBatch& batch) {
      for (int i = 0; i < 2; ++i) batch.add_kind(1);
      for (const std::uint32_t shape : {0U, 1U, beyond}) batch.add_shape(shape);
    });
  }
}

TEST(HostileTrace, ValuesThatNoSpanCanHaveAreRefused) {
  expect_refused("kind", [](v1::SpanBatch& batch) { batch.add_kind(256); });
  expect_refused("time_source", [](v1::SpanBatch& batch) { batch.add_time_source(256); });
  expect_refused("flags", [](v1::SpanBatch& batch) { batch.add_flags(65'536); });
  expect_refused("chunk", [](v1::SpanBatch& batch) { batch.add_chunk(32'768); });
  expect_refused("track_id", [](v1::SpanBatch& batch) { batch.add_track_id(65'536); });
  expect_refused("name_id", [](v1::SpanBatch& batch) { batch.add_name_id(65'536); });
  expect_refused("comm_id", [](v1::SpanBatch& batch) { batch.add_comm_id(65'536); });
  expect_refused("adds up", [](v1::SpanBatch& batch) { batch.add_microbatch(32'769); });
  expect_refused("adds up", [](v1::SpanBatch& batch) { batch.add_op_index(0); });
  expect_refused("adds up", [](v1::SpanBatch& batch) { batch.add_comm_seq(-1); });
  expect_refused("adds up", [](v1::SpanBatch& batch) {
    batch.add_comm_id(1);
    batch.add_comm_seq(0xFFFFFFFF / 2);
  });
}

v1::TracePacket three_ops() {
  v1::TracePacket packet;
  for (int i = 0; i < 3; ++i) {
    packet.mutable_comm_ops()->add_shape(0);
    packet.mutable_comm_ops()->add_start_ns(10);
    packet.mutable_comm_ops()->add_enqueue_ns(5);
  }
  return packet;
}

void expect_ops_refused(std::string_view words, const std::function<void(v1::CommOps&)>& change) {
  v1::TracePacket packet = three_ops();
  change(*packet.mutable_comm_ops());
  expect_refused(packet.SerializeAsString(), words);
}

TEST(HostileTrace, OpsOfNcclThatContradictThemselvesAreRefused) {
  EXPECT_EQ(collect(test::framed(three_ops())).comm_ops.size(), 3U);
  expect_ops_refused("start_ns", [](v1::CommOps& ops) { ops.add_shape(0); });
  expect_ops_refused("enqueue_ns", [](v1::CommOps& ops) { ops.add_enqueue_ns(0); });
  expect_ops_refused("shape", [](v1::CommOps& ops) { ops.set_shape(1, 1); });
  expect_ops_refused("differ in length", [](v1::CommOps& ops) {
    for (int i = 0; i < 3; ++i) ops.add_function(1);
    for (int i = 0; i < 2; ++i) ops.add_peer(1);
  });
  expect_ops_refused("function", [](v1::CommOps& ops) { ops.add_function(256); });
  expect_ops_refused("comm_id", [](v1::CommOps& ops) { ops.add_comm_id(65'536); });
  expect_ops_refused("comm_seq", [](v1::CommOps& ops) { ops.add_comm_seq(-1); });
  expect_ops_refused("comm_seq", [](v1::CommOps& ops) { ops.add_comm_seq(0xFFFFFFFF / 2); });
  expect_ops_refused("first_transfer_ns has too few", [](v1::CommOps& ops) { ops.add_transfer_count(1); });
  expect_ops_refused("transfer_ns has too many", [](v1::CommOps& ops) { ops.add_transfer_ns(1); });
  expect_ops_refused("slowest_channel has too many", [](v1::CommOps& ops) { ops.add_slowest_channel(1); });
  expect_ops_refused("more operations", [](v1::CommOps& ops) { ops.mutable_shape()->Resize((1 << 16) + 1, 0); });
}

TEST(HostileTrace, ChannelsOfNcclThatContradictThemselvesAreRefused) {
  v1::TracePacket packet;
  for (int i = 0; i < 3; ++i) packet.mutable_comm_channels()->add_communicator(1);
  EXPECT_EQ(collect(test::framed(packet)).comm_channels.size(), 3U);
  packet.mutable_comm_channels()->add_comm_id(65'536);
  expect_refused(packet.SerializeAsString(), "comm_id");
  packet.mutable_comm_channels()->set_comm_id(0, 1);
  packet.mutable_comm_channels()->add_comm_id(1);
  expect_refused(packet.SerializeAsString(), "differ in length");
}

TEST(HostileTrace, TimesOfAnySizeAreReadWithoutOverflow) {
  v1::TracePacket packet = three_spans();
  packet.mutable_spans()->set_start_ns(0, std::numeric_limits<std::int64_t>::max());
  packet.mutable_spans()->set_start_ns(1, std::numeric_limits<std::int64_t>::max());
  packet.mutable_spans()->set_duration_ns(0, std::numeric_limits<std::uint64_t>::max());
  packet.mutable_spans()->add_step(std::numeric_limits<std::int32_t>::min());
  packet.mutable_spans()->add_payload_bytes(std::numeric_limits<std::uint64_t>::max());
  const CollectedTrace trace = collect(test::framed(packet));
  ASSERT_EQ(trace.batches.size(), 1U);
  EXPECT_EQ(trace.batches[0].spans[0].payload_bytes(), (std::uint64_t{1} << 48) - 1);
  EXPECT_NE(trace.batches[0].spans[0].flags & span_flag::kSaturated, 0);
}

TEST(HostileTrace, ContentThatIsNoMessageIsRefused) {
  expect_refused(std::string("\x4a\x05\x08", 3), "content is not");          // spans longer than the packet
  expect_refused(std::string("\x4a\x02\x22\x7f", 4), "content is not");      // a column longer than the spans
  expect_refused(std::string("\x4a\x03\x22\x01\xff", 5), "content is not");  // a number that does not end
  expect_refused(std::string("\x42\x02\x0a\x7f", 4), "content is not");      // identity with a string beyond its end
  expect_refused(std::string("\x00", 1), "content is not");                  // field 0
  expect_refused(std::string("\x4f", 1), "content is not");                  // no such wire type
  expect_refused("\x4a\x0d\x22\x0b" + std::string(11, '\xff'), "content is not");  // a number of 11 bytes
}

TEST(HostileTrace, ManySmallPacketsOfClaimsCostNoMoreThanTheirBytes) {
  v1::TracePacket packet = three_spans();
  packet.mutable_spans()->set_span_count(0xFFFFFFF0);
  const std::string one = test::framed(packet);
  std::string bytes;
  while (bytes.size() < 200'000) bytes += one;
  const CollectedTrace trace = collect(bytes);
  EXPECT_EQ(trace.summary.damage_count, bytes.size() / one.size());
  EXPECT_TRUE(trace.batches.empty());
}

TEST(HostileTrace, APacketWithoutAChecksumIsRefused) {
  v1::TracePacket packet;
  packet.mutable_end()->set_reason("x");
  v1::Trace trace;
  *trace.add_packet() = packet;
  const CollectedTrace read = collect(trace.SerializeAsString());
  EXPECT_TRUE(read.ends.empty());
  ASSERT_EQ(read.damages.size(), 1U);
  EXPECT_NE(read.damages[0].what.find("no checksum"), std::string::npos);
}

}  // namespace
}  // namespace smon_rt
