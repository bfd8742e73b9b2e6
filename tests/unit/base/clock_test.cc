#include "base/clock.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

namespace smon_rt {
namespace {

TEST(Clock, TicksNeverGoBackOnOneThread) {
  const Clock& clock = Clock::host();
  std::int64_t last = clock.ticks();
  for (int i = 0; i < 200'000; ++i) {
    const std::int64_t now = clock.ticks();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(Clock, TheTimeStampCounterIsUsedOnlyIfTheKernelUsesIt) {
#if defined(__x86_64__)
  const bool kernel_uses_it = std::strcmp(Clock::kernel_clock_source(), "tsc") == 0;
  EXPECT_EQ(Clock::host().source(), kernel_uses_it ? ClockSource::kTsc : ClockSource::kClockGettime);
#elif defined(__aarch64__)
  EXPECT_EQ(Clock::host().source(), ClockSource::kCntvct);
#else
  EXPECT_EQ(Clock::host().source(), ClockSource::kClockGettime);
#endif
}

TEST(Clock, AReadingLiesBetweenTheReadingsAroundIt) {
  const std::int64_t before_ns = monotonic_ns();
  const std::int64_t before_ticks = Clock::host().ticks();
  const ClockReading reading = Clock::host().read();
  const std::int64_t after_ticks = Clock::host().ticks();
  const std::int64_t after_ns = monotonic_ns();
  EXPECT_GE(reading.monotonic_ns, before_ns);
  EXPECT_LE(reading.monotonic_ns, after_ns);
  EXPECT_GE(reading.ticks, before_ticks);
  EXPECT_LE(reading.ticks, after_ticks);
  EXPECT_LE(reading.width_ns, static_cast<std::uint64_t>(after_ns - before_ns));
}

TEST(Clock, ReadingsOfBothClocksAreApartByTheOffsetOfTheirEpochs) {
  const ClockReading first = Clock::host().read();
  const ClockReading second = Clock::host().read();
  const std::int64_t offset_change =
      (second.realtime_ns - second.monotonic_ns) - (first.realtime_ns - first.monotonic_ns);
  EXPECT_LE(std::abs(offset_change), static_cast<std::int64_t>(first.width_ns + second.width_ns + 1000));
}

TEST(Clock, AFakeTellsWhatItIsTold) {
  struct Told {
    std::int64_t ticks = 7;
  } told;
  const Clock clock(Clock::Source{
      .read_ticks = [](void* context) { return static_cast<Told*>(context)->ticks; },
      .read = [](void* context) { return ClockReading{static_cast<Told*>(context)->ticks, 10, 20, 0}; },
      .context = &told,
  });
  EXPECT_EQ(clock.ticks(), 7);
  told.ticks = 3;
  EXPECT_EQ(clock.ticks(), 3);
  EXPECT_EQ(clock.read().ticks, 3);
  EXPECT_EQ(clock.read().realtime_ns, 20);
  EXPECT_EQ(clock.source(), ClockSource::kUnknown);
}

}  // namespace
}  // namespace smon_rt
