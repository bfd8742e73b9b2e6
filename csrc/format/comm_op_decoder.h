#pragma once

#include <protozero/data_view.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "format/column_decoder.h"
#include "format/comm_op_coding.h"
#include "format/trace_fields.h"
#include "format/trace_records.h"

namespace smon_rt {

/// What NCCL did, from trace.proto's columns. Keeps its memory from batch to batch; what it returns lies there and
/// lives until the next call.
///
/// Both functions throw DamagedPacket, or protozero::exception when the bytes are no such message.
class CommOpDecoder {
 public:
  /// Ops of a packet at most: more are refused.
  static constexpr std::size_t kMaxOps = std::size_t{1} << 16;

  std::span<const TraceCommOp> decode_ops(protozero::data_view bytes, std::uint32_t first_step);
  std::span<const TraceCommChannel> decode_channels(protozero::data_view bytes);

 private:
  using Fields = trace_fields::CommOps;
  static constexpr std::size_t kColumns = static_cast<std::size_t>(Fields::kOpenKernelCount) + 1;

  const Column& column(Fields field) const { return columns_[static_cast<std::size_t>(field)]; }
  void fill_shapes();
  void fill_ops(std::uint32_t first_step, std::uint64_t first_number);

  std::array<Column, kColumns> columns_;  // by field number
  std::vector<CommOpShape> shapes_;
  std::vector<TraceCommOp> ops_;
  std::vector<TraceCommChannel> channels_;
};

}  // namespace smon_rt
