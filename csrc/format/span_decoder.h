#pragma once

#include <protozero/data_view.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "format/column_decoder.h"
#include "format/span.h"
#include "format/span_coding.h"
#include "format/trace_fields.h"
#include "format/trace_reader.h"
#include "format/trace_records.h"

namespace smon_rt {

/// Spans and step times, from trace.proto's columns. Keeps its memory from batch to batch; what it returns lies there
/// and lives until the next call.
///
/// Both functions throw DamagedPacket, or protozero::exception when the bytes are no such message.
class SpanDecoder {
 public:
  SpanDecoder();

  SpanBatch decode_spans(protozero::data_view bytes, std::uint32_t first_step);
  std::span<const StepTime> decode_step_times(protozero::data_view bytes);

 private:
  const Column& column(trace_fields::SpanBatch field) const { return columns_[static_cast<std::size_t>(field)]; }
  std::uint32_t read_span_columns(protozero::data_view bytes, SpanBatch& batch);
  void fill_shapes(std::size_t span_count);
  void fill_spans(std::uint32_t first_step);
  LastSequences fresh_sequences();

  std::uint64_t multiplier_;        // not known to who made the file
  std::array<Column, 23> columns_;  // by field number
  std::vector<SpanShape> shapes_;
  std::vector<LastSequences::Slot> slots_;
  std::vector<Span> spans_;
  std::vector<StepTime> step_times_;
};

}  // namespace smon_rt
