#pragma once

#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/span.h"
#include "format/trace_encoder.h"
#include "format/trace_records.h"
#include "simulated_steps.h"

namespace smon_rt::test {

inline TraceIdentity sample_identity() {
  TraceIdentity identity;
  identity.run_id = "run-7f3a";
  identity.attempt = 2;
  identity.file_index = 1;
  identity.rank = 9;
  identity.world_size = 32;
  identity.local_rank = 1;
  identity.layout = {1, 2, 0, 1, 1, 2, 4, 2, 2, 1, 16, "1f1b"};
  identity.host = "node-03";
  identity.boot_id = "0b6f3c62-0000-4000-8000-1234567890ab";
  identity.time_namespace = 4026531834;
  identity.pid = 4711;
  identity.gpu_uuid = "GPU-1";
  identity.versions = {{"python", "3.11.2"}, {"torch", "2.15.0"}, {"smon_rt", "0.1.0"}};
  identity.environment = {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}, {"EMPTY", ""}};
  identity.sampling = {0.1, 3, 20, 4};
  identity.hooks = {{"schedules.forward_step", true, ""}, {"P2PCommunicator", false, "signature differs"}};
  identity.clock_source = 1;
  identity.memory = "tmpfs";
  identity.process_start_ticks = 123'456'789'012;
  return identity;
}

inline TraceNames sample_names() {
  TraceNames names;
  names.names = {{1, "loss"}, {2, "schöner Name"}};
  names.tracks = {{1, 4711, "python", 0, 0x7f00'1234'5678}, {2, 4712, "pt_autograd_0", -1, 0}};
  names.communicators = {{1, "pp-group", "pp", {1, 5, 9, 13}}, {2, "dp-group", "dp", {9, 25}}, {3, "", "", {}}};
  return names;
}

inline std::vector<StepTime> sample_step_times() {
  return {{10, 5'000'000'000, 900'000'000, true, true},
          {11, 5'900'100'000, 850'000'001, false, false},
          {12, 6'750'200'000, 850'000'002, true, false}};
}

/// An op of each sort: of a message, captured, with transfers, with kernels, hung; and the same one again and again.
inline std::vector<TraceCommOp> sample_comm_ops() {
  TraceCommOp reduce;
  reduce.number = 900;
  reduce.start_ns = 5'000'000'000;
  reduce.enqueue_ns = 4'000;
  reduce.payload_bytes = 1 << 25;
  reduce.library_seq = 41;
  reduce.comm_seq = 17;
  reduce.step = 10;
  reduce.communicator = 1;
  reduce.peer = 0;
  reduce.comm_id = 2;
  reduce.function = CommFunction::kAllReduce;
  reduce.datatype = CommDatatype::kBfloat16;
  reduce.algorithm = CommAlgorithm::kRing;
  reduce.protocol = CommProtocol::kSimple;
  reduce.channel_count = 24;
  reduce.flags = comm_op_flag::kEnqueued;
  TraceCommOp message = reduce;
  message.number = 903;
  message.start_ns += 100;
  message.enqueue_ns = 0;
  message.function = CommFunction::kSend;
  message.library_seq = 0;
  message.peer = 5;
  message.comm_id = kNoId;
  message.comm_seq = 0;
  message.flags = comm_op_flag::kCaptured;
  TraceCommOp moved = reduce;
  moved.number = 904;
  moved.start_ns += 90;  // began before what has a smaller number
  moved.library_seq = 42;
  moved.comm_seq = 18;
  moved.transfer_count = 48;
  moved.first_transfer_ns = moved.start_ns + 30'000;
  moved.transfer_ns = 700'000;
  TraceCommOp ran = moved;
  ran.number = 905;
  ran.library_seq = 43;
  ran.comm_seq = 19;
  ran.kernel_count = 24;
  ran.kernel_start_device_ns = 1'700'000'000'000'000'000;
  ran.kernel_duration_device_ns = 650'000;
  ran.slowest_channel = 7;
  TraceCommOp hung = ran;
  hung.number = 906;
  hung.step = 11;
  hung.comm_seq = 1;
  hung.transfer_ns = 0;
  hung.open_transfer_count = 48;
  hung.kernel_start_device_ns += 5;
  hung.open_kernel_count = 3;
  return {reduce, message, moved, ran, hung};
}

inline std::vector<TraceCommChannel> sample_comm_channels() {
  return {{1, 0xfedc'ba98'7654'3210, 2, 0, true, 1, 10, 9, 8, 1 << 20, 3, 5'000'000'001},
          {1, 0xfedc'ba98'7654'3210, 2, 0, false, -1, 10, 9, 8, 0, 0, -1}};
}

/// A file as a recorder writes it: every sort of packet.
inline std::string sample_file(std::span<const Span> spans) {
  std::string out;
  append_identity(out, sample_identity());
  append_names(out, sample_names());
  append_clock_snapshot(out, {-5, 123'456'789, 1'700'000'000'000'000'000, 40});
  append_spans(out, 3, 70'000, spans);
  append_step_times(out, sample_step_times());
  append_clock_map(out, {"GPU-1", -1, 60'000'000'000, -1.5e12, 1.0000001, 15'000, 3, "event", 2});
  append_losses(out,
                {{{1, 5}, {23, 1'000'000'000'000}}, 1, 2, 3, 4, 5, 6, "No space left on device", 7, 8, 9, 10, 11, 12});
  append_recorder_cost(out, {1, 2, 3, 4, 5, 6.5, -7.25, 0.0, -0.5, 8, 9});
  append_comm_ops(out, sample_comm_ops());
  append_comm_counts(out, {1, 2, 3, 4, 5, 6, 7, 8});
  append_comm_channels(out, sample_comm_channels());
  append_leftover(out, {-4711, 1'700'000'000'000'000'001, 5'000'000'000, 3});
  append_end(out, "stop");
  return out;
}

/// A span whose fields take any value, edges more often than others.
inline Span random_span(std::mt19937_64& random) {
  const auto any = [&random]() -> std::uint64_t {
    const std::uint64_t value = random();
    switch (random() % 4) {
      case 0:
        return 0;
      case 1:
        return ~std::uint64_t{0} >> (value % 64);
      case 2:
        return value % 100;
      default:
        return value;
    }
  };
  Span span;
  span.start = static_cast<std::int64_t>(any());
  span.end = static_cast<std::int64_t>(any());
  span.step = static_cast<std::uint32_t>(any());
  span.kind = static_cast<Kind>(any() % kKindCount);
  span.time_source = static_cast<TimeSource>(any() % 5);
  if (span.time_source != TimeSource::kHost && span.time_source != TimeSource::kWaitReturn) {
    span.device_start = static_cast<std::int64_t>(any());
    span.device_end = static_cast<std::int64_t>(any());
  }
  span.flags = static_cast<std::uint16_t>(any());
  span.microbatch = static_cast<std::int16_t>(any());
  span.chunk = static_cast<std::int16_t>(any());
  span.op_index = static_cast<std::uint16_t>(any());
  span.track_id = static_cast<std::uint16_t>(any());
  span.name_or_comm_id = static_cast<std::uint16_t>(any() % 5 == 0 ? any() : any() % 3);
  span.payload_high = static_cast<std::uint16_t>(any());
  span.payload_low = static_cast<std::uint32_t>(any());
  span.comm_seq = static_cast<std::uint32_t>(any());
  span.peer = static_cast<std::int32_t>(any());
  return span;
}

inline std::vector<Span> random_spans(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Span> spans;
  for (std::size_t i = 0; i < count; ++i) spans.push_back(random_span(random));
  return spans;
}

/// An op whose fields take any value, with edges.
inline std::vector<TraceCommOp> random_comm_ops(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TraceCommOp> ops(count);
  for (TraceCommOp& op : ops) {
    // Of the fields of a span, which favours edges, and anything else.
    const Span span = random_span(random);
    op.number = random() % 3 == 0 ? random() : static_cast<std::uint64_t>(span.start);
    op.start_ns = span.start;
    op.enqueue_ns = static_cast<std::uint64_t>(span.end);
    op.payload_bytes = span.payload_bytes();
    op.library_seq = random() % 2 == 0 ? random() : 0;
    op.comm_seq = span.comm_seq;
    op.step = span.step;
    op.communicator = static_cast<std::uint32_t>(random() % 3);
    op.peer = span.peer;
    op.comm_id = span.name_or_comm_id;
    op.function = CommFunction{static_cast<std::uint8_t>(random())};
    op.datatype = CommDatatype{static_cast<std::uint8_t>(random())};
    op.algorithm = CommAlgorithm{static_cast<std::uint8_t>(random() % 2)};
    op.protocol = CommProtocol{static_cast<std::uint8_t>(random())};
    op.channel_count = static_cast<std::uint8_t>(random());
    op.flags = static_cast<std::uint8_t>(span.flags);
    op.transfer_count = static_cast<std::uint32_t>(random() % 2 == 0 ? span.peer : 0);
    op.kernel_count = static_cast<std::uint32_t>(random() % 2 == 0 ? random() : 0);
    op.open_transfer_count = static_cast<std::uint32_t>(random());
    op.open_kernel_count = static_cast<std::uint32_t>(random());
    if (op.transfer_count > 0) {
      op.first_transfer_ns = span.end;
      op.transfer_ns = random();
    }
    if (op.kernel_count > 0) {
      op.kernel_start_device_ns = random();
      op.kernel_duration_device_ns = random();
      op.slowest_channel = static_cast<std::uint8_t>(random());
    }
  }
  return ops;
}

}  // namespace smon_rt::test
