#include "base/clock_converter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace smon_rt {
namespace {

constexpr double kNsPerTick = 1 / 2.1;  // a counter of 2.1 GHz
constexpr std::int64_t kTicksPerS = 2'100'000'000;

ClockReading reading_at(std::int64_t ticks, std::int64_t ns) {
  return {.ticks = ticks, .monotonic_ns = ns, .realtime_ns = ns + 1'000'000, .width_ns = 50};
}

TEST(ClockConverter, OneReadingGivesTheNominalSlope) {
  ClockConverter converter(0.5);
  ASSERT_TRUE(converter.add(reading_at(1000, 5000)));
  EXPECT_EQ(converter.to_monotonic_ns(1000), 5000);
  EXPECT_EQ(converter.to_monotonic_ns(1200), 5100);
  EXPECT_EQ(converter.to_monotonic_ns(800), 4900);
}

TEST(ClockConverter, ReadingsAreMetExactlyAndBetweenThemIsAStraightLine) {
  ClockConverter converter;
  converter.add(reading_at(0, 0));
  converter.add(reading_at(1000, 500));
  converter.add(reading_at(2000, 1500));
  EXPECT_EQ(converter.to_monotonic_ns(0), 0);
  EXPECT_EQ(converter.to_monotonic_ns(500), 250);
  EXPECT_EQ(converter.to_monotonic_ns(1000), 500);
  EXPECT_EQ(converter.to_monotonic_ns(1500), 1000);
  EXPECT_EQ(converter.to_monotonic_ns(2000), 1500);
}

TEST(ClockConverter, BeyondTheLastReadingTheLastLineGoesOn) {
  ClockConverter converter;
  converter.add(reading_at(0, 0));
  converter.add(reading_at(1000, 500));
  converter.add(reading_at(2000, 1500));
  EXPECT_EQ(converter.to_monotonic_ns(2100), 1600);
  EXPECT_EQ(converter.to_monotonic_ns(-100), -50);
}

TEST(ClockConverter, ASlewOfNtpIsFollowedWithinTheWidthOfReadings) {
  ClockConverter converter;
  // Ten minutes with a reading each 100 ms; after five the kernel slews by 100 ppm: 30 ms by the end.
  const auto true_ns = [](std::int64_t ticks) {
    const double ns = static_cast<double>(ticks) * kNsPerTick;
    constexpr double kSlewFromNs = 300e9;
    return static_cast<std::int64_t>(std::llround(ns + (ns > kSlewFromNs ? (ns - kSlewFromNs) * 100e-6 : 0)));
  };
  std::int64_t worst = 0;
  for (std::int64_t ticks = 0; ticks < 600 * kTicksPerS; ticks += kTicksPerS / 10) {
    ASSERT_TRUE(converter.add(reading_at(ticks, true_ns(ticks))));
    const std::int64_t recent = ticks - kTicksPerS / 30;
    if (recent > 0) worst = std::max(worst, std::abs(converter.to_monotonic_ns(recent) - true_ns(recent)));
  }
  EXPECT_LE(worst, 2000);  // where the slope changes; 2 ns elsewhere
  EXPECT_EQ(converter.stepped_lines(), 0u);
}

TEST(ClockConverter, OldTicksStayCoveredInBoundedMemory) {
  ClockConverter converter;
  constexpr int kReadings = 100'000;
  for (int i = 0; i < kReadings; ++i) converter.add(reading_at(i * kTicksPerS / 10, i * std::int64_t{100'000'000}));
  EXPECT_LE(converter.reading_count(), ClockConverter::kMaxReadings);
  EXPECT_EQ(converter.to_monotonic_ns(0), 0);
  EXPECT_EQ(converter.to_monotonic_ns(1234 * (kTicksPerS / 10)), std::int64_t{1234} * 100'000'000);
}

TEST(ClockConverter, OrderIsKeptWhateverTheReadings) {
  ClockConverter converter;
  std::srand(7);
  std::int64_t ticks = 0;
  std::int64_t ns = 0;
  for (int i = 0; i < 1000; ++i) {
    ticks += std::rand() % 1000 - 100;
    ns += std::rand() % 1000 - 100;
    converter.add(reading_at(ticks, ns));
  }
  std::int64_t last = converter.to_monotonic_ns(-1000);
  for (std::int64_t at = -1000; at < ticks + 10'000; at += 7) {
    const std::int64_t now = converter.to_monotonic_ns(at);
    ASSERT_GE(now, last) << at;
    last = now;
  }
}

TEST(ClockConverter, AClockThatStoodStillOrWentBackIsLeftOutAndCounted) {
  ClockConverter converter;
  converter.add(reading_at(1000, 1000));
  EXPECT_FALSE(converter.add(reading_at(1000, 2000)));
  EXPECT_FALSE(converter.add(reading_at(900, 2000)));
  EXPECT_FALSE(converter.add(reading_at(2000, 900)));
  EXPECT_TRUE(converter.add(reading_at(2000, 2000)));
  EXPECT_EQ(converter.rejected_readings(), 3u);
  EXPECT_EQ(converter.to_monotonic_ns(1500), 1500);
}

TEST(ClockConverter, ACounterThatStepsIsCountedAndTheNextLineIsRightAgain) {
  ClockConverter converter;
  const std::int64_t interval_ticks = kTicksPerS / 10;
  const std::int64_t interval_ns = 100'000'000;
  std::int64_t jump = 0;
  for (std::int64_t i = 0; i < 20; ++i) {
    if (i == 10) jump = 5 * kTicksPerS;  // the machine moved: the counter is five seconds ahead
    converter.add(reading_at(i * interval_ticks + jump, i * interval_ns));
  }
  EXPECT_EQ(converter.stepped_lines(), 1u);
  EXPECT_EQ(converter.to_monotonic_ns(15 * interval_ticks + interval_ticks / 2 + jump),
            15 * interval_ns + interval_ns / 2);
  EXPECT_EQ(converter.to_monotonic_ns(5 * interval_ticks), 5 * interval_ns);
}

TEST(ClockConverter, TheMeanRateIsThatFromTheFirstReadingToTheLast) {
  ClockConverter converter(0.5);
  EXPECT_EQ(converter.mean_ns_per_tick(), 0.5) << "nominal, until there are two";
  converter.add(reading_at(1000, 5000));
  EXPECT_EQ(converter.covered_ns(), 0);
  converter.add(reading_at(2000, 7100));
  converter.add(reading_at(4000, 11'000));
  EXPECT_DOUBLE_EQ(converter.mean_ns_per_tick(), 2);
  EXPECT_EQ(converter.covered_ns(), 6000);
}

TEST(ClockConverter, TheHostsClockIsFollowed) {
  const Clock& clock = Clock::host();
  ClockConverter converter;
  converter.add(clock.read());
  const std::int64_t until = monotonic_ns() + 5'000'000;
  while (monotonic_ns() < until) {
  }
  converter.add(clock.read());
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t before = monotonic_ns();
    const std::int64_t ticks = clock.ticks();
    const std::int64_t after = monotonic_ns();
    const std::int64_t converted = converter.to_monotonic_ns(ticks);
    // Two readings 5 ms apart, each some 100 ns wide; a busy machine widens them.
    constexpr std::int64_t kSlackNs = 20'000;
    ASSERT_GE(converted, before - kSlackNs);
    ASSERT_LE(converted, after + kSlackNs);
  }
}

}  // namespace
}  // namespace smon_rt
