#include "record/overhead.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

namespace smon_rt {
namespace {

/// A job whose steps are sampled as by default, 4 of 40 after 20 early ones; each takes duration_ns(step, is_sampled).
std::optional<Overhead> overhead_of(int steps, const std::function<double(int, bool)>& duration_ns) {
  OverheadEstimate estimate;
  for (int step = 0; step < steps; ++step) {
    const bool is_sampled = step < 20 || (step + step / 40 * 7) % 40 < 4;
    estimate.add(is_sampled, duration_ns(step, is_sampled));
  }
  return estimate.get();
}

TEST(Overhead, APlantedFivePercentIsFoundInNoise) {
  std::mt19937 random(1);
  std::normal_distribution<double> noise(0, 20e6);  // 2 % of a second
  const auto overhead =
      overhead_of(2000, [&](int, bool is_sampled) { return (is_sampled ? 1.05e9 : 1e9) + noise(random); });
  ASSERT_TRUE(overhead);
  EXPECT_NEAR(overhead->ratio, 0.05, 0.005);
  EXPECT_GT(overhead->low_ratio, kOverheadAlarmRatio);
}

TEST(Overhead, NoiseRaisesNoAlarm) {
  std::mt19937 random(2);
  int alarms = 0;
  for (int job = 0; job < 1000; ++job) {
    std::lognormal_distribution<double> noise(0, 0.1);
    const auto overhead = overhead_of(600, [&](int, bool) { return 1e9 * noise(random); });
    ASSERT_TRUE(overhead);
    EXPECT_LT(overhead->low_ratio, overhead->ratio);
    if (overhead->low_ratio > kOverheadAlarmRatio) ++alarms;
  }
  EXPECT_LE(alarms, 25) << "of a thousand jobs, beyond the interval's upper end and one percent more";
}

TEST(Overhead, WhatRecordingCostsWithinOnePercentRaisesNone) {
  std::mt19937 random(3);
  std::normal_distribution<double> noise(0, 5e6);
  const auto overhead =
      overhead_of(4000, [&](int, bool is_sampled) { return (is_sampled ? 1.008e9 : 1e9) + noise(random); });
  ASSERT_TRUE(overhead);
  EXPECT_NEAR(overhead->ratio, 0.008, 0.001);
  EXPECT_LT(overhead->low_ratio, kOverheadAlarmRatio);
}

TEST(Overhead, SlowFirstStepsAndADriftAreNotRecordings) {
  const auto overhead =
      overhead_of(2000, [](int step, bool) { return 1e9 + 9e9 * std::exp(-step / 5.0) + 1e6 * step; });
  ASSERT_TRUE(overhead);
  EXPECT_NEAR(overhead->ratio, 0, 0.002) << "though the sampled steps' mean is larger";
  EXPECT_LT(overhead->low_ratio, kOverheadAlarmRatio);
}

TEST(Overhead, AFewHugeStepsAreNotRecordings) {
  std::mt19937 random(4);
  for (int job = 0; job < 100; ++job) {
    const auto overhead = overhead_of(800, [&](int, bool) { return random() % 50 == 0 ? 20e9 : 1e9; });
    ASSERT_TRUE(overhead);
    EXPECT_LT(overhead->low_ratio, kOverheadAlarmRatio) << job;
  }
}

TEST(Overhead, TooFewWindowsSayNothing) {
  const auto slow = [](int, bool is_sampled) { return is_sampled ? 2e9 : 1e9; };
  EXPECT_FALSE(overhead_of(20, slow));
  EXPECT_FALSE(overhead_of(250, slow));
  EXPECT_TRUE(overhead_of(600, slow));
  OverheadEstimate all_sampled;
  for (int i = 0; i < 1000; ++i) all_sampled.add(true, 1e9);
  EXPECT_FALSE(all_sampled.get());
  OverheadEstimate of_no_time;
  for (int i = 0; i < 1000; ++i) of_no_time.add(i % 10 == 0, 0);
  EXPECT_FALSE(of_no_time.get());
}

}  // namespace
}  // namespace smon_rt
