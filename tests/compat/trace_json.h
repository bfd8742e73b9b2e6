#pragma once

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/kind.h"
#include "format/trace_reader.h"

namespace smon_rt::test {

/// Writes what a trace holds as a JSON list, one line for each packet, and for each span: for people to compare.
class TraceJson final : public TraceVisitor {
 public:
  std::string finish() { return "[\n" + lines_ + "\n]\n"; }

  void on_identity(const TraceIdentity& identity) override {
    const TraceLayout& layout = identity.layout;
    open("identity");
    text("run_id", identity.run_id);
    number("attempt", identity.attempt);
    number("file_index", identity.file_index);
    number("rank", identity.rank);
    number("world_size", identity.world_size);
    number("local_rank", identity.local_rank);
    numbers("layout",
            {layout.dp_rank, layout.stage, layout.tp_rank, layout.cp_rank, layout.expert_dp_rank, layout.dp_size,
             layout.pp_size, layout.tp_size, layout.cp_size, layout.vpp_size, layout.microbatch_count});
    text("schedule", layout.schedule);
    text("host", identity.host);
    text("boot_id", identity.boot_id);
    number("time_namespace", static_cast<std::int64_t>(identity.time_namespace));
    number("pid", identity.pid);
    text("gpu_uuid", identity.gpu_uuid);
    for (const auto& [key, value] : identity.versions) text("version " + key, value);
    for (const auto& [key, value] : identity.environment) text("environment " + key, value);
    real("sample_ratio", identity.sampling.sample_ratio);
    numbers("sampling",
            {identity.sampling.warmup_steps, identity.sampling.always_steps, identity.sampling.window_steps});
    for (const TraceHook& hook : identity.hooks) text("hook " + hook.name, hook.installed ? "installed" : hook.reason);
    number("clock_source", identity.clock_source);
    text("memory", identity.memory);
    close();
  }

  void on_spans(const SpanBatch& batch) override {
    open("spans");
    number("ring_id", batch.ring_id);
    number("first_index", static_cast<std::int64_t>(batch.first_index));
    number("span_count", static_cast<std::int64_t>(batch.spans.size()));
    close();
    for (const Span& span : batch.spans) on_span(span);
  }

  void on_step_times(std::span<const StepTime> step_times) override {
    for (const StepTime& time : step_times) {
      open("step_time");
      number("step", time.step);
      number("start_ns", time.start_ns);
      number("duration_ns", static_cast<std::int64_t>(time.duration_ns));
      number("sampled", time.sampled ? 1 : 0);
      number("warmup", time.warmup ? 1 : 0);
      close();
    }
  }

  void on_names(const TraceNames& names) override {
    for (const TraceName& name : names.names) {
      open("name");
      number("id", name.id);
      text("text", name.text);
      close();
    }
    for (const TraceTrack& track : names.tracks) {
      open("track");
      number("id", track.id);
      number("thread_id", track.thread_id);
      number("device", track.device);
      text("thread_name", track.thread_name);
      number("stream", static_cast<std::int64_t>(track.stream));
      close();
    }
    for (const TraceCommunicator& communicator : names.communicators) {
      open("communicator");
      number("id", communicator.id);
      text("name", communicator.name);
      text("dimension", communicator.dimension);
      numbers("member_ranks", communicator.member_ranks);
      close();
    }
  }

  void on_losses(const TraceLosses& losses) override {
    open("losses");
    for (const auto& [kind, dropped] : losses.dropped_by_kind) {
      number("dropped " + std::to_string(kind), static_cast<std::int64_t>(dropped));
    }
    numbers("counts", {losses.foreign_tokens, losses.stale_tokens, losses.threads_without_ring, losses.unwritten_spans,
                       losses.overwritten_spans, losses.late_requests});
    text("sink_error", losses.sink_error);
    close();
  }

  void on_clock_snapshot(const TraceClockSnapshot& snapshot) override {
    open("clock_snapshot");
    number("ticks", snapshot.ticks);
    number("monotonic_ns", snapshot.monotonic_ns);
    number("realtime_ns", snapshot.realtime_ns);
    number("width_ns", static_cast<std::int64_t>(snapshot.width_ns));
    close();
  }

  void on_clock_map(const TraceClockMap& map) override {
    open("clock_map");
    text("gpu_uuid", map.gpu_uuid);
    number("window_start_ns", map.window_start_ns);
    number("window_end_ns", map.window_end_ns);
    real("offset_ns", map.offset_ns);
    real("drift_ratio", map.drift_ratio);
    number("bound_ns", static_cast<std::int64_t>(map.bound_ns));
    number("violated_bounds", map.violated_bounds);
    text("device_clock", map.device_clock);
    close();
  }

  void on_recorder_cost(const TraceRecorderCost& cost) override {
    open("recorder_cost");
    numbers("counts",
            {cost.drain_cpu_ns, cost.reporter_cpu_ns, cost.watchdog_cpu_ns, cost.span_count, cost.file_bytes});
    real("sampled_step_mean_ns", cost.sampled_step_mean_ns);
    real("unsampled_step_mean_ns", cost.unsampled_step_mean_ns);
    close();
  }

  void on_end(std::string_view reason) override {
    open("end");
    text("reason", reason);
    close();
  }

  void on_leftover(const TraceLeftover& leftover) override {
    open("leftover");
    number("merged_by_pid", leftover.merged_by_pid);
    number("realtime_ns", leftover.realtime_ns);
    number("step", leftover.step);
    number("phase", leftover.phase);
    close();
  }

  void on_damage(std::uint64_t offset, std::string_view what) override {
    open("damage");
    number("offset", static_cast<std::int64_t>(offset));
    text("what", what);
    close();
  }

 private:
  void on_span(const Span& span) {
    open("span");
    text("kind", kind_name(span.kind));
    numbers("start, end, device_start, device_end", {span.start, span.end, span.device_start, span.device_end});
    number("step", span.step);
    numbers("time_source, flags", {static_cast<std::int64_t>(span.time_source), std::int64_t{span.flags}});
    numbers("microbatch, chunk, op_index", {span.microbatch, span.chunk, std::int32_t{span.op_index}});
    numbers("track_id, name_or_comm_id", {span.track_id, span.name_or_comm_id});
    number("payload_bytes", static_cast<std::int64_t>(span.payload_bytes()));
    if (span.kind == Kind::kMetric) {
      real("metric_value", span.metric_value());
    } else {
      numbers("comm_seq, peer", {std::int64_t{span.comm_seq}, std::int64_t{span.peer}});
    }
    close();
  }

  void open(const char* what) {
    if (!lines_.empty()) lines_ += ",\n";
    lines_ += "  {";
    is_first_ = true;
    text("packet", what);
  }
  void close() { lines_ += "}"; }

  void key(std::string_view name) {
    lines_ += is_first_ ? "\"" : ", \"";
    is_first_ = false;
    lines_.append(name).append("\": ");
  }

  void text(std::string_view name, std::string_view value) {
    key(name);
    lines_ += '"';
    for (const char c : value) {
      if (c == '"' || c == '\\') lines_ += '\\';
      lines_ += c;
    }
    lines_ += '"';
  }
  void number(std::string_view name, std::int64_t value) {
    key(name);
    lines_ += std::to_string(value);
  }
  void real(std::string_view name, double value) {
    char digits[64];
    std::snprintf(digits, sizeof(digits), "%.17g", value);
    key(name);
    lines_ += digits;
  }

  template <typename Numbers>
  void numbers_of(std::string_view name, const Numbers& values) {
    key(name);
    lines_ += '[';
    const char* separator = "";
    for (const auto value : values) {
      lines_.append(separator).append(std::to_string(value));
      separator = ", ";
    }
    lines_ += ']';
  }
  template <typename T>
  void numbers(std::string_view name, std::initializer_list<T> values) {
    numbers_of(name, values);
  }
  void numbers(std::string_view name, const std::vector<std::int32_t>& values) { numbers_of(name, values); }

  std::string lines_;
  bool is_first_ = true;
};

inline std::string trace_json(std::string_view bytes) {
  TraceJson json;
  read_trace(std::as_bytes(std::span(bytes)), {}, json);
  return json.finish();
}

}  // namespace smon_rt::test
