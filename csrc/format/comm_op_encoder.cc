#include <protozero/pbf_builder.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <ranges>

#include "format/comm_op_coding.h"
#include "format/packed_column.h"
#include "format/packet_writer.h"
#include "format/shape_table.h"
#include "format/trace_encoder.h"
#include "format/trace_fields.h"

namespace smon_rt {
namespace {

using Fields = trace_fields::CommOps;

/// What a batch's columns are written from, besides the ops.
struct Columns {
  std::array<std::uint16_t, kCommOpsPerPacket> shape;
  std::array<std::uint64_t, kCommOpsPerPacket> start_gap;
  std::array<std::uint64_t, kCommOpsPerPacket> kernel_gap;
  ShapeTable<CommOpShape, kCommOpsPerPacket> shapes;  // as many as there may be
};

void fill_columns(std::span<const TraceCommOp> ops, std::uint32_t first_step, Columns& columns) {
  CommOpHistory history(first_step, ops.front().number);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    columns.shape[i] = columns.shapes.number_of(history.shape_of(ops[i]));
    columns.start_gap[i] = history.start_gap(ops[i]);
    if (ops[i].kernel_count > 0) columns.kernel_gap[i] = history.kernel_gap(ops[i]);
  }
}

template <typename Value>
void append_shaped(std::string& out, Fields field, const Columns& columns, std::uint64_t default_value, Value value) {
  append_column(out, field, columns.shapes.size(), default_value,
                [&](std::size_t i) { return static_cast<std::uint64_t>(value(columns.shapes[i])); });
}

void append_shapes(std::string& out, const Columns& columns) {
  using Shape = CommOpShape;
  const auto column = [&](Fields field, auto value) { append_shaped(out, field, columns, 0, value); };
  column(Fields::kNumberGap, [](const Shape& shape) { return shape.number_gap; });
  column(Fields::kStep, [](const Shape& shape) { return zigzag32(shape.step); });
  column(Fields::kCommunicator, [](const Shape& shape) { return shape.communicator; });
  column(Fields::kFunction, [](const Shape& shape) { return shape.function; });
  column(Fields::kDatatype, [](const Shape& shape) { return shape.datatype; });
  column(Fields::kAlgorithm, [](const Shape& shape) { return shape.algorithm; });
  column(Fields::kProtocol, [](const Shape& shape) { return shape.protocol; });
  column(Fields::kChannelCount, [](const Shape& shape) { return shape.channel_count; });
  append_shaped(out, Fields::kPeer, columns, zigzag(kNoPeer), [](const Shape& shape) { return zigzag(shape.peer); });
  column(Fields::kPayloadBytes, [](const Shape& shape) { return shape.payload_bytes; });
  column(Fields::kCommId, [](const Shape& shape) { return shape.comm_id; });
  column(Fields::kCommSeq, [](const Shape& shape) { return zigzag(shape.comm_seq); });
  column(Fields::kLibrarySeq, [](const Shape& shape) { return zigzag(static_cast<std::int64_t>(shape.library_seq)); });
  column(Fields::kFlags, [](const Shape& shape) { return shape.flags; });
  column(Fields::kTransferCount, [](const Shape& shape) { return shape.transfer_count; });
  column(Fields::kOpenTransferCount, [](const Shape& shape) { return shape.open_transfer_count; });
  column(Fields::kKernelCount, [](const Shape& shape) { return shape.kernel_count; });
  column(Fields::kOpenKernelCount, [](const Shape& shape) { return shape.open_kernel_count; });
}

/// A value for each of these ops, by its place in the batch.
template <typename Value>
void append_some(std::string& out, Fields field, std::span<const std::uint16_t> rows, Value value) {
  append_packed(out, field, rows.size(), [&](std::size_t i) { return std::uint64_t{value(rows[i])}; });
}

void append_times(std::string& out, std::span<const TraceCommOp> ops, const Columns& columns) {
  append_packed(out, Fields::kStartNs, ops.size(), [&](std::size_t i) { return columns.start_gap[i]; });
  append_packed(out, Fields::kEnqueueNs, ops.size(), [&](std::size_t i) { return ops[i].enqueue_ns; });
  std::array<std::uint16_t, kCommOpsPerPacket> rows;
  const auto rows_with = [&](std::uint32_t TraceCommOp::* count) {
    std::size_t found = 0;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (ops[i].*count > 0) rows[found++] = static_cast<std::uint16_t>(i);
    }
    return std::span<const std::uint16_t>(rows).first(found);
  };
  if (const auto moved = rows_with(&TraceCommOp::transfer_count); !moved.empty()) {
    append_some(out, Fields::kFirstTransferNs, moved,
                [&](std::size_t i) { return zigzag_difference(ops[i].first_transfer_ns, ops[i].start_ns); });
    append_some(out, Fields::kTransferNs, moved, [&](std::size_t i) { return ops[i].transfer_ns; });
  }
  if (const auto ran = rows_with(&TraceCommOp::kernel_count); !ran.empty()) {
    append_some(out, Fields::kKernelStartDeviceNs, ran, [&](std::size_t i) { return columns.kernel_gap[i]; });
    append_some(out, Fields::kKernelDurationDeviceNs, ran,
                [&](std::size_t i) { return ops[i].kernel_duration_device_ns; });
    append_some(out, Fields::kSlowestChannel, ran, [&](std::size_t i) { return ops[i].slowest_channel; });
  }
}

void append_batch(std::string& out, std::span<const TraceCommOp> ops) {
  const auto steps = std::ranges::minmax(std::views::transform(ops, &TraceCommOp::step));
  Columns columns;
  fill_columns(ops, steps.min, columns);
  PacketWriter packet(out);
  packet.fields().add_uint32(trace_fields::Packet::kFirstStep, steps.min);
  packet.fields().add_uint32(trace_fields::Packet::kLastStep, steps.max);
  {
    auto batch = begin_message<Fields>(out, packet.fields(), trace_fields::Packet::kCommOps);
    batch.add_uint64(Fields::kFirstNumber, ops.front().number);
    append_packed(out, Fields::kShape, ops.size(), [&](std::size_t i) { return std::uint64_t{columns.shape[i]}; });
    append_times(out, ops, columns);
    append_shapes(out, columns);
  }
  packet.finish();
}

}  // namespace

void append_comm_ops(std::string& out, std::span<const TraceCommOp> ops) {
  while (!ops.empty()) {
    const std::size_t count = std::min(ops.size(), kCommOpsPerPacket);
    append_batch(out, ops.first(count));
    ops = ops.subspan(count);
  }
}

void append_comm_channels(std::string& out, std::span<const TraceCommChannel> channels) {
  using trace_fields::CommChannels;
  if (channels.empty()) return;
  PacketWriter packet(out);
  {
    const protozero::pbf_writer message(packet.fields(),
                                        static_cast<protozero::pbf_tag_type>(trace_fields::Packet::kCommChannels));
    const auto column = [&](CommChannels field, auto value) {
      append_column(out, field, channels.size(), 0, [&](std::size_t i) { return std::uint64_t{value(channels[i])}; });
    };
    using Channel = TraceCommChannel;
    append_packed(out, CommChannels::kCommunicator, channels.size(),
                  [&](std::size_t i) { return std::uint64_t{channels[i].communicator}; });
    column(CommChannels::kNcclComm, [](const Channel& channel) { return channel.nccl_comm; });
    column(CommChannels::kCommId, [](const Channel& channel) { return channel.comm_id; });
    column(CommChannels::kChannel, [](const Channel& channel) { return channel.channel; });
    column(CommChannels::kIsSend, [](const Channel& channel) { return channel.is_send; });
    column(CommChannels::kPeer, [](const Channel& channel) { return zigzag(channel.peer); });
    column(CommChannels::kBegun, [](const Channel& channel) { return channel.begun; });
    column(CommChannels::kMoved, [](const Channel& channel) { return channel.moved; });
    column(CommChannels::kDone, [](const Channel& channel) { return channel.done; });
    column(CommChannels::kMovedBytes, [](const Channel& channel) { return channel.moved_bytes; });
    column(CommChannels::kState, [](const Channel& channel) { return channel.state; });
    column(CommChannels::kStateNs, [](const Channel& channel) { return zigzag(channel.state_ns); });
  }
  packet.finish();
}

}  // namespace smon_rt
