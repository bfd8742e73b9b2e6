#include "record/poll_plan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

namespace smon_rt {
namespace {

constexpr std::int64_t kMsNs = 1'000'000;
constexpr std::int64_t kErrorNs = 300'000;

constexpr std::uint8_t kBegin = 0, kEnd = 1;

std::optional<std::int64_t> next_ns(const CompletionForecast& forecast, std::uint32_t step, std::uint8_t sort) {
  const auto next = forecast.next(step, sort, kMsNs, kErrorNs);
  return next ? std::optional(next->device_ns) : std::nullopt;
}

/// Begins and ends in turn.
std::uint8_t sort_of(int event) {
  return event % 2 == 0 ? kBegin : kEnd;
}

TEST(CompletionForecast, NothingIsForetoldBeforeTwoStepsWereAlike) {
  CompletionForecast forecast;
  for (std::uint32_t step = 0; step < 2; ++step) {
    const std::int64_t begin_ns = step * 1000 * kMsNs;
    for (std::uint8_t event = 0; event < 4; ++event) {
      EXPECT_FALSE(next_ns(forecast, step, event));
      forecast.note(step, event, begin_ns + event * 10 * kMsNs);
    }
  }
  forecast.note(2, 0, 2000 * kMsNs);
  EXPECT_EQ(next_ns(forecast, 2, 1), 2010 * kMsNs);
  EXPECT_FALSE(next_ns(forecast, 3, 1)) << "the first of a step depends on more than the GPU";
}

TEST(CompletionForecast, WhatChangesFromStepToStepOrComesTooSoonIsNotForetold) {
  CompletionForecast forecast;
  const auto step_of = [&](std::uint32_t step, std::int64_t second_ns) {
    forecast.note(step, 0, step * 1000 * kMsNs);
    const auto second = next_ns(forecast, step, 1);
    forecast.note(step, 1, step * 1000 * kMsNs + second_ns);
    const auto third = next_ns(forecast, step, 2);
    forecast.note(step, 2, step * 1000 * kMsNs + second_ns + kMsNs / 2);
    EXPECT_FALSE(third) << "half a millisecond after the second";
    return second;
  };
  step_of(0, 10 * kMsNs);
  step_of(1, 11 * kMsNs);
  EXPECT_FALSE(step_of(2, 11 * kMsNs)) << "it was a millisecond later than in the step before";
  EXPECT_EQ(step_of(3, 11 * kMsNs), 3011 * kMsNs);
}

TEST(CompletionForecast, InTheFirstStepPassesThatAreAlikeForetellTheNext) {
  CompletionForecast forecast;
  std::int64_t now_ns = 0;
  for (int event = 0; event < 8; ++event) {
    const std::uint8_t sort = sort_of(event);
    const std::int64_t gap_ns = sort == kEnd ? 30 * kMsNs : 2 * kMsNs + (event % 4 == 0 ? kMsNs : 0);
    const auto foretold_ns = next_ns(forecast, 0, sort);
    now_ns += gap_ns;
    if (sort == kEnd && event > 3) {
      EXPECT_EQ(foretold_ns, now_ns) << event;
    } else {
      EXPECT_FALSE(foretold_ns) << event << ": two of a sort were not alike yet";
    }
    forecast.note(0, sort, now_ns);
  }
  // From the second step on its place is what counts, wherever the step before tells.
  forecast.note(1, kBegin, now_ns += 50 * kMsNs);
  EXPECT_EQ(next_ns(forecast, 1, kEnd), now_ns + 30 * kMsNs);
  forecast.note(1, kEnd, now_ns += 40 * kMsNs);
  forecast.note(2, kBegin, now_ns += 50 * kMsNs);
  EXPECT_FALSE(next_ns(forecast, 2, kEnd)) << "10 ms more than in the step before";
}

TEST(CompletionForecast, PassesThatDifferAreForetoldByTheirMeanWithinWhatTheyDifferBy) {
  CompletionForecast forecast;
  std::int64_t now_ns = 0;
  forecast.note(0, kBegin, now_ns);
  for (const std::int64_t gap_ms : {30, 32, 31, 33}) {
    forecast.note(0, kEnd, now_ns += gap_ms * kMsNs);
    forecast.note(0, kBegin, now_ns);
  }
  EXPECT_FALSE(next_ns(forecast, 0, kEnd));
  const auto next = forecast.next(0, kEnd, kMsNs, 4 * kMsNs);
  ASSERT_TRUE(next);
  EXPECT_NEAR(static_cast<double>(next->device_ns - now_ns), 31.5e6, 0.2e6);
  EXPECT_GE(next->error_ns, kMsNs);
  EXPECT_LE(next->error_ns, 3 * kMsNs);
}

/// Once its clocks are known well.
PollPlan settled_plan() {
  PollPlan plan;
  plan.set_bound(30'000);
  return plan;
}

TEST(PollPlan, WhileABoundIsWideQueriesAreSpreadOverTheSecond) {
  for (const int streams : {1, 2, 3, 4}) {
    PollPlan plan;
    const std::int64_t every_ns = streams * 560'000;
    std::int64_t now_ns = 0;
    int looks = 0;
    for (; now_ns < 1000 * kMsNs; now_ns = plan.next_ns(), ++looks) {
      if (looks % 7 == 3) now_ns += every_ns / 2;  // late, and the next one comes that much sooner
      for (int query = 0; query < streams; ++query) EXPECT_TRUE(plan.take_query(now_ns)) << streams << " at " << now_ns;
      plan.looked(now_ns, true);
    }
    EXPECT_NEAR(looks, 1000 * kMsNs / every_ns, 2) << streams;
    EXPECT_TRUE(plan.is_wide());
    plan.set_bound(250'000);
    EXPECT_TRUE(plan.is_wide());
    plan.set_bound(90'000);
    EXPECT_FALSE(plan.is_wide());
    plan.looked(now_ns, true);
    EXPECT_EQ(plan.next_ns(), now_ns + kMsNs);
  }
}

TEST(PollPlan, ABoundThatStaysWideIsGivenUpAfterTenSeconds) {
  PollPlan plan;
  std::int64_t now_ns = 0;
  for (; plan.is_wide(); now_ns = plan.next_ns()) {
    ASSERT_LT(now_ns, 15'000 * kMsNs);
    EXPECT_TRUE(plan.take_query(now_ns));
    plan.looked(now_ns, true);
  }
  EXPECT_GE(now_ns, 10'000 * kMsNs);
  plan.looked(now_ns, true);
  EXPECT_EQ(plan.next_ns(), now_ns + kMsNs);
}

TEST(PollPlan, LooksAreFrequentOnlyWhereThereIsSomethingToSee) {
  PollPlan plan = settled_plan();
  EXPECT_TRUE(plan.is_due(0)) << "the first at once";
  plan.looked(0, true);
  EXPECT_FALSE(plan.is_due(kMsNs - 1));
  EXPECT_TRUE(plan.is_due(kMsNs));
  plan.looked(kMsNs, false);
  EXPECT_EQ(plan.next_ns(), 101 * kMsNs);
}

TEST(PollPlan, ABurstIsAroundWhatIsExpectedTwentyLooksAndOnceAStep) {
  PollPlan plan = settled_plan();
  plan.looked(0, true);
  ASSERT_TRUE(plan.may_expect(5, 10 * kMsNs, 0));
  plan.expect(5, 0, 10 * kMsNs, 0);
  EXPECT_FALSE(plan.may_expect(5, 900 * kMsNs, 0));
  EXPECT_TRUE(plan.may_expect(6, 900 * kMsNs, 0));
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
  plan.expect(6, now_ns, now_ns, kErrorNs / 2);
  plan.end_burst();
  EXPECT_FALSE(plan.is_burst_due(INT64_MAX));
}

TEST(PollPlan, WhileABoundIsWideAStepHasSeveralBursts) {
  PollPlan plan;
  plan.expect(5, 0, 10 * kMsNs, 0);
  EXPECT_FALSE(plan.may_expect(5, 69 * kMsNs, 0));
  EXPECT_TRUE(plan.may_expect(5, 70 * kMsNs, 0));
  plan.set_bound(90'000);
  EXPECT_FALSE(plan.may_expect(5, 70 * kMsNs, 0));
}

TEST(PollPlan, WhatIsLessSurelyForetoldHasMoreLooksFurtherApart) {
  PollPlan plan;
  plan.looked(0, false);
  plan.expect(5, 0, 10 * kMsNs, 2 * kMsNs);
  EXPECT_EQ(plan.next_ns(), 10 * kMsNs - 2'250'000);
  std::int64_t now_ns = plan.next_ns();
  int looks = 0;
  for (; plan.is_burst_due(now_ns); ++looks) {
    plan.looked_in_burst(now_ns);
    now_ns += 4'500'000 / 40;
  }
  EXPECT_EQ(looks, 40);
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
