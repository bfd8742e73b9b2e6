#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string_view>
#include <vector>

#include "format/in_flight.h"
#include "format/span.h"

namespace smon_rt::test {

/// An arena as an owner lays it out, in plain memory: two threads and two communicators.
class SampleArena {
 public:
  static constexpr std::uint32_t kThreads = 4;
  static constexpr std::uint32_t kComms = 3;
  static constexpr std::uint32_t kRingCapacity = 8;
  static constexpr std::uint32_t kSlots = 4;
  static constexpr std::size_t kThreadsOffset = 2048;
  static constexpr std::size_t kCommsOffset = kThreadsOffset + kThreads * sizeof(ThreadRecord);
  static constexpr std::size_t kSlotsOffset = kCommsOffset + kComms * sizeof(CommRecord);
  static constexpr std::size_t kRingsOffset = kSlotsOffset + kThreads * kSlots * sizeof(OpenSlot);
  static constexpr std::size_t kBytes = kRingsOffset + kThreads * kRingCapacity * sizeof(Span);

  SampleArena() : memory_(kBytes / sizeof(Line)) {
    auto* header = new (at(0)) ArenaHeader;
    std::memcpy(header->magic, kArenaMagic, sizeof(kArenaMagic));
    header->arena_bytes = kBytes;
    header->header_bytes = sizeof(ArenaHeader);
    header->span_bytes = sizeof(Span);
    header->slot_bytes = sizeof(OpenSlot);
    header->thread_record_bytes = sizeof(ThreadRecord);
    header->thread_record_count = kThreads;
    header->comm_record_bytes = sizeof(CommRecord);
    header->comm_record_count = kComms;
    header->thread_records_offset = kThreadsOffset;
    header->comm_records_offset = kCommsOffset;
    for (std::uint32_t i = 0; i < kThreads; ++i) {
      auto* record = new (at(kThreadsOffset + i * sizeof(ThreadRecord))) ThreadRecord;
      record->ring_id = i + 1;
      record->ring_capacity = kRingCapacity;
      record->ring_offset = kRingsOffset + i * kRingCapacity * sizeof(Span);
      record->slots_offset = kSlotsOffset + i * kSlots * sizeof(OpenSlot);
      record->slot_count = kSlots;
      for (std::uint32_t slot = 0; slot < kSlots; ++slot) new (&this->slot(i, slot)) OpenSlot;
      for (std::uint32_t index = 0; index < kRingCapacity; ++index) new (&ring_entry(i, index)) Span;
    }
    for (std::uint32_t i = 0; i < kComms; ++i) new (at(kCommsOffset + i * sizeof(CommRecord))) CommRecord;
    header->is_complete = 1;
  }

  ArenaHeader& header() { return *reinterpret_cast<ArenaHeader*>(at(0)); }
  ThreadRecord& thread(std::uint32_t i) {
    return *reinterpret_cast<ThreadRecord*>(at(kThreadsOffset + i * sizeof(ThreadRecord)));
  }
  CommRecord& comm(std::uint32_t i) {
    return *reinterpret_cast<CommRecord*>(at(kCommsOffset + i * sizeof(CommRecord)));
  }
  OpenSlot& slot(std::uint32_t i, std::uint32_t slot) {
    return *reinterpret_cast<OpenSlot*>(at(kSlotsOffset + (i * kSlots + slot) * sizeof(OpenSlot)));
  }
  Span& ring_entry(std::uint32_t i, std::uint64_t index) {
    return *reinterpret_cast<Span*>(at(kRingsOffset + (i * kRingCapacity + index % kRingCapacity) * sizeof(Span)));
  }

  /// Spans [read_index, write_index) are waiting in the ring; each starts at its index.
  void set_unread(std::uint32_t i, std::uint64_t read_index, std::uint64_t write_index) {
    thread(i).state = ThreadState::kLive;
    thread(i).read_index = read_index;
    thread(i).write_index = write_index;
    for (std::uint64_t index = read_index; index != write_index; ++index) {
      Span span;
      span.kind = Kind::kUser;
      span.start = static_cast<std::int64_t>(index);
      span.end = span.start + 5;
      ring_entry(i, index) = span;
    }
  }

  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(memory_)); }

  /// A copy that starts at an odd address.
  std::vector<std::byte> unaligned_copy() const {
    std::vector<std::byte> copy(kBytes + 1);
    std::memcpy(copy.data() + 1, memory_.data(), kBytes);
    return copy;
  }

 private:
  struct alignas(kCacheLineBytes) Line {
    std::byte bytes[kCacheLineBytes];
  };
  static_assert(sizeof(ArenaHeader) <= kThreadsOffset);
  static_assert(kThreadsOffset % kCacheLineBytes == 0 && kBytes % kCacheLineBytes == 0);

  std::byte* at(std::size_t offset) { return reinterpret_cast<std::byte*>(memory_.data()) + offset; }

  std::vector<Line> memory_;
};

/// One with something in each part.
inline SampleArena filled_arena() {
  SampleArena arena;
  ArenaHeader& header = arena.header();
  header.pid = 4711;
  header.rank = 3;
  header.world_size = 8;
  header.attempt = 1;
  header.process_start_ticks = 99;
  std::strcpy(header.run_id, "run-7f3a");
  std::strcpy(header.host, "node-03");
  std::strcpy(header.boot_id, "0b6f3c62");
  std::strcpy(header.trace_file, "traces/rank-00003.run-7f3a-1.smon");
  header.clock.sequence = 2;
  header.clock.source = 1;
  header.clock.ticks = 1000;
  header.clock.monotonic_ns = 50'000;
  header.clock.realtime_ns = 1'700'000'000'000'000'000;
  header.clock.ns_per_tick = 0.5;
  header.drain_beat_ns = 11;
  header.watchdog_beat_ns = 12;
  header.reporter_beat_ns = 13;
  header.step = 42;
  header.step_start_ticks = 900;
  header.is_sampled = 1;
  header.phase = Phase::kTraining;
  header.finished_steps = 41;
  header.losses.dropped_by_kind[2] = 7;
  header.losses.stale_tokens = 1;
  header.losses.late_requests = 2;
  arena.set_unread(0, 13, 18);  // wraps: the ring holds 8
  std::strcpy(arena.thread(0).name, "python");
  arena.thread(0).thread_id = 4711;
  arena.set_unread(2, 0, 8);  // full
  arena.thread(2).state = ThreadState::kExited;
  std::memcpy(arena.thread(2).name, "exactly16letters", 16);
  OpenSlot& open = arena.slot(0, 1);
  open.span.kind = Kind::kForwardRecv;
  open.span.start = 1200;
  open.is_recorded = 1;
  open.sequence = 4;
  open.state = 9 << 2 | OpenSlot::kOpen;
  arena.slot(0, 2).state = 3 << 2 | OpenSlot::kEnding;
  arena.slot(0, 3).state = 3 << 2 | OpenSlot::kOpen;
  arena.slot(0, 3).sequence = 5;
  CommRecord& comm = arena.comm(1);
  comm.comm_id = 2;
  comm.member_count = 4;
  std::strcpy(comm.name, "dp-group");
  std::strcpy(comm.dimension, "dp");
  comm.enqueued = 30;
  comm.started = 29;
  comm.completed = 28;
  comm.last_enqueued_ticks = 1100;
  comm.last_completed_ticks = 1050;
  comm.last_kind = static_cast<std::uint32_t>(Kind::kGradsReduceScatter);
  return arena;
}

}  // namespace smon_rt::test
