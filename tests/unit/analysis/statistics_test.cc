#include "analysis/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace smon_rt::analysis {
namespace {

double median_of(std::vector<double> values) {
  return median(values);
}

std::vector<std::int64_t> steps_from(std::int64_t first, std::size_t count, std::int64_t apart = 1) {
  std::vector<std::int64_t> steps(count);
  for (std::size_t i = 0; i < count; ++i) steps[i] = first + static_cast<std::int64_t>(i) * apart;
  return steps;
}

std::vector<double> noise(std::size_t count) {
  std::mt19937 random(9);
  std::vector<double> values(count);
  for (double& value : values) value = 100 + random() % 50;
  return values;
}

TEST(FiniteMedian, LeavesOutWhatIsNotFinite) {
  const double nan = std::nan("");
  std::vector<double> values{3, nan, 1, HUGE_VAL, 2, -HUGE_VAL};
  EXPECT_EQ(finite_median(values), 2);
  EXPECT_EQ(values.size(), 3u);
  std::vector<double> none{nan, nan};
  EXPECT_TRUE(std::isnan(finite_median(none)));
}

TEST(Statistics, TheMeanOfNothingIsZero) {
  EXPECT_EQ(mean({}), 0);
  EXPECT_EQ(mean(std::vector<double>{3}), 3);
  EXPECT_EQ(mean(std::vector<double>{1, 2, 6}), 3);
}

TEST(Statistics, TheMedianOfAnOddCountIsTheMiddleValue) {
  EXPECT_EQ(median_of({7}), 7);
  EXPECT_EQ(median_of({9, 1, 5}), 5);
  EXPECT_EQ(median_of({9, 1, 5, -3, 100}), 5);
}

TEST(Statistics, TheMedianOfAnEvenCountIsBetweenTheMiddleTwo) {
  EXPECT_EQ(median_of({4, 2}), 3);
  EXPECT_EQ(median_of({100, 1, 4, 2}), 3);
  EXPECT_EQ(median_of({5, 5, 5, 5}), 5);
}

TEST(Statistics, TheMedianOfNothingIsZero) {
  EXPECT_EQ(median_of({}), 0);
}

TEST(Statistics, TheMedianIsThatOfTheSortedValues) {
  std::mt19937 random(2);
  for (std::size_t count = 1; count < 60; ++count) {
    std::vector<double> values(count);
    for (double& value : values) value = random() % 20;
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    const double expected = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
    EXPECT_EQ(median_of(values), expected);
  }
}

TEST(Bootstrap, KnowsNothingOfFewerThanTwoSteps) {
  EXPECT_FALSE(bootstrap_mean({}, {}).is_known);
  EXPECT_FALSE(bootstrap_mean(std::vector<double>{5}, steps_from(0, 1)).is_known);
  EXPECT_TRUE(bootstrap_mean(std::vector<double>{5, 6}, steps_from(0, 2)).is_known);
}

TEST(Bootstrap, AConstantSeriesHasNoWidth) {
  for (std::size_t count : {2, 3, 5, 44}) {
    const Interval interval = bootstrap_mean(std::vector<double>(count, 2.5), steps_from(7, count));
    EXPECT_TRUE(interval.is_known);
    EXPECT_EQ(interval.low, 2.5);
    EXPECT_EQ(interval.high, 2.5);
  }
}

TEST(Bootstrap, ContainsTheMeanOfWhatItResamples) {
  for (std::size_t count : {2, 3, 9, 10, 11, 44, 200}) {
    const std::vector<double> values = noise(count);
    const Interval interval = bootstrap_mean(values, steps_from(0, count));
    EXPECT_LT(interval.low, mean(values)) << count << " steps";
    EXPECT_GT(interval.high, mean(values)) << count << " steps";
    EXPECT_GE(interval.low, *std::min_element(values.begin(), values.end()));
    EXPECT_LE(interval.high, *std::max_element(values.begin(), values.end()));
  }
}

TEST(Bootstrap, TheFirstAndLastStepsCountAsMuchAsOthers) {
  std::vector<double> values(12, 1.0);
  values.front() = values.back() = 1.5;
  const Interval interval = bootstrap_mean(values, steps_from(0, 12));
  EXPECT_LE(interval.low, mean(values));
  EXPECT_GE(interval.high, mean(values));
}

TEST(Bootstrap, IsTheSameEachTime) {
  const std::vector<double> values = noise(40);
  const Interval first = bootstrap_mean(values, steps_from(0, 40));
  const Interval second = bootstrap_mean(values, steps_from(0, 40));
  EXPECT_EQ(first.low, second.low);
  EXPECT_EQ(first.high, second.high);
}

TEST(Bootstrap, MoreStepsOfTheSameNoiseNarrowIt) {
  const Interval few = bootstrap_mean(noise(20), steps_from(0, 20));
  const Interval many = bootstrap_mean(noise(500), steps_from(0, 500));
  EXPECT_LT(many.high - many.low, few.high - few.low);
}

// A slow phase of ten steps is one event, not ten: neighbours must be resampled together.
TEST(Bootstrap, NeighboursThatMoveTogetherWidenIt) {
  std::vector<double> phases(100), shuffled(100);
  for (std::size_t i = 0; i < 100; ++i) phases[i] = i / 10 % 2 == 0 ? 1 : 2;
  shuffled = phases;
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(4));
  const Interval together = bootstrap_mean(phases, steps_from(0, 100));
  const Interval apart = bootstrap_mean(shuffled, steps_from(0, 100));
  EXPECT_GT(together.high - together.low, 1.5 * (apart.high - apart.low));
}

// Eight windows of ten steps, each constant: with windows as blocks, every resampled mean is one of few values.
TEST(Bootstrap, TheLargestStepNumberHasNoSuccessor) {
  const std::vector<double> values = {1, 2, 3};
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(bootstrap_mean(values, std::vector<std::int64_t>{largest - 1, largest, 0}).is_known);
}

TEST(Bootstrap, EightWindowsOrMoreAreResampledAsAWhole) {
  std::vector<double> values;
  std::vector<std::int64_t> steps;
  for (int window = 0; window < 8; ++window) {
    for (int i = 0; i < 10; ++i) {
      values.push_back(window == 0 ? 8 : 0);
      steps.push_back(1000 * window + i);
    }
  }
  const Interval windows = bootstrap_mean(values, steps);
  // A mean of eight windows, of which k are the slow one, is k.
  EXPECT_EQ(windows.low, 0);
  EXPECT_EQ(windows.high, 3);
  // As one run of steps, blocks of five straddle the windows.
  const Interval blocks = bootstrap_mean(values, steps_from(0, 80));
  EXPECT_NE(blocks.high, windows.high);
}

}  // namespace
}  // namespace smon_rt::analysis
