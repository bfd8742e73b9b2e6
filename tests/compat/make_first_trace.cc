// Wrote first.smon, the first trace file that must stay readable, and first.json, what it holds:
//
//   make_first_trace tests/compat
//
// Kept to show where the values come from. It is not run again: what it wrote is the test.

#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "format/span.h"
#include "format/trace_encoder.h"
#include "trace_json.h"

namespace {

using namespace smon_rt;

constexpr std::int64_t kMicrosecond = 1000;

TraceIdentity first_identity() {
  TraceIdentity identity;
  identity.run_id = "first";
  identity.attempt = 1;
  identity.rank = 3;
  identity.world_size = 8;
  identity.local_rank = 3;
  identity.layout = {0, 1, 1, 0, 0, 2, 2, 2, 1, 1, 3, "1f1b"};
  identity.host = "node-01";
  identity.boot_id = "00000000-1111-4222-8333-444444444444";
  identity.time_namespace = 4026531834;
  identity.pid = 1234;
  identity.gpu_uuid = "GPU-00000000-1111-2222-3333-444444444444";
  identity.versions = {{"python", "3.11.2"}, {"torch", "2.15.0"}};
  identity.environment = {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}};
  identity.sampling = {0.1, 3, 20, 4};
  identity.hooks = {{"schedules.forward_step", true, ""}, {"schedules.backward_step", false, "not found"}};
  identity.clock_source = 1;
  identity.memory = "tmpfs";
  return identity;
}

TraceNames first_names() {
  TraceNames names;
  names.names = {{1, "loss"}};
  names.tracks = {{1, 1234, "python", 0, 0x5500'0000'1000}, {2, 1240, "pt_autograd_0", -1, 0}};
  names.communicators = {{1, "pp", "pp", {1, 3}}, {2, "dp", "dp", {3, 7}}};
  return names;
}

/// Spans one after the other, each with its own odd gap and duration.
class Spans {
 public:
  Span& add(Kind kind, std::uint32_t step, std::uint16_t op_index) {
    Span span;
    span.kind = kind;
    span.step = step;
    span.op_index = op_index;
    span.track_id = 1;
    const auto number = static_cast<std::int64_t>(spans_.size());
    now_ += 3 * kMicrosecond + number * 17;
    span.start = now_;
    now_ += 900 * kMicrosecond + number * number * 331;
    span.end = now_;
    spans_.push_back(span);
    return spans_.back();
  }

  void add_compute(Kind kind, std::uint32_t step, std::int16_t microbatch) {
    Span& span = add(kind, step, static_cast<std::uint16_t>(microbatch));
    span.microbatch = microbatch;
    span.chunk = 0;
    span.time_source = TimeSource::kGpuEvent;
    span.device_start = span.start + 40 * kMicrosecond + microbatch;
    span.device_end = span.end + 700 * kMicrosecond;
  }

  void add_transfer(Kind kind, std::uint32_t step, std::int16_t microbatch, std::int32_t peer) {
    Span& span = add(kind, step, static_cast<std::uint16_t>(microbatch));
    span.microbatch = microbatch;
    span.chunk = 0;
    span.time_source = TimeSource::kWaitEvent;
    span.device_start = span.start;
    span.device_end = span.end + 5 * kMicrosecond;
    span.name_or_comm_id = 1;
    span.comm_seq = 3 * step + static_cast<std::uint32_t>(microbatch) + 1;
    span.peer = peer;
    span.set_payload_bytes(4'194'304);
  }

  const std::vector<Span>& all() const { return spans_; }

 private:
  std::vector<Span> spans_;
  std::int64_t now_ = 777'000'000'000;
};

std::vector<Span> first_spans() {
  Spans spans;
  for (std::uint32_t step = 0; step < 4; ++step) {
    for (std::int16_t microbatch = 0; microbatch < 3; ++microbatch) {
      spans.add_transfer(Kind::kForwardRecv, step, microbatch, 1);
      spans.add_compute(Kind::kForwardCompute, step, microbatch);
      spans.add_compute(Kind::kBackwardCompute, step, microbatch);
      spans.add_transfer(Kind::kBackwardSend, step, microbatch, 1);
    }
    Span& reduce = spans.add(Kind::kGradsReduceScatter, step, 0);
    reduce.name_or_comm_id = 2;
    reduce.comm_seq = step + 1;
    reduce.set_payload_bytes(std::uint64_t{1} << 34);
    spans.add(Kind::kOptimizer, step, 0).flags = span_flag::kAborted;
    Span& loss = spans.add(Kind::kMetric, step, 0);
    loss.name_or_comm_id = 1;
    loss.set_metric_value(2.5 - 0.125 * step);
    spans.add(Kind::kStep, step, 0).start = 777'000'000'000;
  }
  return spans.all();
}

std::string first_trace() {
  std::string out;
  append_identity(out, first_identity());
  append_clock_snapshot(out, {1'000'000, 777'000'000'000, 1'700'000'000'000'000'000, 35});
  append_names(out, first_names());
  append_spans(out, 1, 500, first_spans());
  Span alone;
  alone.kind = Kind::kGc;
  alone.step = 2;
  alone.start = 777'000'500'000;
  alone.end = 777'000'900'001;
  alone.track_id = 2;
  append_spans(out, 2, 0, std::span(&alone, 1));
  const StepTime times[] = {{0, 777'000'000'000, 15'000'000, true, true},
                            {1, 777'015'000'001, 15'000'001, true, true},
                            {2, 777'030'000'003, 15'000'002, true, true},
                            {3, 777'045'000'006, 15'000'003, true, false}};
  append_step_times(out, times);
  append_clock_map(out, {"GPU-00000000-1111-2222-3333-444444444444", 777'000'000'000, 837'000'000'000, -12.5, 1.0000005,
                         15'000, 2, "event"});
  append_losses(out, {{{1, 2}, {24, 9}}, 1, 0, 3, 0, 0, 1, "", 0});
  append_recorder_cost(out, {1000, 200, 30, 65, 2048, 15'000'001.5, 14'990'000.25, {}, {}});
  append_end(out, "stop");
  return out;
}

void write(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_first_trace FOLDER\n");
    return 2;
  }
  const std::string trace = first_trace();
  write(std::string(argv[1]) + "/first.smon", trace);
  write(std::string(argv[1]) + "/first.json", test::trace_json(trace));
  return 0;
}
