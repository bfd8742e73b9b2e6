#include "record/sampling.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace smon_rt {
namespace {

SamplingOptions only_windows(double ratio) {
  return {.sample_ratio = ratio, .warmup_steps = 0, .always_steps = 0};
}

TEST(Sampling, FirstStepsAreWarmUpThenAllAreKeptUntilThereAreEnough) {
  Sampling sampling({.sample_ratio = 0, .warmup_steps = 3, .always_steps = 20}, "run");
  for (std::uint32_t step = 1000; step < 1040; ++step) {
    const auto decision = sampling.decide(step);
    EXPECT_EQ(decision.is_warmup, step < 1003) << step;
    EXPECT_EQ(decision.is_sampled, step < 1023) << step;
  }
}

TEST(Sampling, OfEachBlockOneWindowOfFourConsecutiveStepsIsSampled) {
  const Sampling sampling(only_windows(0.10), "run");
  std::set<std::uint32_t> offsets;
  for (std::uint32_t block = 0; block < 500; ++block) {
    std::vector<std::uint32_t> steps;
    for (std::uint32_t i = 0; i < 40; ++i) {
      if (sampling.is_in_window(block * 40 + i)) steps.push_back(i);
    }
    ASSERT_EQ(steps.size(), 4u) << block;
    EXPECT_EQ(steps[3] - steps[0], 3u);
    offsets.insert(steps[0]);
  }
  EXPECT_EQ(offsets.size(), 37u) << "every offset occurs: nothing periodic is always or never met";
}

TEST(Sampling, AnyRatioIsMet) {
  for (const double ratio : {0.001, 0.01, 0.05, 0.1, 0.123, 0.3, 0.5, 0.77, 0.9, 0.99}) {
    const Sampling sampling(only_windows(ratio), "run");
    constexpr std::uint32_t kSteps = 400'000;
    std::uint32_t sampled = 0;
    for (std::uint32_t step = 0; step < kSteps; ++step) sampled += sampling.is_in_window(step) ? 1 : 0;
    EXPECT_NEAR(sampled / double{kSteps}, ratio, 5.0 / kSteps + ratio * 1e-3) << ratio;
  }
}

TEST(Sampling, RatioZeroIsNoneAndOneOrMoreIsAll) {
  for (const double ratio : {0.0, -1.0, std::nan("")}) {
    const Sampling none(only_windows(ratio), "run");
    for (std::uint32_t step = 0; step < 1000; ++step) ASSERT_FALSE(none.is_in_window(step));
  }
  for (const double ratio : {1.0, 2.0, static_cast<double>(INFINITY)}) {
    const Sampling all(only_windows(ratio), "run");
    for (std::uint32_t step = 0; step < 1000; ++step) ASSERT_TRUE(all.is_in_window(step));
  }
}

TEST(Sampling, RanksOfARunAgreeAndRunsDiffer) {
  const Sampling one(only_windows(0.1), "run-a");
  const Sampling same(only_windows(0.1), "run-a");
  const Sampling other(only_windows(0.1), "run-b");
  int differences = 0;
  for (std::uint32_t step = 0; step < 4000; ++step) {
    ASSERT_EQ(one.is_in_window(step), same.is_in_window(step));
    differences += one.is_in_window(step) != other.is_in_window(step) ? 1 : 0;
  }
  EXPECT_GT(differences, 100);
}

TEST(Sampling, TheAnswerOfToday) {
  // All ranks must agree across versions of this library within one job: the hash is part of the format.
  const Sampling sampling(only_windows(0.1), "run");
  std::vector<std::uint32_t> first;
  for (std::uint32_t step = 0; step < 200; ++step) {
    if (sampling.is_in_window(step) && (step == 0 || !sampling.is_in_window(step - 1))) first.push_back(step);
  }
  EXPECT_EQ(first, (std::vector<std::uint32_t>{35, 63, 107, 150, 162}));
}

TEST(Sampling, LargeStepsWork) {
  const Sampling sampling(only_windows(0.1), "run");
  int sampled = 0;
  for (std::uint64_t step = 0xffff'ffff - 3999; step <= 0xffff'ffff; ++step) {
    sampled += sampling.is_in_window(static_cast<std::uint32_t>(step)) ? 1 : 0;
  }
  EXPECT_NEAR(sampled, 400, 8);
  SamplingOptions wide = only_windows(1e-9);
  wide.window_steps = 0xffff'ffff;
  const Sampling rare(wide, "run");
  sampled = 0;
  for (std::uint64_t step = 0; step <= 0xffff'ffff; step += 65'537) {
    sampled += rare.is_in_window(static_cast<std::uint32_t>(step)) ? 1 : 0;
  }
  EXPECT_LE(sampled, 1);
}

TEST(Sampling, RequestedWindowsMayOverlap) {
  Sampling sampling(only_windows(0), "run");
  sampling.decide(10);
  EXPECT_EQ(sampling.request(15, 5), Sampling::RequestResult::kAccepted);
  EXPECT_EQ(sampling.request(18, 10), Sampling::RequestResult::kAccepted);
  EXPECT_EQ(sampling.request(40, 1), Sampling::RequestResult::kAccepted);
  for (std::uint32_t step = 11; step < 60; ++step) {
    EXPECT_EQ(sampling.decide(step).is_sampled, (step >= 15 && step < 28) || step == 40) << step;
  }
}

TEST(Sampling, AWindowThatHasBegunIsLateAsAWhole) {
  Sampling sampling(only_windows(0), "run");
  sampling.decide(10);
  EXPECT_EQ(sampling.request(10, 100), Sampling::RequestResult::kLate);
  EXPECT_EQ(sampling.request(3, 100), Sampling::RequestResult::kLate);
  EXPECT_FALSE(sampling.decide(11).is_sampled);
  EXPECT_EQ(sampling.request(12, 1), Sampling::RequestResult::kAccepted);
}

TEST(Sampling, SoonMeansTheNextStep) {
  Sampling sampling(only_windows(0), "run");
  EXPECT_EQ(sampling.request(-1, 2), Sampling::RequestResult::kAccepted);
  EXPECT_TRUE(sampling.decide(0).is_sampled);
  EXPECT_TRUE(sampling.decide(1).is_sampled);
  EXPECT_FALSE(sampling.decide(2).is_sampled);
  EXPECT_EQ(sampling.request(-1, 1), Sampling::RequestResult::kAccepted);
  EXPECT_TRUE(sampling.decide(3).is_sampled);
}

TEST(Sampling, NonsenseIsRefusedAndATwiceHeardRequestTakesOnePlace) {
  Sampling sampling(only_windows(0), "run");
  EXPECT_EQ(sampling.request(5, 0), Sampling::RequestResult::kInvalid);
  EXPECT_EQ(sampling.request(5, -3), Sampling::RequestResult::kInvalid);
  EXPECT_EQ(sampling.request(std::int64_t{1} << 33, 1), Sampling::RequestResult::kInvalid);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(sampling.request(5, 5), Sampling::RequestResult::kAccepted);
  EXPECT_EQ(sampling.request(6, 5), Sampling::RequestResult::kAccepted);
}

TEST(Sampling, MoreRequestsThanThereIsRoomForAreRefusedUntilOneIsOver) {
  Sampling sampling(only_windows(0), "run");
  sampling.decide(0);
  for (std::size_t i = 0; i < Sampling::kMaxRequests; ++i) {
    EXPECT_EQ(sampling.request(static_cast<std::int64_t>(i) + 10, 1), Sampling::RequestResult::kAccepted);
  }
  EXPECT_EQ(sampling.request(100, 1), Sampling::RequestResult::kFull);
  sampling.decide(11);
  EXPECT_EQ(sampling.request(100, 1), Sampling::RequestResult::kAccepted);
}

TEST(Sampling, ARequestDuringAStepIsEitherSampledOrLate) {
  Sampling sampling(only_windows(0), "run");
  constexpr std::uint32_t kSteps = 20'000;
  std::vector<std::atomic<bool>> was_accepted(kSteps + 2);
  std::vector<bool> was_sampled(kSteps + 2);
  std::atomic<bool> is_done{false};
  std::thread requester([&] {
    while (!is_done.load()) {
      const std::int64_t step = sampling.current_step() + 1;
      if (step > kSteps) break;
      if (sampling.request(step, 1) == Sampling::RequestResult::kAccepted) {
        was_accepted[static_cast<std::size_t>(step)].store(true);
      }
    }
  });
  for (std::uint32_t step = 0; step < kSteps; ++step) was_sampled[step] = sampling.decide(step).is_sampled;
  is_done = true;
  requester.join();
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    if (was_accepted[step].load()) {
      ASSERT_TRUE(was_sampled[step]) << step;
    }
  }
}

}  // namespace
}  // namespace smon_rt
