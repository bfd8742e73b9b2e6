#include "format/comm_op_decoder.h"

#include <protozero/pbf_message.hpp>

#include <algorithm>

namespace smon_rt {
namespace {

using Fields = trace_fields::CommOps;

/// One of the columns that have a value for some ops only, from front to back.
class SomeValues {
 public:
  SomeValues(const Column& column, const char* name) : column_(column), name_(name) {}

  std::uint64_t next() {
    if (at_ == column_.size()) throw DamagedPacket(std::string(name_) + " has too few values");
    return column_[at_++];
  }
  void require_end() const {
    if (at_ != column_.size()) throw DamagedPacket(std::string(name_) + " has too many values");
  }

 private:
  const Column& column_;
  const char* name_;
  std::size_t at_ = 0;
};

}  // namespace

std::span<const TraceCommOp> CommOpDecoder::decode_ops(protozero::data_view bytes, std::uint32_t first_step) {
  for (Column& each : columns_) each.clear();
  std::uint64_t first_number = 0;
  for (protozero::pbf_message<Fields> message(bytes); message.next();) {
    if (message.tag() == Fields::kFirstNumber && message.wire_type() == protozero::pbf_wire_type::varint) {
      first_number = message.get_uint64();
    } else if (message.tag() < Fields::kShape || message.tag() > Fields::kOpenKernelCount ||
               !read_varints(message, columns_[static_cast<std::size_t>(message.tag())])) {
      message.skip();
    }
  }
  const std::size_t op_count = column(Fields::kShape).size();
  if (op_count > kMaxOps) throw DamagedPacket("a batch has more operations than a packet may have");
  require_length(column(Fields::kStartNs), op_count, "start_ns");
  require_length(column(Fields::kEnqueueNs), op_count, "enqueue_ns");
  fill_shapes();
  fill_ops(first_step, first_number);
  return ops_;
}

void CommOpDecoder::fill_shapes() {
  std::size_t count = 1;
  for (auto field = static_cast<std::size_t>(Fields::kNumberGap); field < kColumns; ++field) {
    count = std::max(count, columns_[field].size());
  }
  for (auto field = static_cast<std::size_t>(Fields::kNumberGap); field < kColumns; ++field) {
    if (!has_length(columns_[field], count)) throw DamagedPacket("columns of operations differ in length");
  }
  const Column& shape = column(Fields::kShape);
  if (!shape.empty() && *std::ranges::max_element(shape) >= count) {
    throw DamagedPacket("shape refers to a shape that is not there");
  }

  shapes_.assign(count, CommOpShape{});
  const auto fill = [&]<typename T>(Fields field, T CommOpShape::* member, const char* name,
                                    std::uint64_t default_value = 0) {
    const Column& values = column(field);
    for (std::size_t i = 0; i < count; ++i) shapes_[i].*member = narrow<T>(value_at(values, i, default_value), name);
  };
  const auto fill_word = [&]<typename T>(Fields field, T CommOpShape::* member, const char* name) {
    const Column& values = column(field);
    for (std::size_t i = 0; i < count; ++i) shapes_[i].*member = T{narrow<std::uint8_t>(value_at(values, i, 0), name)};
  };
  fill(Fields::kCommunicator, &CommOpShape::communicator, "communicator");
  fill_word(Fields::kFunction, &CommOpShape::function, "function");
  fill_word(Fields::kDatatype, &CommOpShape::datatype, "datatype");
  fill_word(Fields::kAlgorithm, &CommOpShape::algorithm, "algorithm");
  fill_word(Fields::kProtocol, &CommOpShape::protocol, "protocol");
  fill(Fields::kChannelCount, &CommOpShape::channel_count, "channel_count");
  fill(Fields::kPeer, &CommOpShape::peer, "peer", zigzag(kNoPeer));
  fill(Fields::kCommId, &CommOpShape::comm_id, "comm_id");
  fill(Fields::kCommSeq, &CommOpShape::comm_seq, "comm_seq");
  fill(Fields::kFlags, &CommOpShape::flags, "flags");
  fill(Fields::kTransferCount, &CommOpShape::transfer_count, "transfer_count");
  fill(Fields::kOpenTransferCount, &CommOpShape::open_transfer_count, "open_transfer_count");
  fill(Fields::kKernelCount, &CommOpShape::kernel_count, "kernel_count");
  fill(Fields::kOpenKernelCount, &CommOpShape::open_kernel_count, "open_kernel_count");
  for (std::size_t i = 0; i < count; ++i) {
    CommOpShape& each = shapes_[i];
    each.number_gap = value_at(column(Fields::kNumberGap), i, 0);
    each.payload_bytes = value_at(column(Fields::kPayloadBytes), i, 0);
    each.step = static_cast<std::uint32_t>(narrow<std::int32_t>(value_at(column(Fields::kStep), i, 0), "step"));
    each.library_seq = static_cast<std::uint64_t>(unzigzag(value_at(column(Fields::kLibrarySeq), i, 0)));
  }
}

void CommOpDecoder::fill_ops(std::uint32_t first_step, std::uint64_t first_number) {
  const Column& shape = column(Fields::kShape);
  SomeValues first_transfer_ns(column(Fields::kFirstTransferNs), "first_transfer_ns");
  SomeValues transfer_ns(column(Fields::kTransferNs), "transfer_ns");
  SomeValues kernel_start(column(Fields::kKernelStartDeviceNs), "kernel_start_device_ns");
  SomeValues kernel_duration(column(Fields::kKernelDurationDeviceNs), "kernel_duration_device_ns");
  SomeValues slowest_channel(column(Fields::kSlowestChannel), "slowest_channel");
  CommOpHistory history(first_step, first_number);
  ops_.assign(shape.size(), TraceCommOp{});
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    TraceCommOp& op = ops_[i];
    if (!history.restore(shapes_[shape[i]], op)) throw DamagedPacket("comm_seq adds up to a value out of range");
    history.restore_start(column(Fields::kStartNs)[i], op);
    op.enqueue_ns = column(Fields::kEnqueueNs)[i];
    if (op.transfer_count > 0) {
      op.first_transfer_ns = add_difference(op.start_ns, first_transfer_ns.next());
      op.transfer_ns = transfer_ns.next();
    }
    if (op.kernel_count > 0) {
      history.restore_kernel_start(kernel_start.next(), op);
      op.kernel_duration_device_ns = kernel_duration.next();
      op.slowest_channel = narrow<std::uint8_t>(slowest_channel.next(), "slowest_channel");
    }
  }
  for (const SomeValues* values :
       {&first_transfer_ns, &transfer_ns, &kernel_start, &kernel_duration, &slowest_channel}) {
    values->require_end();
  }
}

std::span<const TraceCommChannel> CommOpDecoder::decode_channels(protozero::data_view bytes) {
  using trace_fields::CommChannels;
  for (Column& each : columns_) each.clear();
  for (protozero::pbf_message<CommChannels> message(bytes); message.next();) {
    const bool is_column = message.tag() >= CommChannels::kCommunicator && message.tag() <= CommChannels::kStateNs;
    if (!is_column || !read_varints(message, columns_[static_cast<std::size_t>(message.tag())])) message.skip();
  }
  const auto values = [this](CommChannels field) -> const Column& { return columns_[static_cast<std::size_t>(field)]; };
  const std::size_t count = values(CommChannels::kCommunicator).size();
  for (auto field = static_cast<std::size_t>(CommChannels::kNcclComm);
       field <= static_cast<std::size_t>(CommChannels::kStateNs); ++field) {
    if (!has_length(columns_[field], count)) throw DamagedPacket("columns of channels differ in length");
  }
  channels_.assign(count, TraceCommChannel{});
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = [&](CommChannels field) { return value_at(values(field), i, 0); };
    TraceCommChannel& channel = channels_[i];
    channel.communicator = narrow<std::uint32_t>(at(CommChannels::kCommunicator), "communicator");
    channel.nccl_comm = at(CommChannels::kNcclComm);
    channel.comm_id = narrow<std::uint16_t>(at(CommChannels::kCommId), "comm_id");
    channel.channel = narrow<std::uint32_t>(at(CommChannels::kChannel), "channel");
    channel.is_send = at(CommChannels::kIsSend) != 0;
    channel.peer = narrow<std::int32_t>(at(CommChannels::kPeer), "peer");
    channel.begun = at(CommChannels::kBegun);
    channel.moved = at(CommChannels::kMoved);
    channel.done = at(CommChannels::kDone);
    channel.moved_bytes = at(CommChannels::kMovedBytes);
    channel.state = narrow<std::uint32_t>(at(CommChannels::kState), "state");
    channel.state_ns = unzigzag(at(CommChannels::kStateNs));
  }
  return channels_;
}

}  // namespace smon_rt
