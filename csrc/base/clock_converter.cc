#include "base/clock_converter.h"

#include <algorithm>
#include <cmath>

namespace smon_rt {

bool ClockConverter::add(const ClockReading& reading) {
  if (readings_.empty()) {
    readings_.reserve(kMaxReadings);
    readings_.push_back({reading.ticks, reading.monotonic_ns});
    return true;
  }
  const Reading& last = readings_.back();
  if (reading.ticks <= last.ticks || reading.monotonic_ns < last.ns) {
    ++rejected_readings_;
    return false;
  }
  const double slope =
      static_cast<double>(reading.monotonic_ns - last.ns) / static_cast<double>(reading.ticks - last.ticks);
  // NTP slews by 500 ppm at most. Short lines say little about a slope: they are as wrong as a reading is wide.
  constexpr double kMaxSlewRatio = 1e-3;
  const double slack_ns = typical_slope_ * kMaxSlewRatio * static_cast<double>(reading.ticks - last.ticks) +
                          static_cast<double>(2 * reading.width_ns + 1000);
  const double expected_ns = typical_slope_ * static_cast<double>(reading.ticks - last.ticks);
  if (typical_slope_ > 0 && std::abs(static_cast<double>(reading.monotonic_ns - last.ns) - expected_ns) > slack_ns) {
    ++stepped_lines_;
  } else {
    typical_slope_ = slope;
  }
  if (readings_.size() == kMaxReadings) thin_out();
  readings_.push_back({reading.ticks, reading.monotonic_ns});
  return true;
}

void ClockConverter::thin_out() {
  // The newer half stays whole: most ticks that come are recent.
  std::vector<Reading> kept;
  kept.reserve(kMaxReadings);
  for (std::size_t i = 0; i < readings_.size(); ++i) {
    if (i >= readings_.size() / 2 || i % 2 == 0) kept.push_back(readings_[i]);
  }
  readings_ = std::move(kept);
}

double ClockConverter::slope_from(std::size_t first) const noexcept {
  if (readings_.size() < 2) return nominal_ns_per_tick_;
  const Reading& a = readings_[first];
  const Reading& b = readings_[first + 1];
  return static_cast<double>(b.ns - a.ns) / static_cast<double>(b.ticks - a.ticks);
}

double ClockConverter::mean_ns_per_tick() const noexcept {
  if (readings_.size() < 2) return nominal_ns_per_tick_;
  return static_cast<double>(covered_ns()) / static_cast<double>(readings_.back().ticks - readings_.front().ticks);
}

std::int64_t ClockConverter::to_monotonic_ns(std::int64_t ticks) const noexcept {
  if (readings_.empty()) return static_cast<std::int64_t>(static_cast<double>(ticks) * nominal_ns_per_tick_);
  std::size_t line = readings_.size() < 2 ? 0 : readings_.size() - 2;
  if (ticks < readings_[line].ticks && line > 0) {
    const auto after =
        std::upper_bound(readings_.begin(), readings_.end(), ticks,
                         [](std::int64_t value, const Reading& reading) { return value < reading.ticks; });
    line = after == readings_.begin() ? 0 : static_cast<std::size_t>(after - readings_.begin()) - 1;
  }
  const Reading& start = readings_[line];
  return start.ns + std::llround(static_cast<double>(ticks - start.ticks) * slope_from(line));
}

}  // namespace smon_rt
