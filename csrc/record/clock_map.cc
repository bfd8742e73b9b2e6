#include "record/clock_map.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace smon_rt {
namespace {

constexpr std::int64_t kBucketNs = 5'000'000'000;
constexpr std::int64_t kWindowBuckets = 12;  // a minute
// How far an event may lag behind its timestamp until it is visible before a bound is wrong.
constexpr std::int64_t kVisibilityNs = 15'000;
// And how much further one that is late may.
constexpr double kLateNs = 85'000;
// Timestamps and the host's readings of its own clocks are off by half a microsecond. The rest is so that brackets
// which are right leave room: where there is hardly any, the clocks did not run along a line.
constexpr std::int64_t kWidenNs = 4'000;
constexpr double kLeastRoomNs = 6'000;
// Oscillators wander, and NTP slews: a bracket says less about now the older it is.
constexpr double kWanderRatio = 5e-7;
// Crystals are within 100 ppm, NTP slews by 500 ppm at most.
constexpr double kMaxDriftRatio = 5e-4;
constexpr double kWrongRatio = 0.01;
// Of few brackets as well: the narrower they are, the less room hides one that is wrong.
constexpr double kAlwaysMayBeWrong = 2;
// Of so many, one that stands out is wrong.
constexpr std::size_t kManyBrackets = 64;
// A bound that leaves this much less room than the next one stands out.
constexpr double kStandsOutRatio = 1.5;

// Timestamps, and rates that change within the window, allow no line to be called more exact.
constexpr std::uint64_t kLeastBoundNs = 15'000;

/// Nanoseconds a minute apart are told apart by slopes that differ by this.
constexpr double kSlopeResolution = 1e-13;
// Of a line that passes through two points, slopes at which either is the higher one.
constexpr double kTouchingSlope = 1e-10;

/// Where a function of slopes that rises and then falls has its top.
template <typename Function>
double top_of(double low, double high, Function function) {
  while (high - low > kSlopeResolution) {
    const double a = low + (high - low) / 3;
    const double b = high - (high - low) / 3;
    (function(a) < function(b) ? low : high) = function(a) < function(b) ? a : b;
  }
  return (low + high) / 2;
}

}  // namespace

std::int64_t ClockLine::to_host_ns(std::int64_t device_ns) const {
  const auto distance_ns = static_cast<double>(device_ns - device_origin_ns);
  return host_origin_ns + std::llround(drift_ratio * distance_ns);
}

double ClockLine::offset_ns() const {
  return static_cast<double>(host_origin_ns) - drift_ratio * static_cast<double>(device_origin_ns);
}

void ClockMap::Hull::insert(Point point, std::vector<Point>& out) {
  const auto is_under = [](Point a, Point middle, Point b) {
    return (middle.y - a.y) * (b.x - a.x) <= (b.y - a.y) * (middle.x - a.x);
  };
  auto at = std::ranges::lower_bound(points_, point.x, {}, &Point::x);
  const bool is_replacing = at != points_.end() && at->x == point.x;
  if (is_replacing ? at->y >= point.y
                   : at != points_.begin() && at != points_.end() && is_under(*(at - 1), point, *at)) {
    out.push_back(point);
    return;
  }
  if (is_replacing) {
    out.push_back(*at);
    *at = point;
  } else {
    at = points_.insert(at, point);
  }
  // Neighbours that are under the new lines.
  while (at - points_.begin() >= 2 && is_under(*(at - 2), *(at - 1), *at)) {
    out.push_back(*(at - 1));
    at = points_.erase(at - 1);
  }
  while (points_.end() - at >= 3 && is_under(*at, *(at + 1), *(at + 2))) {
    out.push_back(*(at + 1));
    at = points_.erase(at + 1) - 1;
  }
  if (points_.size() > kMaxPoints) points_.erase(points_.begin() + kMaxPoints / 2);
}

/// All lines that pass above some points and below others.
class ClockMap::Region {
 public:
  Region(const Hull& lower, const Hull& upper, double least_room)
      : lower_(lower.points()), upper_(upper.points()), least_room_(least_room) {
    slope_ = top_of(-kMaxDriftRatio, kMaxDriftRatio, [this](double slope) { return gap(slope); });
    if (is_empty()) return;
    low_slope_ = last_inside(-kMaxDriftRatio);
    high_slope_ = last_inside(kMaxDriftRatio);
  }

  bool is_empty() const { return room() < least_room_; }
  /// At its widest place; less than nothing where no line passes.
  double room() const { return gap(slope_); }
  /// Where most room is left, or least is missing.
  double slope() const { return slope_; }
  /// Of the lines that are left.
  double low_slope() const { return low_slope_; }
  double high_slope() const { return high_slope_; }

  /// Of the outermost lines, at `first_x` and 0.
  Extent extent(double first_x) const { return {highest_at(first_x), lowest_at(first_x), highest_at(0), lowest_at(0)}; }

  double highest_at(double x) const {
    const auto height = [&](double slope) { return top(slope) + slope * x; };
    return height(top_of(low_slope_, high_slope_, height));
  }
  double lowest_at(double x) const {
    const auto depth = [&](double slope) { return -(bottom(slope) + slope * x); };
    return -depth(top_of(low_slope_, high_slope_, depth));
  }

  /// Where the point's shadow along a slope falls.
  static double intercept(Point point, double slope) { return point.y - slope * point.x; }

 private:
  static double highest_intercept(std::span<const Point> points, double slope) {
    double highest = -std::numeric_limits<double>::infinity();
    for (const Point point : points) highest = std::max(highest, intercept(point, slope));
    return highest;
  }
  double bottom(double slope) const { return highest_intercept(lower_, slope); }
  double top(double slope) const { return -highest_intercept(upper_, -slope); }
  double gap(double slope) const { return top(slope) - bottom(slope); }

  /// From the widest place towards `edge`.
  double last_inside(double edge) const {
    double inside = slope_;
    if (gap(edge) >= 0) return edge;
    while (std::abs(edge - inside) > kSlopeResolution) {
      const double middle = (edge + inside) / 2;
      (gap(middle) >= 0 ? inside : edge) = middle;
    }
    return inside;
  }

  std::span<const Point> lower_, upper_;
  const double least_room_;
  double slope_ = 0, low_slope_ = 0, high_slope_ = 0;
};

ClockMap::Bucket* ClockMap::bucket_at(std::int64_t device_ns) {
  const std::int64_t number = device_ns / kBucketNs - (device_ns % kBucketNs < 0 ? 1 : 0);
  if (!buckets_.empty() && number <= buckets_.back().number - kWindowBuckets) return nullptr;
  auto at = std::ranges::lower_bound(buckets_, number, {}, &Bucket::number);
  if (at == buckets_.end() || at->number != number) {
    at = buckets_.emplace(at);
    at->number = number;
  }
  Bucket* bucket = &*at;
  while (buckets_.front().number <= buckets_.back().number - kWindowBuckets) buckets_.pop_front();
  return bucket;
}

void ClockMap::add(const ClockBracket& bracket) {
  if (!has_origin_) {
    has_origin_ = true;
    device_origin_ns_ = bracket.device_ns;
    host_origin_ns_ = bracket.ready_ns;
  }
  Bucket* bucket = bucket_at(bracket.device_ns);
  if (bucket == nullptr) return;
  ++bucket->count;
  const auto x = static_cast<double>(bracket.device_ns - device_origin_ns_);
  const auto height = [&](std::int64_t host_ns) { return static_cast<double>(host_ns - host_origin_ns_) - x; };
  const auto widen = static_cast<double>(kWidenNs + bracket.quantum_ns);
  displaced_.clear();
  bucket->upper.insert({x, -(height(bracket.ready_ns) + widen)}, displaced_);
  bucket->certain_lower.insert({x, height(bracket.recorded_ns) - widen}, displaced_);
  if (bracket.not_ready_ns == ClockBracket::kNever) return;
  displaced_.assign(1, {x, height(bracket.not_ready_ns - kVisibilityNs) - widen});
  for (Hull& layer : bucket->lower) {
    displaced_next_.clear();
    for (const Point point : displaced_) layer.insert(point, displaced_next_);
    std::swap(displaced_, displaced_next_);
  }
}

std::vector<ClockMap::Bound> ClockMap::lower_bounds(double last_x) const {
  std::vector<Bound> bounds;
  const auto append = [&](const Hull& hull, std::size_t bucket, bool is_certain) {
    for (const Point point : hull.points()) {
      const double age = std::abs(last_x - point.x);
      bounds.push_back({{point.x - last_x, point.y - kWanderRatio * age}, bucket, is_certain});
    }
  };
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    append(buckets_[i].certain_lower, i, true);
    for (const Hull& layer : buckets_[i].lower) append(layer, i, false);
  }
  return bounds;
}

ClockMap::Hull ClockMap::upper_hull(double last_x) const {
  Hull hull;
  std::vector<Point> unused;
  for (const Bucket& bucket : buckets_) {
    for (const Point point : bucket.upper.points()) {
      hull.insert({point.x - last_x, point.y - kWanderRatio * std::abs(last_x - point.x)}, unused);
    }
  }
  return hull;
}

ClockMap::Bounds ClockMap::bounds_at(double last_x) const {
  Bounds bounds;
  bounds.upper = upper_hull(last_x);
  bounds.lower = lower_bounds(last_x);
  bounds.wrong_left_in_bucket.assign(buckets_.size(), kLayers - 1);
  for (const Bucket& bucket : buckets_) bounds.count += bucket.count;
  bounds.wrong_left = kWrongRatio * static_cast<double>(bounds.count) + kAlwaysMayBeWrong;
  return bounds;
}

ClockMap::Hull ClockMap::Bounds::lower_hull(std::size_t without) const {
  Hull hull;
  std::vector<Point> unused;
  for (std::size_t i = 0; i < lower.size(); ++i) {
    if (i != without) hull.insert(lower[i].point, unused);
  }
  return hull;
}

std::size_t ClockMap::Bounds::highest(double slope) const {
  const auto height = [slope](const Bound& bound) { return Region::intercept(bound.point, slope); };
  return static_cast<std::size_t>(std::ranges::max_element(lower, {}, height) - lower.begin());
}

bool ClockMap::Bounds::may_be_wrong(std::size_t bound) const {
  return !lower[bound].is_certain && wrong_left >= 1 && wrong_left_in_bucket[lower[bound].bucket] > 0;
}

void ClockMap::Bounds::leave_out(std::size_t bound) {
  wrong_left -= 1;
  --wrong_left_in_bucket[lower[bound].bucket];
  lower.erase(lower.begin() + static_cast<std::ptrdiff_t>(bound));
  ++left_out_count;
}

/// Where no line passes: of the bounds that are most in the way, the one without which least is.
std::optional<std::size_t> ClockMap::Bounds::contradicting(const Region& region) const {
  std::optional<std::size_t> found;
  double most = -std::numeric_limits<double>::infinity();
  // Two of them may be in the way at once, on both sides of what bounds the lines from above.
  for (const double slope : {region.slope() - kTouchingSlope, region.slope(), region.slope() + kTouchingSlope}) {
    const std::size_t bound = highest(slope);
    if (!may_be_wrong(bound)) continue;
    const Hull rest = lower_hull(bound);
    if (rest.points().empty()) continue;
    if (const double room = Region(rest, upper, 0).room(); room > most) {
      most = room;
      found = bound;
    }
  }
  return found;
}

/// Of the bounds that the outermost lines touch, the one without which there is most room, if that is much more. Bounds
/// of looks at random times come close to each other, so of many one that stands out is wrong.
std::optional<std::size_t> ClockMap::Bounds::standing_out(const Region& region, double first_x) const {
  const double width = region.extent(first_x).width();
  std::optional<std::size_t> found;
  double most = kStandsOutRatio * width;
  for (const double slope : {region.low_slope(), region.high_slope(), region.slope()}) {
    const std::size_t bound = highest(slope);
    if (!may_be_wrong(bound)) continue;
    const Hull rest = lower_hull(bound);
    if (rest.points().empty()) continue;
    if (const double wider = Region(rest, upper, 0).extent(first_x).width(); wider > most) {
      most = wider;
      found = bound;
    }
  }
  return found;
}

/// The bounds of looks that some line of the region touches.
std::vector<std::size_t> ClockMap::Bounds::touching(const Region& region) const {
  const Hull hull = lower_hull();
  const std::span<const Point> points = hull.points();
  const auto slope_after = [&](std::size_t i) {
    return (points[i + 1].y - points[i].y) / (points[i + 1].x - points[i].x);
  };
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < points.size(); ++i) {
    // It is the highest between the slopes to its neighbours.
    if (i > 0 && slope_after(i - 1) < region.low_slope()) continue;
    if (i + 1 < points.size() && slope_after(i) > region.high_slope()) continue;
    const auto is_it = [&](const Bound& bound) { return bound.point.x == points[i].x && bound.point.y == points[i].y; };
    const auto bound = std::ranges::find_if(lower, is_it);
    if (bound != lower.end() && !bound->is_certain) found.push_back(static_cast<std::size_t>(bound - lower.begin()));
  }
  return found;
}

/// Where lines pass if any one of the bounds that nothing contradicts is of an event that was visible late.
ClockMap::Extent ClockMap::Bounds::extent_with_one_late(const Region& region, double first_x) const {
  Extent extent = region.extent(first_x);
  for (const std::size_t bound : touching(region)) {
    Hull hull = lower_hull(bound);
    std::vector<Point> unused;
    hull.insert({lower[bound].point.x, lower[bound].point.y - kLateNs}, unused);
    extent.include(Region(hull, upper, 0).extent(first_x));
  }
  return extent;
}

void ClockMap::Extent::include(const Extent& other) {
  first_high = std::max(first_high, other.first_high);
  first_low = std::min(first_low, other.first_low);
  last_high = std::max(last_high, other.last_high);
  last_low = std::min(last_low, other.last_low);
}

double ClockMap::Extent::width() const {
  return std::max(first_high - first_low, last_high - last_low);
}

std::optional<ClockLine> ClockMap::line_through_all(double first_x, double last_x, double least_room) const {
  Bounds bounds = bounds_at(last_x);
  while (!bounds.lower.empty()) {
    const Hull lower = bounds.lower_hull();
    const Region region(lower, bounds.upper, least_room);
    if (!region.is_empty()) {
      const std::optional<std::size_t> wrong =
          bounds.count >= kManyBrackets ? bounds.standing_out(region, first_x - last_x) : std::nullopt;
      if (!wrong) {
        const Extent extent = bounds.extent_with_one_late(region, first_x - last_x);
        return middle_of(extent, first_x, last_x, bounds.left_out_count);
      }
      bounds.leave_out(*wrong);
    } else {
      const std::optional<std::size_t> wrong = bounds.contradicting(region);
      if (!wrong) return std::nullopt;
      bounds.leave_out(*wrong);
    }
  }
  return std::nullopt;
}

ClockLine ClockMap::middle_of(const Extent& extent, double first_x, double last_x,
                              std::uint32_t violated_bounds) const {
  // Between the two device times the highest of all lines lies under its chord and the lowest above its own: the middle
  // of the chords is nowhere further from either than at one of the ends.
  const double first_middle = (extent.first_high + extent.first_low) / 2;
  const double last_middle = (extent.last_high + extent.last_low) / 2;
  ClockLine line;
  line.device_origin_ns = device_origin_ns_ + std::llround(last_x);
  line.host_origin_ns = host_origin_ns_ + std::llround(last_x + last_middle);
  if (first_x < last_x) line.drift_ratio = 1 + (last_middle - first_middle) / (last_x - first_x);
  line.bound_ns = std::max(kLeastBoundNs, static_cast<std::uint64_t>(std::ceil(extent.width() / 2)) + 1);
  line.violated_bounds = violated_bounds;
  return line;
}

std::optional<ClockLine> ClockMap::line(std::int64_t first_ns, std::int64_t last_ns) {
  if (buckets_.empty()) return std::nullopt;
  const auto first_x = static_cast<double>(first_ns - device_origin_ns_);
  const auto last_x = static_cast<double>(last_ns - device_origin_ns_);
  // A few seconds are short enough for a line, and may hold brackets that are tighter than is asked of longer windows.
  const auto least_room = [this] { return buckets_.size() > 1 ? kLeastRoomNs : 0.0; };
  std::optional<ClockLine> line = line_through_all(first_x, last_x, least_room());
  if (line) return line;
  ++split_count_;
  while (!line && !buckets_.empty()) {
    buckets_.pop_front();
    line = line_through_all(first_x, last_x, least_room());
  }
  return line;
}

}  // namespace smon_rt
