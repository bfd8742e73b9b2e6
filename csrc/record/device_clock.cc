#include "record/device_clock.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

namespace smon_rt {
namespace {

// A float of a second in ms counts in 61 ns.
constexpr std::int64_t kKeepNs = 1'000'000'000;
constexpr double kNsPerMs = 1e6;

}  // namespace

std::int64_t elapsed_quantum_ns(std::int64_t elapsed_ns) {
  const auto ms = static_cast<float>(std::abs(static_cast<double>(elapsed_ns)) / kNsPerMs);
  const float next = std::nextafter(ms, std::numeric_limits<float>::infinity());
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(next - ms) * kNsPerMs));
}

TraceClockMap to_clock_map(const ClockLine& line, std::int64_t first_ns, std::int64_t last_ns) {
  TraceClockMap map;
  map.window_start_ns = line.to_host_ns(first_ns);
  map.window_end_ns = line.to_host_ns(last_ns);
  map.offset_ns = line.offset_ns();
  map.drift_ratio = line.drift_ratio;
  map.bound_ns = line.bound_ns;
  map.violated_bounds = line.violated_bounds;
  return map;
}

DeviceClock::DeviceClock(GpuTimer& timer, GpuContext context)
    : timer_(timer), context_(context), device_(timer.device_of(context)), device_uuid_(timer.device_uuid(context)) {}

std::optional<std::int64_t> DeviceClock::note(EventSlot slot, ClockBracket bracket) {
  std::int64_t elapsed_ns = 0;
  if (kept_ != kNoEvent) {
    const Result<std::int64_t> elapsed = timer_.elapsed_ns(kept_, slot);
    if (!elapsed) {
      // Whichever of the two it was: what was known is of a clock that nothing compares with any more.
      ++restart_count_;
      map_ = {};
      last_line_.reset();
      keep(kNoEvent, 0);
      return std::nullopt;
    }
    elapsed_ns = *elapsed;
  }
  bracket.device_ns = kept_ns_ + elapsed_ns;
  bracket.quantum_ns = elapsed_quantum_ns(elapsed_ns);
  map_.add(bracket);
  if (kept_ == kNoEvent || elapsed_ns >= kKeepNs) keep(slot, bracket.device_ns);
  return bracket.device_ns;
}

void DeviceClock::keep(EventSlot slot, std::int64_t device_ns) {
  for (; kept_references_ > 0; --kept_references_) timer_.release(kept_);
  kept_ = slot;
  kept_ns_ = device_ns;
}

void DeviceClock::release(EventSlot slot) {
  if (slot == kept_) {
    ++kept_references_;
  } else {
    timer_.release(slot);
  }
}

std::optional<ClockLine> DeviceClock::line(std::int64_t first_ns, std::int64_t last_ns) {
  std::optional<ClockLine> line = map_.line(first_ns, last_ns);
  if (line) last_line_ = line;
  return line;
}

TraceClockMap DeviceClock::packet(const ClockLine& line, std::int64_t first_ns, std::int64_t last_ns) const {
  TraceClockMap map = to_clock_map(line, first_ns, last_ns);
  map.device = device_;
  map.gpu_uuid = device_uuid_;
  map.device_clock = "event";
  return map;
}

}  // namespace smon_rt
