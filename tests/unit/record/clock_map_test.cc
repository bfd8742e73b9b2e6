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

/// Of one simulated run, or the worst of several.
struct Outcome {
  std::uint64_t spans = 0;
  std::uint64_t missed = 0;  // the truth is not within the bound
  std::uint64_t unmapped = 0;
  std::uint64_t splits = 0;
  double missed_ratio = 0;
  std::uint64_t first_bound_ns = 0;   // of the first step
  std::uint64_t minute_bound_ns = 0;  // after 60 s
  std::uint64_t queries_in_second = 0;

  double unmapped_ratio() const { return static_cast<double>(unmapped) / static_cast<double>(spans); }
  void add(const Outcome& run) {
    spans += run.spans;
    missed += run.missed;
    unmapped += run.unmapped;
    splits += run.splits;
    missed_ratio = std::max(missed_ratio, run.missed_ratio);
    first_bound_ns = std::max(first_bound_ns, run.first_bound_ns);
    minute_bound_ns = std::max(minute_bound_ns, run.minute_bound_ns);
    queries_in_second = std::max(queries_in_second, run.queries_in_second);
  }
};

bool is_missed(const ClockLine& line, const SimulatedSpan& span) {
  const auto is_off = [&](std::int64_t device_ns, double truth_ns) {
    const double error_ns = std::abs(static_cast<double>(line.to_host_ns(device_ns)) - truth_ns);
    return error_ns > static_cast<double>(line.bound_ns);
  };
  return is_off(span.device_start_ns, span.start_ns) || is_off(span.device_end_ns, span.end_ns);
}

/// Steps one after the other, each converted when it is over, as the drain thread does.
Outcome simulate(const ClockSimulationOptions& options, double seconds) {
  Outcome run;
  ClockSimulation simulation(options);
  ClockMap map;
  for (bool is_first = true; simulation.elapsed_s() < seconds; is_first = false) {
    const std::vector<SimulatedSpan> spans = simulation.step(map);
    const auto line = map.line(spans.front().device_start_ns, spans.back().device_end_ns);
    simulation.converted(line);
    run.spans += spans.size();
    if (!line) {
      run.unmapped += spans.size();
      continue;
    }
    if (is_first) run.first_bound_ns = line->bound_ns;
    if (simulation.elapsed_s() >= 60) run.minute_bound_ns = std::max(run.minute_bound_ns, line->bound_ns);
    run.missed += static_cast<std::uint64_t>(
        std::ranges::count_if(spans, [&](const SimulatedSpan& span) { return is_missed(*line, span); }));
  }
  run.missed_ratio = static_cast<double>(run.missed) / static_cast<double>(run.spans);
  run.splits = map.split_count();
  run.queries_in_second = simulation.most_queries_in_a_second();
  return run;
}

/// The worst of what each run came to.
Outcome simulate_seeds(ClockSimulationOptions options, double seconds, std::uint64_t seed_count) {
  Outcome worst;
  for (options.seed = 1; options.seed <= seed_count; ++options.seed) worst.add(simulate(options, seconds));
  std::printf(
      "%llu spans, %llu missed, %.5f in the worst run, %llu unmapped, %llu splits, at worst a bound of %.0f us after a "
      "step, %.0f us after a minute, %llu queries in a second\n",
      static_cast<unsigned long long>(worst.spans), static_cast<unsigned long long>(worst.missed), worst.missed_ratio,
      static_cast<unsigned long long>(worst.unmapped), static_cast<unsigned long long>(worst.splits),
      static_cast<double>(worst.first_bound_ns) / 1e3, static_cast<double>(worst.minute_bound_ns) / 1e3,
      static_cast<unsigned long long>(worst.queries_in_second));
  return worst;
}

constexpr double kMostMissed = 0.001;  // of each run
constexpr std::uint64_t kFirstBoundNs = 300'000;
constexpr std::uint64_t kMinuteBoundNs = 50'000;
constexpr std::uint64_t kQueriesInSecond = 2'000;
#if defined(__SANITIZE_THREAD__)
// Hours of simulated clocks without a second thread.
constexpr std::uint64_t kRuns = 1;
constexpr std::uint64_t kFirstSteps = 20;
#else
constexpr std::uint64_t kRuns = 8;  // hundreds in docs/gpu.md
constexpr std::uint64_t kFirstSteps = 500;
#endif

TEST(ClockMap, WithoutBracketsThereIsNoLine) {
  ClockMap map;
  EXPECT_FALSE(map.line(0, 1000));
}

TEST(ClockMap, OneBracketPutsTheDeviceInItsMiddle) {
  ClockMap map;
  map.add({.device_ns = 5000, .recorded_ns = 800'000, .not_ready_ns = 1'000'000, .ready_ns = 1'040'000});
  const auto line = map.line(5000, 5000);
  ASSERT_TRUE(line);
  // 100 us for what is visible late, 4 us on both sides.
  EXPECT_NEAR(static_cast<double>(line->to_host_ns(5000)), 970'000, 2);
  EXPECT_NEAR(static_cast<double>(line->bound_ns), 74'000, 2);
  EXPECT_NEAR(line->offset_ns() + line->drift_ratio * 5000, 970'000, 2);
}

TEST(ClockMap, AfterTheFirstStepEveryBoundIsBelowItsLimit) {
  for (const double drift_ppm : {-100.0, 0.0, 100.0}) {
    const Outcome worst = simulate_seeds({.drift_ppm = drift_ppm}, 0.5, kFirstSteps);
    EXPECT_LE(worst.missed_ratio, kMostMissed);
    EXPECT_EQ(worst.unmapped, 0u);
    EXPECT_LE(worst.first_bound_ns, kFirstBoundNs);
    EXPECT_LE(worst.queries_in_second, kQueriesInSecond);
  }
}

TEST(ClockMap, InEveryRunTheTruthLiesWithinTheBoundWhateverTheDrift) {
  for (const double drift_ppm : {-100.0, 0.0, 100.0}) {
    const Outcome worst = simulate_seeds({.drift_ppm = drift_ppm}, 180, kRuns);
    EXPECT_LE(worst.missed_ratio, kMostMissed);
    EXPECT_EQ(worst.unmapped, 0u);
    EXPECT_LE(worst.first_bound_ns, kFirstBoundNs);
    EXPECT_LE(worst.minute_bound_ns, kMinuteBoundNs);
    EXPECT_LE(worst.queries_in_second, kQueriesInSecond);
  }
}

TEST(ClockMap, LateLooksAndLateEventsOnlyWidenTheBound) {
  const Outcome worst = simulate_seeds({.late_poll_ratio = 0.1, .late_visibility_ratio = 0.005}, 180, kRuns);
  EXPECT_LE(worst.missed_ratio, kMostMissed);
  EXPECT_LE(worst.minute_bound_ns, 100'000u);
}

TEST(ClockMap, ARateThatChangesIsFollowed) {
  for (const double step_ppm : {-2.0, 0.5, 2.0}) {
    const Outcome worst = simulate_seeds({.rate_step_ppm = step_ppm, .rate_step_s = 90}, 180, kRuns);
    EXPECT_LE(worst.missed_ratio, kMostMissed) << step_ppm;
    EXPECT_EQ(worst.unmapped, 0u);
  }
}

TEST(ClockMap, AClockThatJumpsIsOneSplit) {
  for (const double jump_ns : {-5e6, 5e6}) {
    const Outcome worst = simulate_seeds({.jump_ns = jump_ns, .jump_s = 90.3}, 180, kRuns);
    EXPECT_LE(worst.missed_ratio, kMostMissed);
    EXPECT_LE(worst.unmapped_ratio(), 0.01) << "the step in which it jumped, and no other";
    EXPECT_EQ(worst.splits, kRuns);
  }
}

TEST(ClockMap, LongStepsHaveAWiderBound) {
  const Outcome worst = simulate_seeds({.step_s = 10}, 300, kRuns);
  EXPECT_LE(worst.missed_ratio, kMostMissed);
}

}  // namespace
}  // namespace smon_rt
