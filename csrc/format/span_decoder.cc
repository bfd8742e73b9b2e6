#include "format/span_decoder.h"

#include <protozero/pbf_message.hpp>

#include <algorithm>
#include <bit>
#include <random>
#include <string>

namespace smon_rt {
namespace {

using Fields = trace_fields::SpanBatch;
using protozero::data_view;
using protozero::pbf_wire_type;

template <typename Message>
bool read_fixed64(Message& message, Column& column) {
  if (message.wire_type() == pbf_wire_type::fixed64) {
    add_value(column, message.get_fixed64());
    return true;
  }
  if (message.wire_type() != pbf_wire_type::length_delimited) return false;
  for (const std::uint64_t value : message.get_packed_fixed64()) add_value(column, value);
  return true;
}

constexpr Fields kShapedFields[] = {Fields::kKind,        Fields::kStep,   Fields::kTimeSource, Fields::kFlags,
                                    Fields::kMicrobatch,  Fields::kChunk,  Fields::kOpIndex,    Fields::kTrackId,
                                    Fields::kNameId,      Fields::kCommId, Fields::kCommSeq,    Fields::kPeer,
                                    Fields::kPayloadBytes};

}  // namespace

SpanDecoder::SpanDecoder() : multiplier_(std::uint64_t{std::random_device{}()} << 32 | std::random_device{}() | 1) {}

std::uint32_t SpanDecoder::read_span_columns(data_view bytes, SpanBatch& batch) {
  for (Column& each : columns_) each.clear();
  std::uint32_t span_count = 0;
  for (protozero::pbf_message<Fields> message(bytes); message.next();) {
    const bool is_varint = message.wire_type() == pbf_wire_type::varint;
    const auto number = static_cast<std::size_t>(message.tag());
    if (message.tag() == Fields::kSpanCount && is_varint) {
      span_count = message.get_uint32();
    } else if (message.tag() == Fields::kRingId && is_varint) {
      batch.ring_id = message.get_uint32();
    } else if (message.tag() == Fields::kFirstIndex && is_varint) {
      batch.first_index = message.get_uint64();
    } else if (message.tag() == Fields::kMetricValue) {
      if (!read_fixed64(message, columns_[number])) message.skip();
    } else if (message.tag() < Fields::kStartNs || message.tag() > Fields::kShape ||
               !read_varints(message, columns_[number])) {
      message.skip();
    }
  }
  return span_count;
}

SpanBatch SpanDecoder::decode_spans(data_view bytes, std::uint32_t first_step) {
  SpanBatch batch;
  const std::uint32_t span_count = read_span_columns(bytes, batch);
  // So no packet becomes much larger than its bytes, whatever span_count says.
  require_length(column(Fields::kStartNs), span_count, "start_ns");
  require_length(column(Fields::kDurationNs), span_count, "duration_ns");
  fill_shapes(span_count);
  spans_.assign(span_count, Span{});
  fill_spans(first_step);
  batch.spans = spans_;
  return batch;
}

void SpanDecoder::fill_shapes(std::size_t span_count) {
  std::size_t count = 1;
  for (const Fields field : kShapedFields) count = std::max(count, column(field).size());
  for (const Fields field : kShapedFields) {
    if (!has_length(column(field), count)) throw DamagedPacket("columns of a span batch differ in length");
  }
  const Column& shape = column(Fields::kShape);
  if (!shape.empty()) {
    require_length(shape, span_count, "shape");
    if (*std::ranges::max_element(shape) >= count) throw DamagedPacket("shape refers to a shape that is not there");
  } else if (count > 1 && count != span_count) {
    throw DamagedPacket("columns of a span batch have " + std::to_string(count) + " values, not " +
                        std::to_string(span_count));
  }

  shapes_.resize(count);
  const auto fill = [&](Fields field, std::uint64_t default_value, auto set) {
    const Column& values = column(field);
    for (std::size_t i = 0; i < count; ++i) set(shapes_[i], value_at(values, i, default_value));
  };
  fill(Fields::kKind, 0, [](SpanShape& s, std::uint64_t v) { s.kind = Kind{narrow<std::uint8_t>(v, "kind")}; });
  fill(Fields::kStep, 0,
       [](SpanShape& s, std::uint64_t v) { s.step = static_cast<std::uint32_t>(narrow<std::int32_t>(v, "step")); });
  fill(Fields::kTimeSource, 0,
       [](SpanShape& s, std::uint64_t v) { s.time_source = TimeSource{narrow<std::uint8_t>(v, "time_source")}; });
  fill(Fields::kFlags, 0, [](SpanShape& s, std::uint64_t v) { s.flags = narrow<std::uint16_t>(v, "flags"); });
  fill(Fields::kMicrobatch, 0,
       [](SpanShape& s, std::uint64_t v) { s.microbatch = narrow<std::int32_t>(v, "microbatch"); });
  fill(Fields::kChunk, zigzag(kNoIndex),
       [](SpanShape& s, std::uint64_t v) { s.chunk = narrow<std::int16_t>(v, "chunk"); });
  fill(Fields::kOpIndex, 0, [](SpanShape& s, std::uint64_t v) { s.op_index = narrow<std::int32_t>(v, "op_index"); });
  fill(Fields::kTrackId, kNoId,
       [](SpanShape& s, std::uint64_t v) { s.track_id = narrow<std::uint16_t>(v, "track_id"); });
  fill(Fields::kNameId, kNoId, [](SpanShape& s, std::uint64_t v) { s.name_id = narrow<std::uint16_t>(v, "name_id"); });
  fill(Fields::kCommId, kNoId, [](SpanShape& s, std::uint64_t v) { s.comm_id = narrow<std::uint16_t>(v, "comm_id"); });
  fill(Fields::kCommSeq, 0, [](SpanShape& s, std::uint64_t v) { s.comm_seq = unzigzag(v); });
  fill(Fields::kPeer, zigzag(kNoPeer), [](SpanShape& s, std::uint64_t v) { s.peer = narrow<std::int32_t>(v, "peer"); });
  fill(Fields::kPayloadBytes, 0, [](SpanShape& s, std::uint64_t v) { s.payload_bytes = v; });
}

LastSequences SpanDecoder::fresh_sequences() {
  const std::size_t key_count = column(Fields::kCommId).empty() ? 1 : std::max<std::size_t>(spans_.size(), 1);
  slots_.assign(std::bit_ceil(2 * key_count), {});
  return {slots_, multiplier_};
}

void SpanDecoder::fill_spans(std::uint32_t first_step) {
  SpanHistory history(first_step, fresh_sequences(), column(Fields::kOpIndex).empty() ? 0 : -1);
  const Column& start_ns = column(Fields::kStartNs);
  const Column& duration_ns = column(Fields::kDurationNs);
  const Column& device_start_ns = column(Fields::kDeviceStartNs);
  const Column& device_duration_ns = column(Fields::kDeviceDurationNs);
  const Column& metric_value = column(Fields::kMetricValue);
  const Column& shape = column(Fields::kShape);
  const bool has_shapes = shapes_.size() > 1;
  require_length(device_duration_ns, device_start_ns.size(), "device_duration_ns");

  std::size_t device_count = 0;
  std::size_t metric_count = 0;
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    Span& span = spans_[i];
    if (!history.restore(shapes_[!shape.empty() ? shape[i] : has_shapes ? i : 0], span)) {
      throw DamagedPacket("microbatch, op_index or comm_seq adds up to a value that no span can have");
    }
    history.restore_times(start_ns[i], duration_ns[i], span);
    if (has_device_times(span.time_source) && !device_start_ns.empty()) {
      if (device_count == device_start_ns.size()) throw DamagedPacket("device_start_ns has too few values");
      history.restore_device_times(device_start_ns[device_count], device_duration_ns[device_count], span);
      ++device_count;
    }
    if (span.kind == Kind::kMetric) {
      if (metric_value.size() > 1 && metric_count == metric_value.size()) {
        throw DamagedPacket("metric_value has too few values");
      }
      span.set_metric_value(std::bit_cast<double>(value_at(metric_value, metric_count, 0)));
      ++metric_count;
    }
  }
  if (device_count != device_start_ns.size()) throw DamagedPacket("device_start_ns has too many values");
  if (!has_length(metric_value, metric_count)) throw DamagedPacket("metric_value has too many values");
}

std::span<const StepTime> SpanDecoder::decode_step_times(data_view bytes) {
  using trace_fields::StepTimes;
  for (Column& each : columns_) each.clear();
  for (protozero::pbf_message<StepTimes> message(bytes); message.next();) {
    const bool is_column = message.tag() >= StepTimes::kStep && message.tag() <= StepTimes::kWarmup;
    if (!is_column || !read_varints(message, columns_[static_cast<std::size_t>(message.tag())])) message.skip();
  }
  const auto values = [this](StepTimes field) -> const Column& { return columns_[static_cast<std::size_t>(field)]; };
  const std::size_t count = values(StepTimes::kStep).size();
  require_length(values(StepTimes::kStartNs), count, "start_ns");
  require_length(values(StepTimes::kDurationNs), count, "duration_ns");
  if (!has_length(values(StepTimes::kSampled), count) || !has_length(values(StepTimes::kWarmup), count)) {
    throw DamagedPacket("columns of step times differ in length");
  }

  step_times_.assign(count, StepTime{});
  StepTime before;
  for (std::size_t i = 0; i < count; ++i) {
    StepTime& time = step_times_[i];
    time.step = before.step + static_cast<std::uint32_t>(narrow<std::int32_t>(values(StepTimes::kStep)[i], "step"));
    time.start_ns = add_difference(before.start_ns, values(StepTimes::kStartNs)[i]);
    time.duration_ns = values(StepTimes::kDurationNs)[i];
    time.sampled = value_at(values(StepTimes::kSampled), i, 0) != 0;
    time.warmup = value_at(values(StepTimes::kWarmup), i, 0) != 0;
    before = time;
  }
  return step_times_;
}

}  // namespace smon_rt
