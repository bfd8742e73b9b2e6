#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "format/trace_records.h"
#include "record/clock_map.h"
#include "record/gpu_timer.h"

namespace smon_rt {

/// The clock of a context's events on the host's line. A driver only says how much time is between two events, as a
/// float of milliseconds: they are all compared with one event that is kept, and replaced every second, since the
/// longer the time the coarser the float.
///
/// Threading: the drain thread alone.
class DeviceClock {
 public:
  DeviceClock(GpuTimer& timer, GpuContext context);

  GpuContext context() const { return context_; }
  std::int32_t device() const { return device_; }
  const std::string& device_uuid() const { return device_uuid_; }

  /// Device time of a ready event; when its host times are given they tell the map something. Nothing: the driver could
  /// not compare it with the one that is kept, and the map begins anew.
  std::optional<std::int64_t> note(EventSlot slot, ClockBracket bracket);

  /// Gives back a reference to an event, now or when it is no longer compared with.
  void release(EventSlot slot);

  /// For device times in between; remembered as the last line.
  std::optional<ClockLine> line(std::int64_t first_ns, std::int64_t last_ns);
  const std::optional<ClockLine>& last_line() const { return last_line_; }

  /// How the line goes into a file.
  TraceClockMap packet(const ClockLine& line, std::int64_t first_ns, std::int64_t last_ns) const;

  std::uint64_t split_count() const { return map_.split_count() + restart_count_; }

 private:
  void keep(EventSlot slot, std::int64_t device_ns);

  GpuTimer& timer_;
  const GpuContext context_;
  const std::int32_t device_;
  const std::string device_uuid_;
  ClockMap map_;
  EventSlot kept_ = kNoEvent;
  std::int64_t kept_ns_ = 0;
  std::uint32_t kept_references_ = 0;  // to be given back with it
  std::optional<ClockLine> last_line_;
  std::uint64_t restart_count_ = 0;
};

/// A line as it goes into a file, for device times that it was made for.
TraceClockMap to_clock_map(const ClockLine& line, std::int64_t first_ns, std::int64_t last_ns);

/// How coarse a float of milliseconds is at this distance.
std::int64_t elapsed_quantum_ns(std::int64_t elapsed_ns);

}  // namespace smon_rt
