#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "format/span.h"
#include "format/trace_records.h"

// Each function appends whole packets of a trace file (proto/smon_rt/v1/trace.proto) to `out`: framed, checksum first.
// What was appended is complete: it may be written, and cut, at any packet. `out` is only ever appended to; keep it and
// clear() it after writing, and encoding spans allocates nothing once it has grown.
//
// Threading: no state; different strings from different threads. Throws nothing but what growing `out` throws, and then
// whole packets are what was appended.

namespace smon_rt {

/// Spans in a packet at most; append_spans() writes as many packets as it needs (more, if spans hardly repeat).
inline constexpr std::size_t kSpansPerPacket = 2048;

void append_identity(std::string& out, const TraceIdentity& identity);

/// Spans of one ring in the ring's order, the first of which has the index `first_index` there. Times in nanoseconds of
/// CLOCK_MONOTONIC. Device times are written of spans whose time_source has some; they must be resolved, or 0. Nothing
/// is written for no spans.
///
/// Cost: about 0.1 µs a span on the calling thread, 100 KB of its stack, no allocation but `out`. A packet has some 400
/// bytes besides its spans: 500 spans or more at a time make small files, single ones do not.
void append_spans(std::string& out, std::uint32_t ring_id, std::uint64_t first_index, std::span<const Span> spans);

void append_step_times(std::string& out, std::span<const StepTime> step_times);
void append_names(std::string& out, const TraceNames& names);
void append_losses(std::string& out, const TraceLosses& losses);
void append_clock_snapshot(std::string& out, const TraceClockSnapshot& snapshot);
void append_clock_map(std::string& out, const TraceClockMap& map);
void append_recorder_cost(std::string& out, const TraceRecorderCost& cost);
void append_end(std::string& out, std::string_view reason);
void append_leftover(std::string& out, const TraceLeftover& leftover);

/// Operations of NCCL in a packet at most; append_comm_ops() writes as many packets as it needs.
inline constexpr std::size_t kCommOpsPerPacket = 512;

/// In the order of their numbers. Cost: about 0.2 µs an op on the calling thread, 60 KB of its stack.
void append_comm_ops(std::string& out, std::span<const TraceCommOp> ops);
void append_comm_counts(std::string& out, const TraceCommCounts& counts);
/// Nothing is written for no channels.
void append_comm_channels(std::string& out, std::span<const TraceCommChannel> channels);

}  // namespace smon_rt
