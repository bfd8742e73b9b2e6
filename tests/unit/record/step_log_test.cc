#include "record/step_log.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <thread>

namespace smon_rt {
namespace {

TEST(StepLog, GivesBackWhatWasPushedInOrder) {
  const auto log = std::make_unique<StepLog>();
  for (std::uint32_t i = 0; i < 10; ++i) EXPECT_TRUE(log->push({.step = i}));
  std::array<StepTicks, 4> some;
  EXPECT_EQ(log->read(some), 4u);
  EXPECT_EQ(some[3].step, 3u);
  EXPECT_EQ(log->read(some), 4u);
  EXPECT_EQ(log->read(some), 2u);
  EXPECT_EQ(some[1].step, 9u);
  EXPECT_EQ(log->read(some), 0u);
}

TEST(StepLog, PushFailsWhenFullAndWritesNothing) {
  const auto log = std::make_unique<StepLog>();
  for (std::uint32_t i = 0; i < StepLog::kCapacity; ++i) EXPECT_TRUE(log->push({.step = i}));
  EXPECT_FALSE(log->push({.step = 99'999}));
  std::array<StepTicks, 1> one;
  EXPECT_EQ(log->read(one), 1u);
  EXPECT_EQ(one[0].step, 0u);
  EXPECT_TRUE(log->push({.step = 7}));
}

TEST(StepLog, TwoThreadsPassTwoHundredThousandSteps) {
  const auto log = std::make_unique<StepLog>();
  constexpr std::uint32_t kSteps = 200'000;
  std::thread producer([&] {
    for (std::uint32_t i = 0; i < kSteps;) {
      if (log->push({.step = i, .start_ticks = i, .end_ticks = i + 1})) {
        ++i;
      } else {
        std::this_thread::yield();
      }
    }
  });
  std::uint32_t next = 0;
  std::array<StepTicks, 64> some;
  while (next < kSteps) {
    const std::size_t count = log->read(some);
    for (std::size_t i = 0; i < count; ++i, ++next) {
      ASSERT_EQ(some[i].step, next);
      ASSERT_EQ(some[i].end_ticks, next + 1);
    }
    if (count == 0) std::this_thread::yield();
  }
  producer.join();
}

}  // namespace
}  // namespace smon_rt
