#include "record/drain_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

namespace smon_rt {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

/// The sleep after many looks of this kind, one after the other.
nanoseconds settled(DrainPace& pace, double filled_per_s, bool may_fill = true) {
  nanoseconds sleep = pace.next({.since_last = milliseconds(10), .may_fill = may_fill});
  for (int look = 0; look < 100; ++look) {
    const double filled = filled_per_s * std::chrono::duration<double>(sleep).count();
    sleep = pace.next({.filled_ratio = filled, .since_last = sleep, .may_fill = may_fill});
  }
  return sleep;
}

TEST(DrainPace, TrainingStepsAreLookedAtTenTimesASecond) {
  DrainPace pace;
  // 26 spans a step of 100 ms, in a large ring.
  EXPECT_EQ(settled(pace, 260.0 / 4096), milliseconds(100));
}

TEST(DrainPace, StaysAwakeWhileItIsNotKnownHowFastSpansCome) {
  DrainPace pace;
  EXPECT_EQ(settled(pace, 0), milliseconds(10));
}

TEST(DrainPace, SleepsWhileNothingCanCome) {
  DrainPace pace;
  EXPECT_EQ(settled(pace, 0, false), milliseconds(100));
  // A step begins that is sampled.
  EXPECT_EQ(pace.next({.since_last = milliseconds(100)}), milliseconds(10));
}

TEST(DrainPace, StepsThatAreNotSampledAreLookedAtTwiceASecondOnceThePaceIsKnown) {
  DrainPace pace;
  EXPECT_EQ(settled(pace, 10.0 / 1024, false), milliseconds(500));  // their times alone: ten steps a second
  // One that is sampled is looked at as ever, and the next ones are found as they come.
  EXPECT_EQ(pace.next({.filled_ratio = 26.0 / 4096, .since_last = milliseconds(500)}), milliseconds(100));
  EXPECT_EQ(settled(pace, 260.0 / 4096), milliseconds(100));
}

TEST(DrainPace, FastStepsOrSpansAreNotLeftAloneForLongerThanRingsAllow) {
  DrainPace steps;
  settled(steps, 1000.0 / 1024, false);  // steps of 1 ms, in the log of steps
  const nanoseconds sleep = settled(steps, 0, false);
  EXPECT_LE(sleep, milliseconds(256));
  EXPECT_GT(sleep, milliseconds(255));
  DrainPace spans;
  settled(spans, 5);
  EXPECT_LE(settled(spans, 0, false), milliseconds(50));  // they may come as fast again
}

TEST(DrainPace, AFewSpansJustBeforeALookAreNoPace) {
  DrainPace pace;
  // A step that began with the thread.
  pace.next({.filled_ratio = 26.0 / 4096, .since_last = microseconds(100)});
  EXPECT_EQ(settled(pace, 260.0 / 4096), milliseconds(100));
}

TEST(DrainPace, NoRingIsMoreThanAQuarterFullIfSpansComeAsFastAsEver) {
  for (const double filled_per_s : {0.1, 2.0, 2.6, 5.0, 12.0, 24.0}) {
    DrainPace pace;
    settled(pace, filled_per_s);
    settled(pace, 0);  // long quiet
    const nanoseconds sleep = settled(pace, 0);
    EXPECT_LE(filled_per_s * std::chrono::duration<double>(sleep).count(), 0.25 + 1e-6) << filled_per_s;
    EXPECT_GE(sleep, milliseconds(10)) << filled_per_s;
  }
}

TEST(DrainPace, WhatFillsARingIsLookedAtSooner) {
  DrainPace pace;
  EXPECT_EQ(settled(pace, 0.1), milliseconds(100));
  nanoseconds sleep = pace.next({.filled_ratio = 0.3, .since_last = milliseconds(100)});
  EXPECT_EQ(sleep, microseconds(2500));
  sleep = pace.next({.filled_ratio = 0.6, .since_last = sleep});
  EXPECT_EQ(sleep, microseconds(500));
  // It comes again: never slept longer on than takes a quarter of the ring.
  EXPECT_EQ(settled(pace, 0), milliseconds(10));
}

TEST(DrainPace, ABurstOfAThousandTimesWhatCameBeforeIsOutlived) {
  // One ring at 5 % a second, then at 40 a second: full in 25 ms. Looked at in time from the second look on.
  DrainPace pace;
  nanoseconds sleep = settled(pace, 0.05);
  double filled = std::min(1.0, 40 * std::chrono::duration<double>(sleep).count());
  int overflows = filled >= 1 ? 1 : 0;
  for (int look = 0; look < 1000; ++look) {
    sleep = pace.next({.filled_ratio = filled, .since_last = sleep});
    filled = std::min(1.0, 40 * std::chrono::duration<double>(sleep).count());
    if (filled >= 1) ++overflows;
  }
  EXPECT_LE(overflows, 1);
}

}  // namespace
}  // namespace smon_rt
