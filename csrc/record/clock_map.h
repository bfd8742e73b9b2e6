#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace smon_rt {

/// Between which moments of the host (CLOCK_MONOTONIC, ns) one moment of a device's clock lies.
struct ClockBracket {
  static constexpr std::int64_t kNever = INT64_MIN;

  std::int64_t device_ns = 0;
  std::int64_t quantum_ns = 0;         // how exact device_ns is
  std::int64_t recorded_ns = 0;        // before the event was recorded: never later than it
  std::int64_t not_ready_ns = kNever;  // before the last look that did not find it ready: seldom later than it
  std::int64_t ready_ns = 0;           // after the first look that found it ready: never earlier
};

/// A device's clock on the host's line: host_ns = host_origin_ns + drift_ratio * (device_ns - device_origin_ns), within
/// bound_ns for the device times it was asked for.
struct ClockLine {
  std::int64_t device_origin_ns = 0;
  std::int64_t host_origin_ns = 0;
  double drift_ratio = 1;
  std::uint64_t bound_ns = 0;
  std::uint32_t violated_bounds = 0;  // brackets that were left out as wrong

  std::int64_t to_host_ns(std::int64_t device_ns) const;
  /// The host's time at device time 0, as TraceClockMap has it.
  double offset_ns() const;
};

/// Finds a device's clock on the host's line without any synchronization: each event gives a bracket, and all lines
/// that pass through all brackets of the last minute are left. The one in their middle is the map, and the distance to
/// the outermost of them the bound.
///
/// An event becomes visible some time after its timestamp, seldom long after: what was not seen yet may have been there
/// already, so 1 % of these bounds may be wrong and are left out where they contradict the others; one that nothing
/// contradicts may be, and the stated bound has room for it. What still does not fit a line, because a clock was
/// stepped, ends what is remembered: older brackets go until the rest fits.
///
/// Threading: one thread. Cost: some 100 ns a bracket, some 0.5 ms a line, which is one or two a second.
/// When full: bounds that say least are forgotten, which makes the stated bound wider, never wrong.
class ClockMap {
 public:
  void add(const ClockBracket& bracket);

  /// For device times from `first_ns` to `last_ns`. Nothing: there are no brackets, or none that agree.
  std::optional<ClockLine> line(std::int64_t first_ns, std::int64_t last_ns);

  /// How often older brackets were given up because no line passed through all.
  std::uint64_t split_count() const { return split_count_; }

 private:
  struct Point {
    double x;
    double y;
  };
  /// Of points those that a line above all of them touches: what is above these is above the rest.
  class Hull {
   public:
    static constexpr std::size_t kMaxPoints = 48;
    /// Puts what the hull does not need into `out`.
    void insert(Point point, std::vector<Point>& out);
    std::span<const Point> points() const { return points_; }

   private:
    std::vector<Point> points_;  // by x, slopes falling
  };
  // A wrong bound may hide right ones below it: as many hulls below each other as may be wrong in a row.
  static constexpr std::size_t kLayers = 3;
  struct Bucket {
    std::int64_t number = 0;  // device time in units of kBucketNs
    std::size_t count = 0;
    std::array<Hull, kLayers> lower;  // from looks that did not find an event ready
    Hull certain_lower;
    Hull upper;  // y negated
  };
  struct Bound {
    Point point;
    std::size_t bucket;
    bool is_certain;
  };
  class Region;
  /// Where lines pass at both ends of what a line is asked for.
  struct Extent {
    double first_high, first_low;
    double last_high, last_low;

    void include(const Extent& other);
    double width() const;
  };
  /// Those of a window, relative to the end of what a line is asked for.
  struct Bounds {
    Hull upper;
    std::vector<Bound> lower;
    std::size_t count = 0;  // of brackets
    double wrong_left = 0;  // so many may still be left out, and so many of each bucket
    std::vector<std::size_t> wrong_left_in_bucket;
    std::uint32_t left_out_count = 0;

    Hull lower_hull(std::size_t without = SIZE_MAX) const;
    std::size_t highest(double slope) const;
    bool may_be_wrong(std::size_t bound) const;
    void leave_out(std::size_t bound);
    std::optional<std::size_t> contradicting(const Region& region) const;
    std::optional<std::size_t> standing_out(const Region& region, double first_x) const;
    std::vector<std::size_t> touching(const Region& region) const;
    Extent extent_with_one_late(const Region& region, double first_x) const;
  };

  Bucket* bucket_at(std::int64_t device_ns);
  std::vector<Bound> lower_bounds(double last_x) const;
  Hull upper_hull(double last_x) const;
  Bounds bounds_at(double last_x) const;
  std::optional<ClockLine> line_through_all(double first_x, double last_x, double least_room) const;
  ClockLine middle_of(const Extent& extent, double first_x, double last_x, std::uint32_t violated_bounds) const;

  std::deque<Bucket> buckets_;  // by number
  std::int64_t device_origin_ns_ = 0;
  std::int64_t host_origin_ns_ = 0;
  bool has_origin_ = false;
  std::uint64_t split_count_ = 0;
  std::vector<Point> displaced_, displaced_next_;
};

}  // namespace smon_rt
