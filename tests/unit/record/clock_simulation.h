#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "record/clock_map.h"

namespace smon_rt {

/// A GPU's clock beside the host's, both known, and events that are looked for as the drain thread does it.
struct ClockSimulationOptions {
  std::uint64_t seed = 1;
  double drift_ppm = 100;
  double rate_walk_ppm = 0.02;  // standard deviation of what the rate changes by in a second: warmth, NTP
  double rate_step_ppm = 0;     // at rate_step_s
  double rate_step_s = 0;
  double jump_ns = 0;  // of the host's clock against the device's, at jump_s
  double jump_s = 0;
  double step_s = 1;
  int spans_in_step = 16;
  double poll_ns = 1e6;
  double late_poll_ratio = 0.01;         // the thread that looks was somewhere else, for up to 50 ms
  double visibility_ns = 2000;           // from the timestamp until an event is seen, and as much again at random
  double late_visibility_ratio = 0.002;  // up to 100 us
};

struct SimulatedSpan {
  std::int64_t device_start_ns = 0, device_end_ns = 0;  // as the driver says
  double start_ns = 0, end_ns = 0;                      // the truth on the host's line
};

class ClockSimulation {
 public:
  explicit ClockSimulation(const ClockSimulationOptions& options) : options_(options), random_(options.seed) {
    rate_ = 1 + options.drift_ppm * 1e-6;
  }

  /// One more step: its brackets go into the map.
  std::vector<SimulatedSpan> step(ClockMap& map) {
    std::vector<SimulatedSpan> spans;
    const double begin_ns = device_ns_;
    const double host_begin_ns = host_ns();
    const double mean_ns = options_.step_s * 1e9 / options_.spans_in_step;
    // One event a step is looked for more often, around the time at which it should be ready: the step before tells.
    const int any_event = static_cast<int>(uniform(0, 2 * options_.spans_in_step));
    const int predicted = has_history_ ? any_event : -1;
    has_history_ = true;
    for (int i = 0; i < options_.spans_in_step; ++i) {
      SimulatedSpan span;
      // The host runs ahead: it has recorded all of a step while the first tenth of it is computed.
      const double recorded_ns = host_begin_ns + 0.1 * options_.step_s * 1e9 * i / options_.spans_in_step;
      advance(mean_ns * 0.02);
      note(map, span.device_start_ns, span.start_ns, recorded_ns, predicted == 2 * i);
      advance(mean_ns * 0.98 * (1 + 0.02 * uniform(-1, 1)));
      note(map, span.device_end_ns, span.end_ns, recorded_ns, predicted == 2 * i + 1);
      spans.push_back(span);
    }
    advance(std::max(0.0, begin_ns + options_.step_s * 1e9 - device_ns_));
    return spans;
  }

  double uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }
  double elapsed_s() const { return device_ns_ / 1e9; }
  /// Nothing happens for so long.
  void skip_s(double seconds) { advance(seconds * 1e9); }

 private:
  double host_ns() const { return host_ns_; }

  void advance(double device_ns) {
    const double before_s = elapsed_s();
    rate_ += std::normal_distribution<double>(0, options_.rate_walk_ppm * 1e-6)(random_) * std::sqrt(device_ns / 1e9);
    device_ns_ += device_ns;
    host_ns_ += device_ns * rate_;
    const auto passes = [&](double at_s) { return before_s < at_s && at_s <= elapsed_s(); };
    if (passes(options_.rate_step_s)) rate_ += options_.rate_step_ppm * 1e-6;
    if (passes(options_.jump_s)) host_ns_ += options_.jump_ns;
  }

  /// The event of this moment.
  void note(ClockMap& map, std::int64_t& device_ns, double& truth_ns, double recorded_ns, bool is_predicted) {
    truth_ns = host_ns();
    // Timestamps count in 32 ns and are half a microsecond apart, or wrong, at most.
    device_ns = std::llround((device_ns_ + uniform(-400, 400)) / 32) * 32;
    double visible_ns = truth_ns + options_.visibility_ns * (1 - std::log(1 - uniform(0, 1)));
    if (uniform(0, 1) < options_.late_visibility_ratio) visible_ns = truth_ns + uniform(0, 100e3);

    ClockBracket bracket;
    bracket.device_ns = device_ns;
    bracket.recorded_ns = std::llround(std::min(recorded_ns, truth_ns));
    constexpr double kQueryNs = 2000;
    const double burst_begin_ns = visible_ns + 150e3 * std::normal_distribution<double>()(random_) - 500e3;
    const double burst_end_ns = burst_begin_ns + 1e6;
    for (double look_ns = last_look_ns_;;) {
      if (look_ns >= visible_ns) {
        bracket.ready_ns = std::llround(look_ns + kQueryNs);
        last_look_ns_ = look_ns;
        break;
      }
      if (look_ns >= truth_ns - 3e6) bracket.not_ready_ns = std::llround(look_ns);
      if (look_ns < truth_ns - 5e6) look_ns = std::max(look_ns, truth_ns - 4e6 - uniform(0, 1e6));
      const bool is_burst = is_predicted && look_ns >= burst_begin_ns && look_ns < burst_end_ns;
      double wait_ns = (is_burst ? 50e3 : options_.poll_ns) + uniform(0, is_burst ? 60e3 : 300e3);
      if (is_predicted && look_ns < burst_begin_ns) wait_ns = std::min(wait_ns, burst_begin_ns + 1 - look_ns);
      if (uniform(0, 1) < options_.late_poll_ratio) wait_ns += uniform(0, 50e6);
      look_ns += wait_ns;
    }
    map.add(bracket);
  }

  ClockSimulationOptions options_;
  std::mt19937_64 random_;
  double rate_;
  bool has_history_ = false;
  double device_ns_ = 0;
  double host_ns_ = 3e14;  // some days after the host booted
  double last_look_ns_ = 3e14;
};

}  // namespace smon_rt
