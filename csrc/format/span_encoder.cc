#include <protozero/pbf_builder.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <ranges>

#include "format/packed_column.h"
#include "format/packet_writer.h"
#include "format/shape_table.h"
#include "format/span_coding.h"
#include "format/trace_encoder.h"
#include "format/trace_fields.h"

namespace smon_rt {
namespace {

using Fields = trace_fields::SpanBatch;

// Shapes in a packet at most; a packet ends before the span that has one more. That bounds what is on the stack, and
// few spans that repeat themselves so little come in a row.
constexpr std::size_t kMaxShapes = 512;
constexpr std::uint64_t kMultiplier = 0x9E3779B97F4A7C15U;

using ShapeTable = smon_rt::ShapeTable<SpanShape, kMaxShapes>;

/// What a batch's columns are written from, besides the spans.
struct Columns {
  std::size_t span_count = 0;
  std::size_t device_count = 0;
  std::array<std::uint64_t, kSpansPerPacket> device_start_ns;
  std::array<std::uint64_t, kSpansPerPacket> device_duration_ns;
  std::size_t metric_count = 0;
  std::array<std::uint64_t, kSpansPerPacket> metric_bits;
  std::array<std::uint16_t, kSpansPerPacket> shape;
  ShapeTable shapes;
};

std::uint64_t duration(std::int64_t start, std::int64_t end) {
  return static_cast<std::uint64_t>(end) - static_cast<std::uint64_t>(start);
}

/// Takes as many of the spans as the table of shapes has room for.
void fill_columns(std::span<const Span> spans, std::uint32_t first_step, Columns& columns) {
  std::array<LastSequences::Slot, 2 * kMaxShapes> slots{};  // as many keys as shapes, at most: half full
  SpanHistory history(first_step, LastSequences(slots, kMultiplier));
  columns.span_count = columns.device_count = columns.metric_count = 0;
  columns.shapes.clear();
  bool any_device_time = false;
  for (const Span& span : spans) {
    const std::uint16_t shape = columns.shapes.number_of(history.shape_of(span));
    if (shape == ShapeTable::kFull) break;
    columns.shape[columns.span_count++] = shape;
    if (has_device_times(span.time_source)) {
      const std::size_t device = columns.device_count++;
      columns.device_start_ns[device] = history.device_start_gap(span);
      columns.device_duration_ns[device] = duration(span.device_start, span.device_end);
      any_device_time = any_device_time || span.device_start != 0 || span.device_end != 0;
    }
    if (span.kind == Kind::kMetric) {
      columns.metric_bits[columns.metric_count++] = std::bit_cast<std::uint64_t>(span.metric_value());
    }
  }
  if (!any_device_time) columns.device_count = 0;
}

void append_metric_values(std::string& out, const Columns& columns) {
  const std::span bits(columns.metric_bits.data(), columns.metric_count);
  if (bits.empty()) return;
  const bool is_constant = std::ranges::all_of(bits, [&](std::uint64_t value) { return value == bits[0]; });
  if (is_constant && bits[0] == 0) return;
  const std::size_t count = is_constant ? 1 : bits.size();
  const auto value_bytes = static_cast<protozero::pbf_length_type>(count * sizeof(double));
  append_length_delimited_header(out, Fields::kMetricValue, value_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    for (int shift = 0; shift < 64; shift += 8) out.push_back(static_cast<char>(bits[i] >> shift));
  }
}

/// shape_at(i) gives entry i of the shaped columns, which have `count` entries.
template <typename ShapeAt>
void append_shaped_columns(std::string& out, std::size_t count, ShapeAt shape_at) {
  const auto column = [&](Fields field, std::uint64_t default_value, auto value) {
    append_column(out, field, count, default_value, [&](std::size_t i) -> std::uint64_t { return value(shape_at(i)); });
  };
  column(Fields::kKind, kNoDefault, [](const SpanShape& shape) { return static_cast<std::uint64_t>(shape.kind); });
  column(Fields::kStep, 0, [](const SpanShape& shape) { return zigzag32(shape.step); });
  column(Fields::kTimeSource, static_cast<std::uint64_t>(TimeSource::kHost),
         [](const SpanShape& shape) { return static_cast<std::uint64_t>(shape.time_source); });
  column(Fields::kFlags, 0, [](const SpanShape& shape) { return shape.flags; });
  column(Fields::kMicrobatch, zigzag(0), [](const SpanShape& shape) { return zigzag(shape.microbatch); });
  column(Fields::kChunk, zigzag(kNoIndex), [](const SpanShape& shape) { return zigzag(shape.chunk); });
  // Never left out: absent means that every op_index is 0, not that every difference is.
  column(Fields::kOpIndex, kNoDefault, [](const SpanShape& shape) { return zigzag(shape.op_index); });
  column(Fields::kTrackId, kNoId, [](const SpanShape& shape) { return shape.track_id; });
  column(Fields::kNameId, kNoId, [](const SpanShape& shape) { return shape.name_id; });
  column(Fields::kCommId, kNoId, [](const SpanShape& shape) { return shape.comm_id; });
  column(Fields::kCommSeq, 0, [](const SpanShape& shape) { return zigzag(shape.comm_seq); });
  column(Fields::kPeer, zigzag(kNoPeer), [](const SpanShape& shape) { return zigzag(shape.peer); });
  column(Fields::kPayloadBytes, 0, [](const SpanShape& shape) { return shape.payload_bytes; });
}

void append_columns(std::string& out, std::span<const Span> spans, const Columns& columns) {
  const auto append = [&out](Fields field, std::size_t count, const auto& values) {
    append_packed(out, field, count, [&values](std::size_t i) { return std::uint64_t{values[i]}; });
  };
  append_packed(out, Fields::kStartNs, spans.size(),
                [spans](std::size_t i) { return zigzag_difference(spans[i].start, i == 0 ? 0 : spans[i - 1].end); });
  append_packed(out, Fields::kDurationNs, spans.size(),
                [spans](std::size_t i) { return duration(spans[i].start, spans[i].end); });
  if (columns.device_count > 0) {
    append(Fields::kDeviceStartNs, columns.device_count, columns.device_start_ns);
    append(Fields::kDeviceDurationNs, columns.device_count, columns.device_duration_ns);
  }
  append_metric_values(out, columns);

  // A table of shapes costs each span a reference, so it must save some: nearly always it does.
  const std::size_t shape_count = columns.shapes.size();
  if (shape_count == 1 || shape_count * 4 > columns.span_count * 3) {
    append_shaped_columns(out, columns.span_count,
                          [&](std::size_t i) -> const SpanShape& { return columns.shapes[columns.shape[i]]; });
  } else {
    append_shaped_columns(out, shape_count, [&](std::size_t i) -> const SpanShape& { return columns.shapes[i]; });
    append(Fields::kShape, columns.span_count, columns.shape);
  }
}

/// Appends a packet of spans from the front; how many it took.
std::size_t append_batch(std::string& out, std::uint32_t ring_id, std::uint64_t first_index,
                         std::span<const Span> spans) {
  spans = spans.first(std::min(spans.size(), kSpansPerPacket));
  Columns columns;
  auto steps = std::ranges::minmax(std::views::transform(spans, &Span::step));
  for (fill_columns(spans, steps.min, columns); columns.span_count < spans.size();) {
    // Fewer than hoped for, and of fewer steps perhaps.
    spans = spans.first(columns.span_count);
    steps = std::ranges::minmax(std::views::transform(spans, &Span::step));
    fill_columns(spans, steps.min, columns);
  }

  PacketWriter packet(out);
  packet.fields().add_uint32(trace_fields::Packet::kFirstStep, steps.min);
  packet.fields().add_uint32(trace_fields::Packet::kLastStep, steps.max);
  {
    auto batch = begin_message<Fields>(out, packet.fields(), trace_fields::Packet::kSpans);
    batch.add_uint32(Fields::kSpanCount, static_cast<std::uint32_t>(spans.size()));
    batch.add_uint32(Fields::kRingId, ring_id);
    batch.add_uint64(Fields::kFirstIndex, first_index);
    append_columns(out, spans, columns);
  }
  packet.finish();
  return spans.size();
}

}  // namespace

void append_spans(std::string& out, std::uint32_t ring_id, std::uint64_t first_index, std::span<const Span> spans) {
  while (!spans.empty()) {
    const std::size_t count = append_batch(out, ring_id, first_index, spans);
    first_index += count;
    spans = spans.subspan(count);
  }
}

}  // namespace smon_rt
