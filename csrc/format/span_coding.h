#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "format/packed_column.h"
#include "format/span.h"

// What trace.proto's SpanBatch says about differences and shapes, once for the encoder and the reader.

namespace smon_rt {

/// Whether spans of a time source have device times.
constexpr bool has_device_times(TimeSource source) {
  return source != TimeSource::kHost && source != TimeSource::kWaitReturn;
}

/// One entry of the shaped columns: all of a span but its times and the value of a metric. step, microbatch, op_index
/// and comm_seq are differences.
struct SpanShape {
  std::uint64_t payload_bytes = 0;
  std::int64_t comm_seq = 0;
  std::uint32_t step = 0;  // modulo 2^32
  std::int32_t peer = kNoPeer;
  std::int32_t microbatch = 0;
  std::int32_t op_index = 0;
  std::int16_t chunk = kNoIndex;
  std::uint16_t flags = 0;
  std::uint16_t track_id = kNoId;
  std::uint16_t name_id = kNoId;
  std::uint16_t comm_id = kNoId;
  Kind kind = Kind::kStep;
  TimeSource time_source = TimeSource::kHost;
  std::uint8_t unused[4] = {};

  friend bool operator==(const SpanShape&, const SpanShape&) = default;
};

/// Last comm_seq by kind, communicator and peer, in memory that it is given: a power of two of zeroed slots, at least
/// twice as many as there will be keys. `multiplier` is odd; one that is not known beforehand keeps keys from a hostile
/// file from being chosen so that they all collide.
class LastSequences {
 public:
  struct Slot {
    std::uint64_t key = 0;  // 0: free; no key is 0, since a communicator's id is not
    std::uint32_t sequence = 0;
  };

  LastSequences(std::span<Slot> slots, std::uint64_t multiplier)
      : slots_(slots), multiplier_(multiplier), shift_(64 - std::bit_width(slots.size() - 1)) {}

  /// The last one, 0 at first; the caller sets it to the new one.
  std::uint32_t& of(Kind kind, std::uint16_t comm_id, std::int32_t peer) {
    const std::uint64_t key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(peer)) << 24 |
                              std::uint64_t{comm_id} << 8 | static_cast<std::uint64_t>(kind);
    for (std::size_t i = (key * multiplier_) >> shift_;; ++i) {
      Slot& slot = slots_[i & (slots_.size() - 1)];
      if (slot.key == 0) slot.key = key;
      if (slot.key == key) return slot.sequence;
    }
  }

 private:
  std::span<Slot> slots_;
  std::uint64_t multiplier_;
  int shift_;
};

/// What the differences of a batch refer to: the spans before, in their order.
class SpanHistory {
 public:
  /// `op_index_base` is what the first op_index of a kind and step refers to: -1, or 0 where the column is absent.
  SpanHistory(std::uint32_t first_step, const LastSequences& sequences, std::int32_t op_index_base = -1)
      : op_index_base_(op_index_base), step_(first_step), sequences_(sequences) {}

  /// Shape of the next span.
  SpanShape shape_of(const Span& span) {
    SpanShape shape;
    shape.step = span.step - step_;
    shape.chunk = span.chunk;
    shape.flags = span.flags;
    shape.track_id = span.track_id;
    (is_communication(span.kind) ? shape.comm_id : shape.name_id) = span.name_or_comm_id;
    shape.kind = span.kind;
    shape.time_source = span.time_source;
    shape.payload_bytes = span.payload_bytes();

    LastOfKind& last = last_of_kind(span.kind, span.step);
    shape.microbatch = span.microbatch - last.microbatch;
    shape.op_index = span.op_index - last.op_index;
    last.microbatch = span.microbatch;
    last.op_index = span.op_index;

    if (span.kind != Kind::kMetric) {  // whose value takes the room of the two
      shape.peer = span.peer;
      std::uint32_t& last_sequence = sequence_before(shape);
      shape.comm_seq = std::int64_t{span.comm_seq} - std::int64_t{last_sequence};
      last_sequence = span.comm_seq;
    }
    step_ = span.step;
    return shape;
  }

  /// Difference, zigzag, of the next span with device times.
  std::uint64_t device_start_gap(const Span& span) {
    const std::uint64_t gap = zigzag_difference(span.device_start, has_device_end_ ? device_end_ : span.start);
    remember_device_end(span);
    return gap;
  }

  /// The reverse, into a span of which nothing is set but what these set. False if the values do not fit.
  bool restore(const SpanShape& shape, Span& span) {
    span.step = step_ + shape.step;
    span.chunk = shape.chunk;
    span.flags = shape.flags;
    span.track_id = shape.track_id;
    // Kinds of a later writer may be communication as well.
    const bool has_name = !is_communication(shape.kind) && shape.name_id != kNoId;
    span.name_or_comm_id = has_name ? shape.name_id : shape.comm_id;
    span.kind = shape.kind;
    span.time_source = shape.time_source;
    span.set_payload_bytes(shape.payload_bytes);

    LastOfKind& last = last_of_kind(span.kind, span.step);
    const std::int64_t microbatch = std::int64_t{last.microbatch} + shape.microbatch;
    const std::int64_t op_index = std::int64_t{last.op_index} + shape.op_index;
    span.microbatch = static_cast<std::int16_t>(microbatch);
    span.op_index = static_cast<std::uint16_t>(op_index);
    last.microbatch = span.microbatch;
    last.op_index = span.op_index;
    bool fits = span.microbatch == microbatch && span.op_index == op_index;

    if (span.kind != Kind::kMetric) {
      span.peer = shape.peer;
      std::uint32_t& last_sequence = sequence_before(shape);
      const std::uint64_t sequence = last_sequence + static_cast<std::uint64_t>(shape.comm_seq);
      span.comm_seq = static_cast<std::uint32_t>(sequence);
      fits = fits && span.comm_seq == sequence;
      last_sequence = span.comm_seq;
    }
    step_ = span.step;
    return fits;
  }
  void restore_times(std::uint64_t start_gap, std::uint64_t duration_ns, Span& span) {
    span.start = add_difference(end_, start_gap);
    span.end = static_cast<std::int64_t>(static_cast<std::uint64_t>(span.start) + duration_ns);
    end_ = span.end;
  }
  void restore_device_times(std::uint64_t start_gap, std::uint64_t duration_ns, Span& span) {
    span.device_start = add_difference(has_device_end_ ? device_end_ : span.start, start_gap);
    span.device_end = static_cast<std::int64_t>(static_cast<std::uint64_t>(span.device_start) + duration_ns);
    remember_device_end(span);
  }

 private:
  struct LastOfKind {
    std::int32_t microbatch = -1;
    std::int32_t op_index = -1;
    std::uint32_t step = 0;
    bool is_set = false;
  };

  LastOfKind& last_of_kind(Kind kind, std::uint32_t step) {
    LastOfKind& last = last_of_kind_[static_cast<std::uint8_t>(kind)];
    if (last.step != step || !last.is_set) last = {.op_index = op_index_base_, .step = step, .is_set = true};
    return last;
  }

  std::uint32_t& sequence_before(const SpanShape& shape) {
    if (shape.comm_id != kNoId) return sequences_.of(shape.kind, shape.comm_id, shape.peer);
    no_sequence_ = 0;
    return no_sequence_;
  }

  void remember_device_end(const Span& span) {
    device_end_ = span.device_end;
    has_device_end_ = true;
  }

  std::int32_t op_index_base_;
  std::int64_t end_ = 0;
  std::int64_t device_end_ = 0;
  bool has_device_end_ = false;
  std::uint32_t step_;
  std::uint32_t no_sequence_ = 0;
  std::array<LastOfKind, 256> last_of_kind_{};
  LastSequences sequences_;
};

}  // namespace smon_rt
