#include "record/step_log.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

namespace smon_rt {
namespace {

/// A log and the memory it lies in.
struct Log {
  std::array<StepTicks, StepLog::kCapacity> entries{};
  std::atomic<std::uint64_t> write_index{0};
  std::atomic<std::uint64_t> read_index{0};
  StepLog log{entries, write_index, read_index};
  StepLog* operator->() { return &log; }
};

TEST(StepLog, GivesBackWhatWasPushedInOrder) {
  const auto owned = std::make_unique<Log>();
  Log& log = *owned;
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
  const auto owned = std::make_unique<Log>();
  Log& log = *owned;
  for (std::uint32_t i = 0; i < StepLog::kCapacity; ++i) EXPECT_TRUE(log->push({.step = i}));
  EXPECT_FALSE(log->push({.step = 99'999}));
  std::array<StepTicks, 1> one;
  EXPECT_EQ(log->read(one), 1u);
  EXPECT_EQ(one[0].step, 0u);
  EXPECT_TRUE(log->push({.step = 7}));
}

TEST(StepLog, WhatWasOnlyLookedAtStays) {
  const auto owned = std::make_unique<Log>();
  Log& log = *owned;
  for (std::uint32_t i = 0; i < StepLog::kCapacity; ++i) log->push({.step = i});
  std::array<StepTicks, 4> some;
  EXPECT_EQ(log->peek(0, some), 4u);
  EXPECT_EQ(log->peek(4, some), 4u);
  EXPECT_EQ(some[0].step, 4u);
  EXPECT_EQ(log->peek(StepLog::kCapacity - 1, some), 1u);
  EXPECT_FALSE(log->push({.step = 99'999})) << "nothing left it";
  log->take(5);
  EXPECT_TRUE(log->push({.step = 99'999}));
  EXPECT_EQ(log->peek(0, some), 4u);
  EXPECT_EQ(some[0].step, 5u);
}

TEST(StepLog, TwoThreadsPassTwoHundredThousandSteps) {
  const auto owned = std::make_unique<Log>();
  Log& log = *owned;
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
