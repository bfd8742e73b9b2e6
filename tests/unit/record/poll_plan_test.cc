#include "record/poll_plan.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace smon_rt {
namespace {

constexpr std::int64_t kMsNs = 1'000'000;
constexpr std::int64_t kErrorNs = 300'000;

TEST(CompletionForecast, NothingIsForetoldBeforeTwoStepsWereAlike) {
  CompletionForecast forecast;
  for (std::uint32_t step = 0; step < 2; ++step) {
    const std::int64_t begin_ns = step * 1000 * kMsNs;
    for (int event = 0; event < 4; ++event) {
      EXPECT_FALSE(forecast.next(step, kMsNs, kErrorNs));
      forecast.note(step, begin_ns + event * 10 * kMsNs);
    }
  }
  forecast.note(2, 2000 * kMsNs);
  EXPECT_EQ(forecast.next(2, kMsNs, kErrorNs), 2010 * kMsNs);
  EXPECT_FALSE(forecast.next(3, kMsNs, kErrorNs)) << "the first of a step depends on more than the GPU";
}

TEST(CompletionForecast, WhatChangesFromStepToStepOrComesTooSoonIsNotForetold) {
  CompletionForecast forecast;
  const auto step_of = [&](std::uint32_t step, std::int64_t second_ns) {
    forecast.note(step, step * 1000 * kMsNs);
    const auto second = forecast.next(step, kMsNs, kErrorNs);
    forecast.note(step, step * 1000 * kMsNs + second_ns);
    const auto third = forecast.next(step, kMsNs, kErrorNs);
    forecast.note(step, step * 1000 * kMsNs + second_ns + kMsNs / 2);
    EXPECT_FALSE(third) << "half a millisecond after the second";
    return second;
  };
  step_of(0, 10 * kMsNs);
  step_of(1, 11 * kMsNs);
  EXPECT_FALSE(step_of(2, 11 * kMsNs)) << "it was a millisecond later than in the step before";
  EXPECT_EQ(step_of(3, 11 * kMsNs), 3011 * kMsNs);
}

TEST(PollPlan, LooksAreFrequentOnlyWhereThereIsSomethingToSee) {
  PollPlan plan;
  EXPECT_TRUE(plan.is_due(0)) << "the first at once";
  plan.looked(0, true);
  EXPECT_FALSE(plan.is_due(kMsNs - 1));
  EXPECT_TRUE(plan.is_due(kMsNs));
  plan.looked(kMsNs, false);
  EXPECT_EQ(plan.next_ns(), 101 * kMsNs);
}

TEST(PollPlan, ABurstIsAroundWhatIsExpectedTwentyLooksAndOnceAStep) {
  PollPlan plan;
  plan.looked(0, true);
  ASSERT_TRUE(plan.may_expect(5));
  plan.expect(5, 0, 10 * kMsNs);
  EXPECT_FALSE(plan.may_expect(5));
  EXPECT_TRUE(plan.may_expect(6));
  plan.looked(9 * kMsNs, true);
  EXPECT_EQ(plan.next_ns(), 9'500'000);
  std::int64_t now_ns = plan.next_ns();
  int looks = 0;
  for (; plan.is_burst_due(now_ns); ++looks) {
    plan.looked_in_burst(now_ns);
    plan.looked(now_ns, true);
    now_ns += 50'000;
  }
  EXPECT_EQ(looks, 20);
  plan.expect(6, now_ns, now_ns);
  plan.end_burst();
  EXPECT_FALSE(plan.is_burst_due(INT64_MAX));
}

TEST(PollPlan, TwoThousandQueriesASecondAreAllThereAre) {
  PollPlan plan;
  const std::int64_t begin_ns = 77;
  for (int i = 0; i < 2000; ++i) EXPECT_TRUE(plan.take_query(begin_ns + i));
  EXPECT_FALSE(plan.take_query(begin_ns + 2000));
  EXPECT_FALSE(plan.take_query(begin_ns + 999 * kMsNs));
  EXPECT_TRUE(plan.take_query(begin_ns + 1000 * kMsNs));
  EXPECT_EQ(plan.query_count(), 2001u);
}

}  // namespace
}  // namespace smon_rt
