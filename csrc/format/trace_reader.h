#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "format/span.h"
#include "format/trace_records.h"

namespace smon_rt {

/// Spans of one ring, in its order; spans[i] has the index first_index + i there. Times are nanoseconds of the writer's
/// CLOCK_MONOTONIC. Kinds and time sources may be ones that a later writer added: numbers beyond our enumerators.
struct SpanBatch {
  std::uint32_t ring_id = 0;
  std::uint64_t first_index = 0;
  std::span<const Span> spans;
};

/// Which steps a reader wants. Packets that hold none of them are passed over undecoded; a packet that holds some is
/// given whole.
struct StepFilter {
  std::uint32_t first_step = 0;
  std::uint32_t last_step = std::numeric_limits<std::uint32_t>::max();
};

/// Is told what a trace holds, packet by packet in the file's order. Override what you need. Arguments live as long as
/// the call. Strings are bytes as they are in the file: not necessarily UTF-8, nor without newlines.
class TraceVisitor {
 public:
  virtual ~TraceVisitor() = default;

  virtual void on_identity(const TraceIdentity& /*identity*/) {}
  virtual void on_spans(const SpanBatch& /*batch*/) {}
  virtual void on_step_times(std::span<const StepTime> /*step_times*/) {}
  virtual void on_names(const TraceNames& /*names*/) {}
  virtual void on_losses(const TraceLosses& /*losses*/) {}
  virtual void on_clock_snapshot(const TraceClockSnapshot& /*snapshot*/) {}
  virtual void on_clock_map(const TraceClockMap& /*map*/) {}
  virtual void on_recorder_cost(const TraceRecorderCost& /*cost*/) {}
  virtual void on_end(std::string_view /*reason*/) {}
  virtual void on_leftover(const TraceLeftover& /*leftover*/) {}
  virtual void on_comm_ops(std::span<const TraceCommOp> /*ops*/) {}
  virtual void on_comm_counts(const TraceCommCounts& /*counts*/) {}
  virtual void on_comm_channels(std::span<const TraceCommChannel> /*channels*/) {}

  /// Bytes from `offset` of the file on are not a packet that can be read; reading goes on at the next intact one.
  /// `what` is one line without the file's name.
  virtual void on_damage(std::uint64_t /*offset*/, std::string_view /*what*/) {}
};

/// Spans, or steps, of a packet at most: more are refused as damage. 64 MiB of spans.
inline constexpr std::size_t kMaxRowsPerPacket = std::size_t{1} << 20;

struct TraceSummary {
  std::uint64_t packet_count = 0;           // intact ones, with those passed over
  std::uint64_t filtered_packet_count = 0;  // passed over by the step filter
  std::uint64_t unknown_packet_count = 0;   // intact, of a kind that a later writer added
  std::uint64_t damage_count = 0;           // calls of on_damage()
  bool has_end = false;                     // the last packet says that the writer closed the file
};

/// Reads a trace file, any part of one that starts at a packet, several in a row, or any bytes at all.
///
/// A packet whose checksum is right is delivered, wherever it lies: after damage the next one is searched byte by byte.
/// A file that was cut is intact packets and one damage, at the packet that was cut. What is in the bytes twice, as in
/// a file that was appended to itself, is delivered twice: once_visitor.h passes it on once.
///
/// Cost: under 0.1 µs a span, some ns for one that is passed over. Memory: at most 100 times the largest packet, 10
/// times for what our writer makes. Time is linear in the size, whatever the bytes. Throws only what the visitor
/// throws, and std::bad_alloc.
TraceSummary read_trace(std::span<const std::byte> bytes, const StepFilter& filter, TraceVisitor& visitor);

}  // namespace smon_rt
