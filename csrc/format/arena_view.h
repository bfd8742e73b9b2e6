#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "format/in_flight.h"
#include "format/span.h"
#include "format/trace_records.h"

// Reads the arena of another process (format/in_flight.h) from a copy of its bytes. The owner may be running, hung or
// dead, and the file may hold anything at all: nothing in it is believed before it is checked.

namespace smon_rt {

/// A reading of the owner's clocks, with which ticks become nanoseconds.
struct ArenaClockReading {
  bool is_valid = false;     // false: the owner had not read its clocks yet, or was just writing this
  std::uint32_t source = 0;  // a number of trace.proto's ClockSource
  std::int64_t ticks = 0;
  std::int64_t monotonic_ns = 0;
  std::int64_t realtime_ns = 0;
  double ns_per_tick = 1;

  /// CLOCK_MONOTONIC of the owner's boot. Saturates.
  std::int64_t to_monotonic_ns(std::int64_t ticks_then) const;
};

/// What the header says.
struct ArenaFacts {
  std::int32_t pid = 0;
  std::uint64_t process_start_ticks = 0;
  std::int32_t rank = 0;
  std::int32_t world_size = 0;
  std::uint32_t attempt = 0;
  std::string run_id;
  std::string host;
  std::string boot_id;
  std::string trace_file;
  ArenaClockReading clock;
  std::int64_t drain_beat_ns = 0;
  std::int64_t watchdog_beat_ns = 0;
  std::int64_t reporter_beat_ns = 0;
  std::int64_t step = -1;
  std::int64_t step_start_ticks = 0;
  bool is_sampled = false;
  std::uint32_t phase = 0;  // a number of Phase, or of one that a later writer added
  std::uint64_t finished_steps = 0;
  TraceLosses losses;
  std::uint64_t settled_bytes = 0;  // of trace_file: nothing before it is in the arena
  std::uint32_t settled_communicators = 0;
};

/// A span that had begun and not ended. `start` is in ticks, `end` means nothing yet.
struct OpenSpan {
  Span span;
  std::uint32_t generation = 0;
  bool is_recorded = false;  // false: its step is not sampled, `start` may be 0, and it belongs in no file
};

struct ArenaThread {
  ThreadState state = ThreadState::kLive;
  std::int32_t thread_id = 0;
  std::string name;
  std::uint32_t ring_id = 0;
  // Ended spans that were not handed to the sink, in order; the first has index first_index in the ring. Host times are
  // ticks, device times unresolved event slots: in_nanoseconds() makes them spans of a file.
  std::uint64_t first_index = 0;
  std::vector<Span> unread;
  std::vector<OpenSpan> open;
  std::uint32_t unreadable_slots = 0;  // being written, or being ended, when the copy was made
};

struct ArenaCommunicator {
  std::uint32_t comm_id = 0;
  std::int32_t member_count = 0;
  std::string name;
  std::string dimension;
  std::uint64_t enqueued = 0;
  std::uint64_t started = 0;
  std::uint64_t completed = 0;
  std::int64_t last_enqueued_ticks = 0;
  std::int64_t last_completed_ticks = 0;
  std::uint32_t last_kind = 0;
};

/// One direction of a channel of an NCCL communicator that has a network, as ChannelRecord.
struct ArenaChannel {
  std::uint32_t communicator = 0;  // its number in the process
  std::uint32_t channel = 0;
  bool is_send = false;
  std::uint64_t nccl_comm = 0;
  std::uint32_t comm_id = 0;  // 0: not known
  std::int32_t peer = -1;
  std::uint64_t begun = 0;
  std::uint64_t moved = 0;
  std::uint64_t done = 0;
  std::uint64_t moved_bytes = 0;
  std::uint32_t state = 0;  // a number of ChannelState, or of one that a later writer added
  std::int64_t state_ticks = 0;
};

struct ArenaContents {
  ArenaFacts facts;
  std::vector<ArenaThread> threads;  // those in use
  std::vector<ArenaCommunicator> communicators;
  std::vector<ArenaChannel> channels;
  std::vector<StepTicks> steps;       // that were not handed to the sink, in order
  std::vector<std::string> problems;  // one line for each part that contradicts itself and was left out
};

/// What a copy of an arena holds, or why it cannot be read: no arena, not complete yet, or cut.
///
/// A copy of a running owner's arena is not of one moment: entries that the owner drained and wrote anew while it was
/// copied are newer than the indices say. For a dead or hung owner it is exact.
///
/// Cost: one pass; memory is at most a few times that of `bytes`.
Result<ArenaContents> read_arena(std::span<const std::byte> bytes);

/// A span from a ring as it would be in a file: host times converted, unresolved device times dropped (the time source
/// then is host).
Span in_nanoseconds(const Span& span, const ArenaClockReading& clock);

}  // namespace smon_rt
