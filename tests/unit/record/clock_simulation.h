#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "record/clock_map.h"
#include "record/poll_plan.h"

namespace smon_rt {

/// A GPU's clock beside the host's, both known, and events that are looked for as the drain thread does it: by the same
/// plan, with the same forecasts.
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
  // The thread that looks was somewhere else, for up to 50 ms: so many of looks that are a millisecond apart. Of looks
  // that are less apart, less: it is as often in a second.
  double late_poll_ratio = 0.01;
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
    const double host_begin_ns = host_ns_;
    const double mean_ns = options_.step_s * 1e9 / options_.spans_in_step;
    ++step_;
    for (int i = 0; i < options_.spans_in_step; ++i) {
      SimulatedSpan span;
      // The host runs ahead: it has recorded all of a step while the first tenth of it is computed.
      const double recorded_ns = host_begin_ns + 0.1 * options_.step_s * 1e9 * i / options_.spans_in_step;
      expect(map, 0);
      advance(mean_ns * 0.02);
      note(map, 0, span.device_start_ns, span.start_ns, recorded_ns);
      expect(map, 1);
      advance(mean_ns * 0.98 * (1 + 0.02 * uniform(-1, 1)));
      note(map, 1, span.device_end_ns, span.end_ns, recorded_ns);
      spans.push_back(span);
    }
    advance(std::max(0.0, begin_ns + options_.step_s * 1e9 - device_ns_));
    return spans;
  }

  /// The step was converted by this line.
  void converted(const std::optional<ClockLine>& line) {
    if (!line) return;
    line_ = line;
    plan_.set_bound(line->bound_ns);
  }

  double uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }
  double elapsed_s() const { return device_ns_ / 1e9; }
  /// Of all whole seconds.
  std::uint64_t most_queries_in_a_second() const { return most_queries_; }

 private:
  void advance(double device_ns) {
    const double before_s = elapsed_s();
    rate_ += std::normal_distribution<double>(0, options_.rate_walk_ppm * 1e-6)(random_) * std::sqrt(device_ns / 1e9);
    device_ns_ += device_ns;
    host_ns_ += device_ns * rate_;
    const auto passes = [&](double at_s) { return before_s < at_s && at_s <= elapsed_s(); };
    if (passes(options_.rate_step_s)) rate_ += options_.rate_step_ppm * 1e-6;
    if (passes(options_.jump_s)) host_ns_ += options_.jump_ns;
  }

  /// A burst around the next event, if the plan has room for it and steps or passes foretell it.
  void expect(ClockMap& map, std::uint8_t sort) {
    const auto next = forecast_.next(step_, sort, 1'000'000, plan_.most_error_ns());
    if (!next || !plan_.may_expect(step_, look_ns_, next->error_ns)) return;
    if (plan_.is_wide()) line_ = map.line(next->device_ns, next->device_ns);
    if (!line_ || line_->bound_ns > static_cast<std::uint64_t>(PollPlan::kSureNs)) return;
    const std::int64_t ready_ns = line_->to_host_ns(next->device_ns);
    if (ready_ns > look_ns_) plan_.expect(step_, look_ns_, ready_ns, next->error_ns);
  }

  /// The event of this moment.
  void note(ClockMap& map, std::uint8_t sort, std::int64_t& device_ns, double& truth_ns, double recorded_ns) {
    truth_ns = host_ns_;
    // Timestamps count in 32 ns and are half a microsecond apart, or wrong, at most.
    device_ns = std::llround((device_ns_ + uniform(-400, 400)) / 32) * 32;
    double visible_ns = truth_ns + options_.visibility_ns * (1 - std::log(1 - uniform(0, 1)));
    if (uniform(0, 1) < options_.late_visibility_ratio) visible_ns = truth_ns + uniform(0, 100e3);

    ClockBracket bracket;
    bracket.device_ns = device_ns;
    bracket.recorded_ns = std::llround(std::min(recorded_ns, truth_ns));
    bracket.not_ready_ns = not_ready_ns_;
    while (!is_ready(visible_ns)) {
      bracket.not_ready_ns = not_ready_ns_;
      wait();
    }
    constexpr std::int64_t kQueryNs = 2000;
    bracket.ready_ns = look_ns_ + kQueryNs;
    plan_.end_burst();
    forecast_.note(step_, sort, device_ns);
    map.add(bracket);
  }

  /// What a look at the event finds; nothing where the second has no queries left.
  bool is_ready(double visible_ns) {
    if (!plan_.take_query(look_ns_)) return false;
    count_query();
    if (static_cast<double>(look_ns_) >= visible_ns) return true;
    not_ready_ns_ = look_ns_;
    return false;
  }

  /// Until the next look.
  void wait() {
    const std::int64_t before_ns = look_ns_;
    const bool is_burst = plan_.is_burst_due(look_ns_);
    if (is_burst) plan_.looked_in_burst(look_ns_);
    if (plan_.is_due(look_ns_)) plan_.looked(look_ns_, true);
    look_ns_ = std::max(look_ns_, plan_.next_ns()) + std::llround(uniform(0, is_burst ? 60e3 : 300e3));
    const double late_ratio = options_.late_poll_ratio * static_cast<double>(look_ns_ - before_ns) / 1e6;
    if (uniform(0, 1) < late_ratio) look_ns_ += std::llround(uniform(0, 50e6));
  }

  void count_query() {
    const std::int64_t second = look_ns_ / 1'000'000'000;
    queries_ = second == query_second_ ? queries_ + 1 : 1;
    query_second_ = second;
    most_queries_ = std::max(most_queries_, queries_);
  }

  static constexpr std::int64_t kHostBeginNs = 300'000'000'000'000;  // some days after the host booted

  ClockSimulationOptions options_;
  std::mt19937_64 random_;
  double rate_;
  double device_ns_ = 0;
  double host_ns_ = static_cast<double>(kHostBeginNs);
  std::uint32_t step_ = 0;
  std::optional<ClockLine> line_;
  PollPlan plan_;
  CompletionForecast forecast_;
  std::int64_t look_ns_ = kHostBeginNs;
  std::int64_t not_ready_ns_ = ClockBracket::kNever;
  std::int64_t query_second_ = 0;
  std::uint64_t queries_ = 0;
  std::uint64_t most_queries_ = 0;
};

}  // namespace smon_rt
