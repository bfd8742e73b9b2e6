#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "format/span.h"
#include "smon_rt/v1/trace.pb.h"

namespace smon_rt::test {

/// Spans of a batch as the comments of trace.proto say, from the message that the official library parsed. Written from
/// the schema, without the code that it checks.
class OracleBatch {
 public:
  OracleBatch(const v1::TracePacket& packet) : first_step_(packet.first_step()), batch_(packet.spans()) {}

  std::vector<Span> spans() {
    count_ = static_cast<int>(batch_.span_count());
    require(batch_.start_ns_size() == count_ && batch_.duration_ns_size() == count_);
    std::vector<Span> spans(batch_.span_count());
    for (int i = 0; i < count_; ++i) fill(spans[static_cast<std::size_t>(i)], i);
    return spans;
  }

 private:
  static void require(bool holds) {
    if (!holds) throw std::runtime_error("the batch is not as the schema says");
  }

  template <typename Column, typename T>
  T shaped(const Column& column, int i, T absent) const {
    if (column.empty()) return absent;
    if (column.size() == 1) return static_cast<T>(column[0]);
    const int entry = batch_.shape_size() > 0 ? static_cast<int>(batch_.shape(i)) : i;
    require(entry < column.size());
    return static_cast<T>(column[entry]);
  }

  void fill(Span& span, int i) {
    span.kind = static_cast<Kind>(shaped(batch_.kind(), i, 0U));
    span.time_source = static_cast<TimeSource>(shaped(batch_.time_source(), i, 0U));
    span.flags = static_cast<std::uint16_t>(shaped(batch_.flags(), i, 0U));
    span.chunk = static_cast<std::int16_t>(shaped(batch_.chunk(), i, -1));
    span.track_id = static_cast<std::uint16_t>(shaped(batch_.track_id(), i, 0U));
    step_ = (i == 0 ? first_step_ : step_) + static_cast<std::uint32_t>(shaped(batch_.step(), i, 0));
    span.step = step_;
    span.set_payload_bytes(shaped(batch_.payload_bytes(), i, std::uint64_t{0}));
    fill_counts(span, i);
    fill_communicator(span, i);
    fill_times(span, i);
  }

  void fill_counts(Span& span, int i) {
    std::pair<int, int> last{-1, -1};
    const auto before = counts_.find(span.kind);
    if (before != counts_.end() && before->second.first == span.step) last = before->second.second;
    const int microbatch = batch_.microbatch().empty() ? -1 : last.first + shaped(batch_.microbatch(), i, 0);
    const int op_index = batch_.op_index().empty() ? 0 : last.second + shaped(batch_.op_index(), i, 0);
    counts_[span.kind] = {span.step, {microbatch, op_index}};
    span.microbatch = static_cast<std::int16_t>(microbatch);
    span.op_index = static_cast<std::uint16_t>(op_index);
  }

  void fill_communicator(Span& span, int i) {
    const std::uint32_t name_id = shaped(batch_.name_id(), i, 0U);
    const std::uint32_t comm_id = shaped(batch_.comm_id(), i, 0U);
    require(name_id == 0 || comm_id == 0);
    span.name_or_comm_id = static_cast<std::uint16_t>(name_id + comm_id);
    if (span.kind == Kind::kMetric) {
      double value = 0;
      if (batch_.metric_value_size() == 1) value = batch_.metric_value(0);
      if (batch_.metric_value_size() > 1) value = batch_.metric_value(metric_++);
      span.set_metric_value(value);
      return;
    }
    span.peer = shaped(batch_.peer(), i, -1);
    std::int64_t sequence = shaped(batch_.comm_seq(), i, std::int64_t{0});
    if (comm_id != 0) {
      std::int64_t& last = sequences_[{static_cast<int>(span.kind), comm_id, span.peer}];
      last += sequence;
      sequence = last;
    }
    span.comm_seq = static_cast<std::uint32_t>(sequence);
  }

  static std::int64_t add(std::int64_t a, std::uint64_t b) {
    return std::bit_cast<std::int64_t>(std::bit_cast<std::uint64_t>(a) + b);
  }

  void fill_times(Span& span, int i) {
    span.start = add(end_, std::bit_cast<std::uint64_t>(batch_.start_ns(i)));
    span.end = add(span.start, batch_.duration_ns(i));
    end_ = span.end;
    if (span.time_source == TimeSource::kHost || span.time_source == TimeSource::kWaitReturn) return;
    if (batch_.device_start_ns().empty()) return;
    const std::int64_t reference = device_ == 0 ? span.start : device_end_;
    span.device_start = add(reference, std::bit_cast<std::uint64_t>(batch_.device_start_ns(device_)));
    span.device_end = add(span.device_start, batch_.device_duration_ns(device_));
    device_end_ = span.device_end;
    ++device_;
  }

  std::uint32_t first_step_;
  const v1::SpanBatch& batch_;
  int count_ = 0;
  std::uint32_t step_ = 0;
  std::int64_t end_ = 0;
  std::int64_t device_end_ = 0;
  int device_ = 0;
  int metric_ = 0;
  std::map<Kind, std::pair<std::uint32_t, std::pair<int, int>>> counts_;
  std::map<std::tuple<int, std::uint32_t, std::int32_t>, std::int64_t> sequences_;
};

}  // namespace smon_rt::test
