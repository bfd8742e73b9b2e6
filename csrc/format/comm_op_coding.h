#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>

#include "format/packed_column.h"
#include "format/trace_records.h"

// What trace.proto's CommOps says about differences and shapes, once for the encoder and the reader.

namespace smon_rt {

/// One entry of the shaped columns: all of an op but its times. step, comm_seq and library_seq are differences.
struct CommOpShape {
  std::uint64_t number_gap = 0;
  std::uint64_t payload_bytes = 0;
  std::int64_t comm_seq = 0;
  std::uint64_t library_seq = 0;  // modulo 2^64
  std::uint32_t step = 0;         // modulo 2^32
  std::uint32_t communicator = 0;
  std::int32_t peer = kNoPeer;
  std::uint32_t transfer_count = 0;
  std::uint32_t open_transfer_count = 0;
  std::uint32_t kernel_count = 0;
  std::uint32_t open_kernel_count = 0;
  std::uint16_t comm_id = kNoId;
  CommFunction function = CommFunction::kUnknown;
  CommDatatype datatype = CommDatatype::kUnknown;
  CommAlgorithm algorithm = CommAlgorithm::kUnknown;
  CommProtocol protocol = CommProtocol::kUnknown;
  std::uint8_t channel_count = 0;
  std::uint8_t flags = 0;
  std::uint8_t unused[4] = {};

  friend bool operator==(const CommOpShape&, const CommOpShape&) = default;
};

/// What the differences of a batch refer to: the ops before, in their order.
class CommOpHistory {
 public:
  CommOpHistory(std::uint32_t first_step, std::uint64_t first_number) : step_(first_step), next_number_(first_number) {}

  /// Shape of the next op.
  CommOpShape shape_of(const TraceCommOp& op) {
    CommOpShape shape;
    copy_plain(op, shape);
    shape.number_gap = op.number - next_number_;
    shape.step = op.step - step_;
    Last& last = last_of(op);
    shape.comm_seq = std::int64_t{op.comm_seq} - std::int64_t{last.comm_seq};
    shape.library_seq = op.library_seq - last.library_seq;
    remember(op, last);
    return shape;
  }

  /// The reverse, into an op of which only times are set later. False if the values do not fit.
  bool restore(const CommOpShape& shape, TraceCommOp& op) {
    copy_plain(shape, op);
    op.number = next_number_ + shape.number_gap;
    op.step = step_ + shape.step;
    Last& last = last_of(op);
    const std::uint64_t comm_seq = last.comm_seq + static_cast<std::uint64_t>(shape.comm_seq);
    op.comm_seq = static_cast<std::uint32_t>(comm_seq);
    op.library_seq = last.library_seq + shape.library_seq;
    remember(op, last);
    return op.comm_seq == comm_seq;
  }

  /// Differences, zigzag, of the next op's times.
  std::uint64_t start_gap(const TraceCommOp& op) { return gap(op.start_ns, start_ns_); }
  std::uint64_t kernel_gap(const TraceCommOp& op) {
    return gap(static_cast<std::int64_t>(op.kernel_start_device_ns), kernel_start_device_ns_);
  }
  void restore_start(std::uint64_t gap, TraceCommOp& op) { op.start_ns = start_ns_ = add_difference(start_ns_, gap); }
  void restore_kernel_start(std::uint64_t gap, TraceCommOp& op) {
    kernel_start_device_ns_ = add_difference(kernel_start_device_ns_, gap);
    op.kernel_start_device_ns = static_cast<std::uint64_t>(kernel_start_device_ns_);
  }

 private:
  struct Last {
    std::uint64_t library_seq = 0;
    std::uint32_t comm_seq = 0;
  };

  /// What a shape says as an op does.
  template <typename From, typename To>
  static void copy_plain(const From& from, To& to) {
    to.payload_bytes = from.payload_bytes;
    to.communicator = from.communicator;
    to.peer = from.peer;
    to.transfer_count = from.transfer_count;
    to.open_transfer_count = from.open_transfer_count;
    to.kernel_count = from.kernel_count;
    to.open_kernel_count = from.open_kernel_count;
    to.comm_id = from.comm_id;
    to.function = from.function;
    to.datatype = from.datatype;
    to.algorithm = from.algorithm;
    to.protocol = from.protocol;
    to.channel_count = from.channel_count;
    to.flags = from.flags;
  }

  Last& last_of(const TraceCommOp& op) { return last_[{op.communicator, op.function, op.peer}]; }

  void remember(const TraceCommOp& op, Last& last) {
    last = {op.library_seq, op.comm_seq};
    step_ = op.step;
    next_number_ = op.number + 1;
  }

  static std::uint64_t gap(std::int64_t value, std::int64_t& before) {
    const std::uint64_t difference = zigzag_difference(value, before);
    before = value;
    return difference;
  }

  std::uint32_t step_;
  std::uint64_t next_number_;
  std::int64_t start_ns_ = 0;
  std::int64_t kernel_start_device_ns_ = 0;
  std::map<std::tuple<std::uint32_t, CommFunction, std::int32_t>, Last> last_;
};

}  // namespace smon_rt
