#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace smon_rt {

/// Turns raw ticks into nanoseconds of CLOCK_MONOTONIC, piecewise: straight lines through readings of both clocks. One
/// line for a whole run would not do, since NTP slews CLOCK_MONOTONIC: 1 ppm is 3.6 ms an hour.
///
/// Between two readings the error is what the two readings have (their width) plus what NTP's rate changed in between.
/// Beyond the last one the last line goes on. Order is kept: of two ticks the later one is never earlier in ns.
///
/// Threading: one thread. Cost: a few ns for recent ticks, a binary search for others.
/// When full: of every two older lines one stays, so that the oldest ticks stay covered in bounded memory.
class ClockConverter {
 public:
  static constexpr std::size_t kMaxReadings = 256;

  /// Before the second reading lines have this slope: 1 where ticks are ns.
  explicit ClockConverter(double nominal_ns_per_tick = 1.0) : nominal_ns_per_tick_(nominal_ns_per_tick) {}

  /// Readings in the order they were taken. One whose clocks did not both move on is left out: false, and counted.
  bool add(const ClockReading& reading);

  std::int64_t to_monotonic_ns(std::int64_t ticks) const noexcept;

  /// Of the last line.
  double ns_per_tick() const noexcept { return slope_from(readings_.size() < 2 ? 0 : readings_.size() - 2); }
  /// From the first reading to the last: the further apart, the more exact.
  double mean_ns_per_tick() const noexcept;
  /// How far apart.
  std::int64_t covered_ns() const noexcept {
    return readings_.empty() ? 0 : readings_.back().ns - readings_.front().ns;
  }
  std::size_t reading_count() const noexcept { return readings_.size(); }

  /// Readings left out because a clock stood still or went back.
  std::uint64_t rejected_readings() const noexcept { return rejected_readings_; }
  /// Lines whose slope is more than 0.1 % off the ones before: a counter that jumped or was stopped, as when a virtual
  /// machine moves. Times in them are in order, and no more than that.
  std::uint64_t stepped_lines() const noexcept { return stepped_lines_; }

 private:
  struct Reading {
    std::int64_t ticks;
    std::int64_t ns;
  };

  double slope_from(std::size_t first) const noexcept;
  void thin_out();

  double nominal_ns_per_tick_;
  double typical_slope_ = 0;  // of lines that did not step
  std::vector<Reading> readings_;
  std::uint64_t rejected_readings_ = 0;
  std::uint64_t stepped_lines_ = 0;
};

}  // namespace smon_rt
