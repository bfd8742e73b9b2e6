#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock_converter.h"
#include "format/span.h"
#include "record/arena.h"
#include "record/comm_times.h"
#include "record/event_resolver.h"

namespace smon_rt {

/// Takes spans out of the rings of an arena in three steps, so that a span is in the ring or in the file at any moment
/// and a process may be killed at any: look() at what there is, encode() it, and, once it is written, commit() it.
///
/// Spans wait in their ring until a batch is worth its packet: a quarter of the ring, or max_age; and until the GPU has
/// come to their end, as long as the ring is not half full.
///
/// Threading: one thread; producers go on meanwhile. Cost: one cache line a recording thread and look, some 100 ns a
/// span. When full: the producers drop and count; filled_ratio() tells when to come back.
class RingCollector {
 public:
  /// `comm_times` may be null.
  RingCollector(Arena& arena, const ClockConverter& clock, EventResolver& resolver, std::int64_t max_age_ns,
                CommTimes* comm_times = nullptr);

  /// Finds what is due at this time, or everything. How many spans.
  std::uint64_t look(std::int64_t now_ns, bool everything);

  /// Appends packets with the spans that look() found.
  void encode(std::string& out);

  /// Gives the encoded entries back to their producers, and the records of exited threads to new ones.
  void commit();

  /// Share of its room that was filled between the last two looks, of the ring that filled most; or of all thread
  /// records, by threads that ended meanwhile.
  double filled_ratio() const { return filled_ratio_; }

 private:
  struct Cursor {
    std::uint32_t ring_id = 0;
    std::uint64_t begin = 0;            // indices of the ring
    std::uint64_t end = 0;              // begin == end: nothing due
    std::uint64_t seen_end = 0;         // of that ring, at the last look
    std::int64_t waiting_since_ns = 0;  // 0: the ring was empty
  };
  void encode_ring(std::string& out, std::size_t thread, const Cursor& cursor);

  Arena& arena_;
  const ClockConverter& clock_;
  EventResolver& resolver_;
  CommTimes* const comm_times_;
  const std::int64_t max_age_ns_;
  std::vector<Cursor> cursors_;  // one a thread record
  std::vector<Span> batch_;
  double filled_ratio_ = 0;
};

}  // namespace smon_rt
