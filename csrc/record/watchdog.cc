#include "record/watchdog.h"

#include "base/clock.h"

namespace smon_rt {
namespace {

/// A maximum with one writer.
void raise(std::atomic<std::int64_t>& longest, std::int64_t value) {
  if (value > longest.load(std::memory_order_relaxed)) longest.store(value, std::memory_order_relaxed);
}

void raise_gap(std::atomic<std::int64_t>& longest, std::int64_t now_ns, const std::atomic<std::int64_t>& beat_ns) {
  const std::int64_t beat = beat_ns.load(std::memory_order_relaxed);
  if (beat != 0) raise(longest, now_ns - beat);  // 0: that thread has not begun
}

}  // namespace

Result<void> Watchdog::start() {
  return thread_.start([this] {
    while (!thread_.is_stop_requested()) {
      beat(monotonic_ns());
      thread_.wait_for(options_.every);
    }
  });
}

void Watchdog::beat(std::int64_t now_ns) {
  header_.watchdog_beat_ns.store(now_ns, std::memory_order_relaxed);
  if (last_beat_ns_ != 0) raise(longest_gap_ns_, now_ns - last_beat_ns_);
  last_beat_ns_ = now_ns;
  raise_gap(longest_drain_gap_ns_, now_ns, header_.drain_beat_ns);
  raise_gap(longest_reporter_gap_ns_, now_ns, header_.reporter_beat_ns);
  const std::int64_t step = header_.step.load(std::memory_order_relaxed);
  if (step != last_step_) {
    last_step_ = step;
    last_step_change_ns_.store(now_ns, std::memory_order_relaxed);
  }
  beats_.fetch_add(1, std::memory_order_relaxed);
}

WatchdogCounters Watchdog::counters() const {
  WatchdogCounters counters;
  counters.beats = beats_.load(std::memory_order_relaxed);
  counters.longest_gap_ns = longest_gap_ns_.load(std::memory_order_relaxed);
  counters.longest_drain_gap_ns = longest_drain_gap_ns_.load(std::memory_order_relaxed);
  counters.longest_reporter_gap_ns = longest_reporter_gap_ns_.load(std::memory_order_relaxed);
  counters.last_step_change_ns = last_step_change_ns_.load(std::memory_order_relaxed);
  return counters;
}

}  // namespace smon_rt
