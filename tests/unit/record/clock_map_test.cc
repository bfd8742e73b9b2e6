#include "record/clock_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <vector>

#include "clock_simulation.h"

namespace smon_rt {
namespace {

struct Outcome {
  std::uint64_t spans = 0;
  std::uint64_t missed = 0;  // the truth is not within the bound
  std::uint64_t unmapped = 0;
  std::uint64_t splits = 0;
  std::vector<std::uint64_t> first_bounds_ns;  // of the first step, one a run
  std::uint64_t worst_minute_bound_ns = 0;     // after 60 s

  double missed_ratio() const { return static_cast<double>(missed) / static_cast<double>(spans); }
  double unmapped_ratio() const { return static_cast<double>(unmapped) / static_cast<double>(spans); }
  /// Nine of ten first steps have one that is not above it.
  std::uint64_t usual_first_bound_ns() const {
    std::vector<std::uint64_t> sorted = first_bounds_ns;
    std::ranges::sort(sorted);
    return sorted.at(sorted.size() * 9 / 10 - 1);
  }
};

/// Steps one after the other, each converted when it is over, as the drain thread does.
void simulate(const ClockSimulationOptions& options, double seconds, Outcome& outcome) {
  ClockSimulation simulation(options);
  ClockMap map;
  for (bool is_first = true; simulation.elapsed_s() < seconds; is_first = false) {
    const std::vector<SimulatedSpan> spans = simulation.step(map);
    const auto line = map.line(spans.front().device_start_ns, spans.back().device_end_ns);
    outcome.spans += spans.size();
    if (!line) {
      outcome.unmapped += spans.size();
      continue;
    }
    const auto bound_ns = static_cast<double>(line->bound_ns);
    if (is_first) outcome.first_bounds_ns.push_back(line->bound_ns);
    if (simulation.elapsed_s() >= 60) {
      outcome.worst_minute_bound_ns = std::max(outcome.worst_minute_bound_ns, line->bound_ns);
    }
    for (const SimulatedSpan& span : spans) {
      const auto error_ns = [&](std::int64_t device_ns, double truth_ns) {
        return std::abs(static_cast<double>(line->to_host_ns(device_ns)) - truth_ns);
      };
      const bool is_missed = error_ns(span.device_start_ns, span.start_ns) > bound_ns ||
                             error_ns(span.device_end_ns, span.end_ns) > bound_ns;
      outcome.missed += is_missed ? 1 : 0;
    }
  }
  outcome.splits += map.split_count();
}

Outcome simulate_seeds(ClockSimulationOptions options, double seconds, std::uint64_t seed_count) {
  Outcome outcome;
  for (std::uint64_t seed = 1; seed <= seed_count; ++seed) {
    options.seed = seed;
    simulate(options, seconds, outcome);
  }
  std::printf(
      "%llu spans, %.5f missed, %llu unmapped, %llu splits, bound %.0f us after a step, %.0f us after a minute\n",
      static_cast<unsigned long long>(outcome.spans), outcome.missed_ratio(),
      static_cast<unsigned long long>(outcome.unmapped), static_cast<unsigned long long>(outcome.splits),
      static_cast<double>(outcome.usual_first_bound_ns()) / 1e3,
      static_cast<double>(outcome.worst_minute_bound_ns) / 1e3);
  return outcome;
}

constexpr double kMostMissed = 0.001;
constexpr std::uint64_t kRuns = 6;  // fifty in docs/gpu.md

TEST(ClockMap, WithoutBracketsThereIsNoLine) {
  ClockMap map;
  EXPECT_FALSE(map.line(0, 1000));
}

TEST(ClockMap, OneBracketPutsTheDeviceInItsMiddle) {
  ClockMap map;
  map.add({.device_ns = 5000, .recorded_ns = 900'000, .not_ready_ns = 1'000'000, .ready_ns = 1'040'000});
  const auto line = map.line(5000, 5000);
  ASSERT_TRUE(line);
  // 15 us for what is visible late, 4 us on both sides.
  EXPECT_NEAR(static_cast<double>(line->to_host_ns(5000)), 1'012'500, 2);
  EXPECT_NEAR(static_cast<double>(line->bound_ns), 31'500, 2);
  EXPECT_NEAR(line->offset_ns() + line->drift_ratio * 5000, 1'012'500, 2);
}

TEST(ClockMap, TheTruthLiesWithinTheBoundWhateverTheDrift) {
  for (const double drift_ppm : {-100.0, 0.0, 100.0}) {
    const Outcome outcome = simulate_seeds({.drift_ppm = drift_ppm}, 180, kRuns);
    EXPECT_LE(outcome.missed_ratio(), kMostMissed);
    EXPECT_EQ(outcome.unmapped, 0u);
    EXPECT_LE(outcome.usual_first_bound_ns(), 300'000u);
    EXPECT_LE(outcome.worst_minute_bound_ns, 50'000u);
  }
}

TEST(ClockMap, LateLooksAndLateEventsOnlyWidenTheBound) {
  const Outcome outcome = simulate_seeds({.late_poll_ratio = 0.1, .late_visibility_ratio = 0.005}, 180, kRuns);
  EXPECT_LE(outcome.missed_ratio(), kMostMissed);
  EXPECT_LE(outcome.worst_minute_bound_ns, 100'000u);
}

TEST(ClockMap, ARateThatChangesIsFollowed) {
  for (const double step_ppm : {-2.0, 0.5, 2.0}) {
    const Outcome outcome = simulate_seeds({.rate_step_ppm = step_ppm, .rate_step_s = 90}, 180, kRuns);
    EXPECT_LE(outcome.missed_ratio(), kMostMissed) << step_ppm;
    EXPECT_EQ(outcome.unmapped, 0u);
  }
}

TEST(ClockMap, AClockThatJumpsIsOneSplit) {
  for (const double jump_ns : {-5e6, 5e6}) {
    const Outcome outcome = simulate_seeds({.jump_ns = jump_ns, .jump_s = 90.3}, 180, kRuns);
    EXPECT_LE(outcome.missed_ratio(), kMostMissed);
    EXPECT_LE(outcome.unmapped_ratio(), 0.01) << "the step in which it jumped, and no other";
    EXPECT_EQ(outcome.splits, kRuns);
  }
}

TEST(ClockMap, LongStepsHaveAWiderBound) {
  const Outcome outcome = simulate_seeds({.step_s = 10}, 300, kRuns);
  EXPECT_LE(outcome.missed_ratio(), kMostMissed);
}

}  // namespace
}  // namespace smon_rt
