#include "format/arena_view.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>

namespace smon_rt {
namespace {

using Bytes = std::span<const std::byte>;

/// A field of a record; the record's length was checked against our struct before. Not a cast: the copy may lie at any
/// address, and its atomics are plain bytes by now.
template <typename T>
T field(Bytes record, std::size_t offset) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, record.data() + offset, sizeof(T));
  return value;
}

/// Text in a char array, which may lack its terminating 0.
std::string text(Bytes record, std::size_t offset, std::size_t capacity) {
  const char* begin = reinterpret_cast<const char*>(record.data()) + offset;
  return std::string(begin, std::find(begin, begin + capacity, '\0'));
}

/// `count` records of `record_bytes` from `offset` on lie within the bytes. Cannot overflow.
bool is_within(Bytes bytes, std::uint64_t offset, std::uint64_t count, std::uint64_t record_bytes) {
  return offset <= bytes.size() && (record_bytes == 0 || count <= (bytes.size() - offset) / record_bytes);
}

/// The sizes that the header gives.
struct Geometry {
  std::uint32_t span_bytes = 0;
  std::uint32_t slot_bytes = 0;
  std::uint32_t thread_record_bytes = 0;
  std::uint32_t thread_record_count = 0;
  std::uint32_t comm_record_bytes = 0;
  std::uint32_t comm_record_count = 0;
  std::uint64_t thread_records_offset = 0;
  std::uint64_t comm_records_offset = 0;
};

#define SMON_FIELD(record, Struct, member) \
  field<std::remove_cvref_t<decltype(plain(std::declval<Struct&>().member))>>(record, offsetof(Struct, member))
template <typename T>
T plain(const std::atomic<T>&);
template <typename T>
T plain(const T&);
#define SMON_TEXT(record, Struct, member) text(record, offsetof(Struct, member), sizeof(Struct::member))

Result<Geometry> read_geometry(Bytes& arena) {
  if (arena.size() < sizeof(ArenaHeader)) {
    return Error{"too short for an arena of smon_rt: " + std::to_string(arena.size()) + " bytes"};
  }
  if (std::memcmp(arena.data(), kArenaMagic, sizeof(kArenaMagic)) != 0) {
    return Error{"not an arena of smon_rt, or one of a version that is laid out in another way"};
  }
  if (SMON_FIELD(arena, ArenaHeader, is_complete) == 0) {
    return Error{"the arena is still being set up, or its process died while it did: there is nothing in it"};
  }
  const auto arena_bytes = SMON_FIELD(arena, ArenaHeader, arena_bytes);
  const auto header_bytes = SMON_FIELD(arena, ArenaHeader, header_bytes);
  if (arena_bytes > arena.size()) {
    return Error{"the arena is cut: it has " + std::to_string(arena_bytes) + " bytes, there are " +
                 std::to_string(arena.size())};
  }
  if (arena_bytes < header_bytes || header_bytes < kFirstHeaderBytes) {
    return Error{"the arena's header is damaged: its sizes contradict each other"};
  }
  arena = arena.first(arena_bytes);

  Geometry geometry;
  geometry.span_bytes = SMON_FIELD(arena, ArenaHeader, span_bytes);
  geometry.slot_bytes = SMON_FIELD(arena, ArenaHeader, slot_bytes);
  geometry.thread_record_bytes = SMON_FIELD(arena, ArenaHeader, thread_record_bytes);
  geometry.thread_record_count = SMON_FIELD(arena, ArenaHeader, thread_record_count);
  geometry.comm_record_bytes = SMON_FIELD(arena, ArenaHeader, comm_record_bytes);
  geometry.comm_record_count = SMON_FIELD(arena, ArenaHeader, comm_record_count);
  geometry.thread_records_offset = SMON_FIELD(arena, ArenaHeader, thread_records_offset);
  geometry.comm_records_offset = SMON_FIELD(arena, ArenaHeader, comm_records_offset);
  // Records of a later writer may be longer than ours, at their end; shorter ones were never written.
  if (geometry.span_bytes < sizeof(Span) || geometry.slot_bytes < sizeof(OpenSlot) ||
      geometry.thread_record_bytes < sizeof(ThreadRecord) || geometry.comm_record_bytes < sizeof(CommRecord)) {
    return Error{"the arena's header is damaged: its records are shorter than any that were written"};
  }
  if (!is_within(arena, geometry.thread_records_offset, geometry.thread_record_count, geometry.thread_record_bytes) ||
      !is_within(arena, geometry.comm_records_offset, geometry.comm_record_count, geometry.comm_record_bytes)) {
    return Error{"the arena's header is damaged: its tables lie outside of it"};
  }
  return geometry;
}

ArenaClockReading read_clock(Bytes arena) {
  ArenaClockReading clock;
  const auto sequence = SMON_FIELD(arena, ArenaHeader, clock.sequence);
  clock.source = SMON_FIELD(arena, ArenaHeader, clock.source);
  clock.ticks = SMON_FIELD(arena, ArenaHeader, clock.ticks);
  clock.monotonic_ns = SMON_FIELD(arena, ArenaHeader, clock.monotonic_ns);
  clock.realtime_ns = SMON_FIELD(arena, ArenaHeader, clock.realtime_ns);
  clock.ns_per_tick = SMON_FIELD(arena, ArenaHeader, clock.ns_per_tick);
  clock.is_valid = sequence != 0 && sequence % 2 == 0 && std::isfinite(clock.ns_per_tick) && clock.ns_per_tick > 0;
  return clock;
}

/// False: written by an earlier version, whose header ended before that.
bool has_header_to(Bytes arena, std::size_t bytes) {
  return SMON_FIELD(arena, ArenaHeader, header_bytes) >= bytes;
}

TraceLosses read_losses(Bytes arena) {
  TraceLosses losses;
  for (std::uint32_t kind = 0; kind < kLossKinds; ++kind) {
    const std::size_t offset = offsetof(ArenaHeader, losses.dropped_by_kind) + kind * sizeof(std::uint64_t);
    const auto dropped = field<std::uint64_t>(arena, offset);
    if (dropped != 0) losses.dropped_by_kind[kind] = dropped;
  }
  losses.foreign_tokens = SMON_FIELD(arena, ArenaHeader, losses.foreign_tokens);
  losses.stale_tokens = SMON_FIELD(arena, ArenaHeader, losses.stale_tokens);
  losses.threads_without_ring = SMON_FIELD(arena, ArenaHeader, losses.threads_without_ring);
  losses.unwritten_spans = SMON_FIELD(arena, ArenaHeader, losses.unwritten_spans);
  losses.late_requests = SMON_FIELD(arena, ArenaHeader, losses.late_requests);
  if (has_header_to(arena, kSecondHeaderBytes)) {
    losses.uncounted_sequences = SMON_FIELD(arena, ArenaHeader, losses.uncounted_sequences);
  }
  if (has_header_to(arena, kThirdHeaderBytes)) {
    losses.reclaimed_spans = SMON_FIELD(arena, ArenaHeader, more_losses.reclaimed_spans);
    losses.saturated_steps = SMON_FIELD(arena, ArenaHeader, more_losses.saturated_steps);
    losses.misused_calls = SMON_FIELD(arena, ArenaHeader, more_losses.misused_calls);
    losses.host_only_spans = SMON_FIELD(arena, ArenaHeader, host_only_spans);
  }
  if (has_header_to(arena, kFourthHeaderBytes + sizeof(std::uint64_t))) {
    losses.overwritten_comm_ops = SMON_FIELD(arena, ArenaHeader, overwritten_comm_ops);
  }
  return losses;
}

ArenaFacts read_facts(Bytes arena) {
  ArenaFacts facts;
  facts.pid = SMON_FIELD(arena, ArenaHeader, pid);
  facts.process_start_ticks = SMON_FIELD(arena, ArenaHeader, process_start_ticks);
  facts.rank = SMON_FIELD(arena, ArenaHeader, rank);
  facts.world_size = SMON_FIELD(arena, ArenaHeader, world_size);
  facts.attempt = SMON_FIELD(arena, ArenaHeader, attempt);
  facts.run_id = SMON_TEXT(arena, ArenaHeader, run_id);
  facts.host = SMON_TEXT(arena, ArenaHeader, host);
  facts.boot_id = SMON_TEXT(arena, ArenaHeader, boot_id);
  facts.trace_file = SMON_TEXT(arena, ArenaHeader, trace_file);
  facts.clock = read_clock(arena);
  facts.drain_beat_ns = SMON_FIELD(arena, ArenaHeader, drain_beat_ns);
  facts.watchdog_beat_ns = SMON_FIELD(arena, ArenaHeader, watchdog_beat_ns);
  facts.reporter_beat_ns = SMON_FIELD(arena, ArenaHeader, reporter_beat_ns);
  facts.step = SMON_FIELD(arena, ArenaHeader, step);
  facts.step_start_ticks = SMON_FIELD(arena, ArenaHeader, step_start_ticks);
  facts.is_sampled = SMON_FIELD(arena, ArenaHeader, is_sampled) != 0;
  facts.phase = static_cast<std::uint32_t>(SMON_FIELD(arena, ArenaHeader, phase));
  facts.finished_steps = SMON_FIELD(arena, ArenaHeader, finished_steps);
  facts.losses = read_losses(arena);
  if (has_header_to(arena, kThirdHeaderBytes)) {
    facts.settled_bytes = SMON_FIELD(arena, ArenaHeader, settled_bytes);
    facts.settled_communicators = SMON_FIELD(arena, ArenaHeader, settled_communicators);
  }
  return facts;
}

/// Reads threads one after the other. No two of them can have the same memory, so together they have no more than there
/// is: that bounds what a made arena can cost.
class ThreadReader {
 public:
  ThreadReader(Bytes arena, const Geometry& geometry) : arena_(arena), geometry_(geometry), unclaimed_(arena.size()) {}

  /// "" or what is wrong with the thread's record.
  std::string read(Bytes record, ArenaThread& thread) {
    const auto ring_capacity = SMON_FIELD(record, ThreadRecord, ring_capacity);
    const auto ring_offset = SMON_FIELD(record, ThreadRecord, ring_offset);
    const auto slots_offset = SMON_FIELD(record, ThreadRecord, slots_offset);
    const auto slot_count = SMON_FIELD(record, ThreadRecord, slot_count);
    thread.thread_id = SMON_FIELD(record, ThreadRecord, thread_id);
    thread.name = SMON_TEXT(record, ThreadRecord, name);
    thread.ring_id = SMON_FIELD(record, ThreadRecord, ring_id);

    if (!std::has_single_bit(ring_capacity)) return "its ring's capacity is not a power of two";
    if (!is_within(arena_, ring_offset, ring_capacity, geometry_.span_bytes)) return "its ring lies outside the arena";
    if (!is_within(arena_, slots_offset, slot_count, geometry_.slot_bytes)) return "its slots lie outside the arena";
    const std::uint64_t claimed =
        std::uint64_t{ring_capacity} * geometry_.span_bytes + std::uint64_t{slot_count} * geometry_.slot_bytes;
    if (claimed > unclaimed_) return "its memory belongs to other threads too";
    unclaimed_ -= claimed;

    const auto write_index = SMON_FIELD(record, ThreadRecord, write_index);
    const auto read_index = SMON_FIELD(record, ThreadRecord, read_index);
    std::uint64_t unread = write_index - read_index;
    // Copied one after the other: while the owner runs, the reader may have passed the writer as it was copied before.
    if (read_index - write_index <= ring_capacity) unread = 0;
    if (unread > ring_capacity) return "its indices contradict the size of its ring";
    thread.first_index = read_index;
    thread.unread.reserve(unread);
    for (std::uint64_t index = read_index; index != read_index + unread; ++index) {
      thread.unread.push_back(field<Span>(arena_, ring_offset + index % ring_capacity * geometry_.span_bytes));
    }
    for (std::uint64_t slot = 0; slot < slot_count; ++slot) {
      read_slot(arena_.subspan(slots_offset + slot * geometry_.slot_bytes, geometry_.slot_bytes), thread);
    }
    return "";
  }

 private:
  static void read_slot(Bytes slot, ArenaThread& thread) {
    const auto state = SMON_FIELD(slot, OpenSlot, state);
    const auto sequence = SMON_FIELD(slot, OpenSlot, sequence);
    if ((state & OpenSlot::kStateMask) == OpenSlot::kFree) return;
    if ((state & OpenSlot::kStateMask) != OpenSlot::kOpen || sequence % 2 != 0) {
      ++thread.unreadable_slots;
      return;
    }
    thread.open.push_back({.span = field<Span>(slot, offsetof(OpenSlot, span)),
                           .generation = state >> 2,
                           .is_recorded = SMON_FIELD(slot, OpenSlot, is_recorded) != 0});
  }

  Bytes arena_;
  Geometry geometry_;
  std::uint64_t unclaimed_;
};

void read_threads(Bytes arena, const Geometry& geometry, ArenaContents& contents) {
  ThreadReader reader(arena, geometry);
  for (std::uint64_t i = 0; i < geometry.thread_record_count; ++i) {
    const Bytes record =
        arena.subspan(geometry.thread_records_offset + i * geometry.thread_record_bytes, geometry.thread_record_bytes);
    const auto state = SMON_FIELD(record, ThreadRecord, state);
    if (state == ThreadState::kFree) continue;
    ArenaThread thread;
    thread.state = state;
    std::string problem = "its state is none of those that were written";
    if (state == ThreadState::kLive || state == ThreadState::kExited) problem = reader.read(record, thread);
    if (problem.empty()) {
      contents.threads.push_back(std::move(thread));
    } else {
      contents.problems.push_back("thread record " + std::to_string(i) + " is damaged and left out: " + problem);
    }
  }
}

void read_communicators(Bytes arena, const Geometry& geometry, ArenaContents& contents) {
  for (std::uint64_t i = 0; i < geometry.comm_record_count; ++i) {
    const Bytes record =
        arena.subspan(geometry.comm_records_offset + i * geometry.comm_record_bytes, geometry.comm_record_bytes);
    ArenaCommunicator communicator;
    communicator.comm_id = SMON_FIELD(record, CommRecord, comm_id);
    if (communicator.comm_id == 0) continue;
    communicator.member_count = SMON_FIELD(record, CommRecord, member_count);
    communicator.name = SMON_TEXT(record, CommRecord, name);
    communicator.dimension = SMON_TEXT(record, CommRecord, dimension);
    communicator.enqueued = SMON_FIELD(record, CommRecord, enqueued);
    communicator.started = SMON_FIELD(record, CommRecord, started);
    communicator.completed = SMON_FIELD(record, CommRecord, completed);
    communicator.last_enqueued_ticks = SMON_FIELD(record, CommRecord, last_enqueued_ticks);
    communicator.last_completed_ticks = SMON_FIELD(record, CommRecord, last_completed_ticks);
    communicator.last_kind = SMON_FIELD(record, CommRecord, last_kind);
    contents.communicators.push_back(std::move(communicator));
  }
}

void read_steps(Bytes arena, ArenaContents& contents) {
  const auto offset = SMON_FIELD(arena, ArenaHeader, step_log_offset);
  const auto capacity = SMON_FIELD(arena, ArenaHeader, step_log_capacity);
  const auto entry_bytes = SMON_FIELD(arena, ArenaHeader, step_ticks_bytes);
  const auto write_index = SMON_FIELD(arena, ArenaHeader, step_write_index);
  const auto read_index = SMON_FIELD(arena, ArenaHeader, step_read_index);
  const std::uint64_t unread = write_index - read_index;
  if (!has_header_to(arena, kSecondHeaderBytes) || capacity == 0) return;
  if (!std::has_single_bit(capacity) || entry_bytes < sizeof(StepTicks) || unread > capacity ||
      !is_within(arena, offset, capacity, entry_bytes)) {
    contents.problems.push_back("the log of steps is damaged and left out: its indices or its place are impossible");
    return;
  }
  for (std::uint64_t index = read_index; index != write_index; ++index) {
    const Bytes entry = arena.subspan(offset + index % capacity * entry_bytes, entry_bytes);
    StepTicks step;
    step.step = SMON_FIELD(entry, StepTicks, step);
    // As numbers: a bool of any other value than 0 and 1 is none.
    step.is_sampled = field<std::uint8_t>(entry, offsetof(StepTicks, is_sampled)) != 0;
    step.is_warmup = field<std::uint8_t>(entry, offsetof(StepTicks, is_warmup)) != 0;
    step.is_counted = field<std::uint8_t>(entry, offsetof(StepTicks, is_counted)) != 0;
    step.start_ticks = SMON_FIELD(entry, StepTicks, start_ticks);
    step.end_ticks = SMON_FIELD(entry, StepTicks, end_ticks);
    contents.steps.push_back(step);
  }
}

void read_channels(Bytes arena, ArenaContents& contents) {
  if (!has_header_to(arena, kFourthHeaderBytes)) return;
  const auto offset = SMON_FIELD(arena, ArenaHeader, channel_records_offset);
  const auto record_bytes = SMON_FIELD(arena, ArenaHeader, channel_record_bytes);
  const auto count = SMON_FIELD(arena, ArenaHeader, channel_record_count);
  if (count == 0) return;
  if (record_bytes < sizeof(ChannelRecord) || !is_within(arena, offset, count, record_bytes)) {
    contents.problems.push_back("the table of channels is damaged and left out: its place is impossible");
    return;
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    const Bytes record = arena.subspan(offset + i * record_bytes, record_bytes);
    const auto key = SMON_FIELD(record, ChannelRecord, key);
    if (key == 0) continue;
    ArenaChannel channel;
    channel.communicator = static_cast<std::uint32_t>(key >> 16);
    channel.channel = static_cast<std::uint32_t>(key >> 1 & 0xff);
    channel.is_send = (key & 1) != 0;
    channel.nccl_comm = SMON_FIELD(record, ChannelRecord, nccl_comm);
    channel.comm_id = SMON_FIELD(record, ChannelRecord, comm_id);
    channel.peer = SMON_FIELD(record, ChannelRecord, peer);
    channel.begun = SMON_FIELD(record, ChannelRecord, begun);
    channel.moved = SMON_FIELD(record, ChannelRecord, moved);
    channel.done = SMON_FIELD(record, ChannelRecord, done);
    channel.moved_bytes = SMON_FIELD(record, ChannelRecord, moved_bytes);
    channel.state = static_cast<std::uint32_t>(SMON_FIELD(record, ChannelRecord, state));
    channel.state_ticks = SMON_FIELD(record, ChannelRecord, state_ticks);
    contents.channels.push_back(channel);
  }
}

#undef SMON_FIELD
#undef SMON_TEXT

}  // namespace

std::int64_t ArenaClockReading::to_monotonic_ns(std::int64_t ticks_then) const {
  // Long double has 64 bits of mantissa where it matters (x86): differences of any length keep their nanoseconds.
  const auto distance = static_cast<long double>(ticks_then) - static_cast<long double>(ticks);
  const long double result = static_cast<long double>(monotonic_ns) + distance * static_cast<long double>(ns_per_tick);
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  if (std::isnan(result)) return monotonic_ns;
  if (result >= static_cast<long double>(kMax)) return kMax;
  if (result <= static_cast<long double>(kMin)) return kMin;
  return static_cast<std::int64_t>(std::llround(result));
}

Result<ArenaContents> read_arena(std::span<const std::byte> bytes) {
  const Result<Geometry> geometry = read_geometry(bytes);
  if (!geometry) return geometry.error();
  ArenaContents contents;
  contents.facts = read_facts(bytes);
  read_threads(bytes, *geometry, contents);
  read_communicators(bytes, *geometry, contents);
  read_steps(bytes, contents);
  read_channels(bytes, contents);
  return contents;
}

Span in_nanoseconds(const Span& span, const ArenaClockReading& clock) {
  Span converted = span;
  converted.start = clock.to_monotonic_ns(span.start);
  converted.end = clock.to_monotonic_ns(span.end);
  converted.device_start = 0;
  converted.device_end = 0;
  if (span.time_source != TimeSource::kWaitReturn) converted.time_source = TimeSource::kHost;
  return converted;
}

}  // namespace smon_rt
